"""The case of a step's whole layers: microseconds per layer as served, with some launches replaced, and with some left out.

It runs four sliding layers of 26B-A4B at full size, each with its own weights, in one CUDA graph. A launch costs less
there than by itself: kernels begin before the previous one ends, and the dense FFN runs in parallel with the experts.
"without" leaves out a piece and reuses its output of the previous pass: the time the layer would take if the piece
were free. More than 320 tokens stand for a mixed batch without its prompts' attention, for example 448 requests of 4
tokens. This shows whether the FFN still overlaps the experts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from sglang_gemma4.benchmark.kernels.expert_products import choose
from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, dependently
from sglang_gemma4.benchmark.kernels.layers import EACH_EPS, EPS, LARGEST_STEP, activation
from sglang_gemma4.benchmark.kernels.timer import Call
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear
from sglang_gemma4.kernels.experts import few_token_experts
from sglang_gemma4.kernels.experts.expert_blocks import Blocks
from sglang_gemma4.kernels.experts.expert_routing import MOST_TOKENS, expert_routing
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.kernels.experts.routed_product import counter, routed_product
from sglang_gemma4.kernels.norms.layer_tail import dual_tail
from sglang_gemma4.kernels.norms.qkv_norm_rope import qkv_norm_rope
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm
from sglang_gemma4.models.layers.expert_layers import many_token_experts

LAYERS = 4
MOST_ROWS = {"qkv": 16, "o": 16, "gate_up": 32, "down": 1, "router": 32}
"""Largest number of tokens for which a GEMM is ours as served (``models/layers/few_row_linear.py`` needs SGLang; a test compares them)."""
PIECES = ("qkv", "rope", "attention", "o", "norms", "dense", "router", "experts", "tail")
Made = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a MoE layer; the defaults are those of a sliding layer of 26B-A4B."""

    hidden: int = 2816
    dense: int = 2112
    inner: int = 704
    experts: int = 128
    topk: int = 8
    heads: int = 16
    kv_heads: int = 8
    dim: int = 256


TINY = Sizes(hidden=64, dense=32, inner=32, experts=8, topk=2, heads=4, kv_heads=2, dim=16)


@dataclass(frozen=True)
class Way:
    """How a layer is computed."""

    ours: tuple[str, ...] = tuple(MOST_ROWS)
    """GEMMs that use ``few_row_linear`` up to :data:`MOST_ROWS`; the others are torch's."""
    few: bool = True
    """Compute the experts of up to 16 tokens in two launches, else with ``grouped_experts`` after a separate top-k."""
    routed: bool = True
    """Compute the router's GEMM and top-k for up to 16 tokens in one launch."""
    overlap: bool = True
    """Run the dense FFN on a second stream."""
    dependent: bool = True
    """Use programmatic dependent launch."""
    without: tuple[str, ...] = ()


WAYS = {
    "as served": Way(),
    **{f"{name} torch's": Way(ours=tuple(each for each in MOST_ROWS if each != name)) for name in MOST_ROWS},
    "no product ours": Way(ours=()),
    "no dependent launch": Way(dependent=False),
    "no overlap": Way(overlap=False),
    "grouped experts": Way(few=False),
    "router's product and choice apart": Way(routed=False),
    **{f"without {piece}": Way(without=(piece,)) for piece in PIECES},
}


@dataclass
class Layer:
    """Weights, counters and cached keys of one layer; ``ready`` holds the last output of each piece for passes that leave it out."""

    place: Place
    size: Sizes
    slots: int
    ready: dict[str, Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size, rand = self.size, self.place.rand
        shapes = {
            "qkv": ((size.heads + 2 * size.kv_heads) * size.dim, size.hidden),
            "o": (size.hidden, size.heads * size.dim),
            "gate_up": (2 * size.dense, size.hidden),
            "down": (size.hidden, size.dense),
            "router": (size.experts, size.hidden),
            "w13": (size.experts, 2 * size.inner, size.hidden),
            "w2": (size.experts, size.hidden, size.inner),
        }
        self.weights = {name: rand(*shape, spread=shape[-1] ** -0.5) for name, shape in shapes.items()}
        device = self.weights["w2"].device
        self.done = {name: counters(shapes[name][0], device) for name in MOST_ROWS}
        self.done |= {"routed": counter(device), "experts": few_token_experts.counters(size.hidden, device)}
        self.norms, self.heads = rand(8, size.hidden, around=1.0, spread=0.02), rand(2, size.dim, around=1.0, spread=0.05)
        self.scale = torch.ones(size.experts, dtype=self.place.dtype, device=device)
        self.cache = rand(2, self.slots, size.kv_heads, size.dim, spread=size.dim**-0.5)


class Chain:
    """``layers`` layers of a step with ``requests`` requests, each with ``keys`` cached keys and ``queries`` new tokens."""

    def __init__(self, place: Place, requests: int, keys: int, queries: int = 1, layers: int = LAYERS) -> None:
        self.size = size = place.pick(Sizes(), TINY)
        self.queries, tokens, device = queries, requests * queries, place.device
        self.layers = [Layer(place, size, requests * (keys + queries) + 1) for _ in range(layers)]
        self.side = torch.cuda.Stream() if device == "cuda" else None
        self.indptr = torch.arange(requests + 1, device=device, dtype=torch.int32) * keys
        self.indices = 1 + torch.randperm(requests * keys, device=device)
        self.slots = self.indices[keys - 1 :: keys].clone() if queries == 1 else 1 + requests * keys + torch.arange(tokens, device=device)
        self.positions = torch.full((tokens,), keys - 1, device=device)
        self.angles = torch.randn(keys, size.dim, device=device)
        self.start = place.rand(tokens, size.hidden)

    def run(self, way: Way) -> torch.Tensor:
        """Run one pass; returns the last layer's normed output."""
        residual, normed = self.start.clone(), self.start
        for layer in self.layers:
            residual, normed = self._layer(layer, way, residual, normed)
        return normed

    def _layer(self, layer: Layer, way: Way, residual: torch.Tensor, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size, norms = self.size, layer.norms

        def piece(name: str, compute: Callable[[], Made]) -> Made:
            if name in way.without and name in layer.ready:
                return layer.ready[name]
            layer.ready[name] = found = compute()
            return found

        def rope() -> Made:
            given = (qkv, self.positions, self.angles, layer.heads[0], layer.heads[1], size.heads, size.kv_heads, EPS)
            return qkv_norm_rope(*given, layer.cache[0], layer.cache[1], self.slots)

        def attention() -> Made:
            new = {"queries": self.queries, "k_new": k, "v_new": v} if self.queries > 1 else {}
            out = torch.empty_like(q)
            return (few_query_attention(q, layer.cache[0], layer.cache[1], self.indptr, self.indices, size.dim**-0.5, out=out, **new),)

        def end() -> Made:
            made = dual_tail(dense, experts, residual, (norms[4], norms[5], norms[6]), layer.heads[0, :1], EACH_EPS, norms[7])
            assert made[1] is not None
            return made[0], made[1]

        (qkv,) = piece("qkv", lambda: (self._product(layer, way, "qkv", normed),))
        q, k, v = piece("rope", rope)
        (attended,) = piece("attention", attention)
        (out,) = piece("o", lambda: (self._product(layer, way, "o", attended.view(len(attended), -1)),))
        dense_in, residual, router_in, expert_in = piece("norms", lambda: triple_rmsnorm(out, residual, *norms[:4]))
        beside = self.side if way.overlap else None
        if beside:
            beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # None: the current one
            (dense,) = piece("dense", lambda: (self._dense(layer, way, dense_in),))
        routed = piece("router", lambda: self._route(layer, way, router_in))
        (experts,) = piece("experts", lambda: (self._experts(layer, expert_in, *routed),))
        if beside:
            torch.cuda.current_stream().wait_stream(beside)
        residual, following = piece("tail", end)
        return residual, following

    def _product(self, layer: Layer, way: Way, name: str, x: torch.Tensor, gated: bool = False) -> torch.Tensor:
        if name in way.ours and len(x) <= MOST_ROWS[name]:
            return few_row_linear(x, layer.weights[name], layer.done[name], gated=gated)
        out = torch.nn.functional.linear(x, layer.weights[name])
        return activation(out) if gated else out

    def _dense(self, layer: Layer, way: Way, x: torch.Tensor) -> torch.Tensor:
        return self._product(layer, way, "down", self._product(layer, way, "gate_up", x, gated=True))

    def _route(self, layer: Layer, way: Way, x: torch.Tensor) -> Made:
        """Router weights and expert ids, and for few tokens also the parts of their expert blocks."""
        topk = self.size.topk
        if not way.few or len(x) > MOST_TOKENS:
            return choose(self._product(layer, way, "router", x), layer.scale, topk)
        if way.routed and "router" in way.ours:
            _, shares, ids, blocks = routed_product(x, layer.weights["router"], layer.scale, topk, layer.done["routed"])
        else:
            shares, ids, blocks = expert_routing(self._product(layer, way, "router", x), layer.scale, topk)
        return shares, ids, blocks.expert, blocks.row, blocks.count

    def _experts(self, layer: Layer, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor, *blocks: torch.Tensor) -> torch.Tensor:
        given = (x, layer.weights["w13"], layer.weights["w2"], shares, ids)
        if len(x) > LARGEST_STEP:
            return many_token_experts(*given)
        return few_token_experts.few_token_experts(*given, layer.done["experts"], Blocks(*blocks)) if blocks else grouped_experts(*given)


def row(place: Place, requests: int, keys: int, queries: int) -> Row:
    """The row of one batch; its floor reads a layer's dense weights, the distinct experts of uniform routing and the keys once."""
    chain = Chain(place, requests, keys, queries)
    size = chain.size

    def way_of(way: Way) -> Call:
        return dependently(lambda: chain.run(way), way.dependent)

    dense = size.hidden * ((2 * size.heads + 2 * size.kv_heads) * size.dim + 3 * size.dense + size.experts)
    distinct = size.experts * (1 - (1 - size.topk / size.experts) ** (requests * queries))
    read = dense + distinct * 3 * size.inner * size.hidden + requests * keys * 2 * size.kv_heads * size.dim
    ways = {"ours, " + name: way_of(way) for name, way in WAYS.items()}
    return Row(ways, 2.0 * read * LAYERS, parts=LAYERS)


CASES = (
    Case(
        "chain",
        "a step's whole layers: as served; with GEMMs, experts and launches another way; without each piece; floor: all read once",
        {"requests": (1, 4, 16, 32), "keys": (512,), "queries": (1,)},
        row,
        {"requests": (2,), "keys": (5,)},
        sets=1,
        alike=False,  # a piece that is left out may be an input that has changed since
    ),
)
