"""A decode step's layers on this card, whole: µs a layer with the package's launches, with some of them another way, and without some.

    python -m sglang_gemma4.benchmark.layer_chain [--requests 1 4 16 32] [--keys 512] > chain.md

Sliding layers of 26B-A4B at full size, four with weights of their own, in one CUDA graph, one new token a request. What a launch costs
there is not what it takes by itself: kernels begin while the one before ends, and the dense FFN runs beside the experts. "without" leaves
a piece out, its output standing ready: what the layer would be if the piece were free. It needs no engine and no model: a minute.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import triton

from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.kernels import dependent_launch
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.dense import few_row_linear as few_row_linear_kernel
from sglang_gemma4.kernels.dense.few_row_linear import Tile, counters, few_row_linear, tile_for
from sglang_gemma4.kernels.experts import few_token_experts
from sglang_gemma4.kernels.experts.expert_blocks import Blocks
from sglang_gemma4.kernels.experts.expert_routing import MOST_TOKENS, expert_routing
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.kernels.experts.routed_product import counter as routed_product_counter
from sglang_gemma4.kernels.experts.routed_product import routed_product
from sglang_gemma4.kernels.norms.layer_tail import dual_tail
from sglang_gemma4.kernels.norms.qkv_norm_rope import qkv_norm_rope
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm

LAYERS = 4
EPS = (1e-6, 1e-6, 1e-6)
PRODUCTS = ("qkv", "o", "gate_up", "down", "router")
MOST_ROWS = {"qkv": 16, "o": 16, "gate_up": 32, "down": 1, "router": 32}
"""Up to which a product is ours as served (``models/layers/few_row_linear.py``, which needs SGLang; a test compares them)."""
PIECES = ("qkv", "rope", "attention", "o", "norms", "dense", "router", "experts", "tail")


@dataclass(frozen=True)
class Sizes:
    """Of a MoE layer; the defaults are a sliding layer's of 26B-A4B."""

    hidden: int = 2816
    dense: int = 2112
    inner: int = 704
    experts: int = 128
    topk: int = 8
    heads: int = 16
    kv_heads: int = 8
    dim: int = 256
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"


@dataclass(frozen=True)
class Way:
    """How a layer is computed."""

    ours: tuple[str, ...] = PRODUCTS
    """Products through ``few_row_linear`` up to :data:`MOST_ROWS`; the others are torch's."""
    always: tuple[str, ...] = ()
    """Those that are ours with any number of rows that the kernel takes."""
    few: bool = True
    """Experts of up to 16 tokens in two launches, else ``grouped_experts`` behind a top-k of its own."""
    routed: bool = True
    """The router's product and choice for up to 16 tokens in one launch."""
    overlap: bool = True
    """The dense FFN on a stream of its own."""
    launch: str = "next"
    """Dependent launch: "off", "next" or "early"."""
    programs: float = 1
    """Of our products, on each SM."""
    tiles: tuple[tuple[str, Tile], ...] = ()
    """Of our products, where not the usual ones."""
    without: tuple[str, ...] = ()


@dataclass
class Layer:
    """Weights, counters and keys of one layer; ``ready`` holds each piece's output for a pass that leaves it out."""

    sizes: Sizes
    requests: int
    keys: int
    queries: int = 1
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    done: dict[str, torch.Tensor] = field(default_factory=dict)
    ready: dict[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.sizes
        shapes = {
            "qkv": ((size.heads + 2 * size.kv_heads) * size.dim, size.hidden),
            "o": (size.hidden, size.heads * size.dim),
            "gate_up": (2 * size.dense, size.hidden),
            "down": (size.hidden, size.dense),
            "router": (size.experts, size.hidden),
            "w13": (size.experts, 2 * size.inner, size.hidden),
            "w2": (size.experts, size.hidden, size.inner),
        }
        self.weights = {name: self.random(*shape) for name, shape in shapes.items()}
        self.done = {name: counters(shapes[name][0], self.weights[name].device) for name in PRODUCTS}
        self.done["routed"] = routed_product_counter(self.weights["router"].device)
        self.done["experts"] = few_token_experts.counters(size.hidden, self.weights["w2"].device)
        self.norms, self.heads = 1 + self.random(8, size.hidden), 1 + self.random(2, size.dim)
        self.scale = torch.ones(size.experts, dtype=size.dtype, device=size.device)
        slots = self.requests * (self.keys + self.queries) + 1
        self.cache = self.random(2, slots, size.kv_heads, size.dim)

    def random(self, *shape: int) -> torch.Tensor:
        """As large as keeps sums near one."""
        made = torch.empty(shape, dtype=self.sizes.dtype, device=self.sizes.device)
        return made.normal_(std=shape[-1] ** -0.5)


class Chain:
    """``LAYERS`` layers for ``requests`` requests with ``keys`` cached keys each."""

    def __init__(self, sizes: Sizes, requests: int, keys: int, layers: int = LAYERS, queries: int = 1) -> None:
        self.sizes, self.layers = sizes, [Layer(sizes, requests, keys, queries) for _ in range(layers)]
        self.queries, tokens = queries, requests * queries
        device = sizes.device
        self.side = torch.cuda.Stream() if device == "cuda" else None
        self.sms = torch.cuda.get_device_properties(device).multi_processor_count if device == "cuda" else 8
        self.indptr = torch.arange(requests + 1, device=device, dtype=torch.int32) * keys
        self.indices = 1 + torch.randperm(requests * keys, device=device)
        self.slots = self.indices[keys - 1 :: keys].clone() if queries == 1 else 1 + requests * keys + torch.arange(tokens, device=device)
        self.positions = torch.full((tokens,), keys - 1, device=device)
        self.angles = torch.randn(keys, sizes.dim, device=device)
        self.start = torch.randn(tokens, sizes.hidden, device=device).to(sizes.dtype)

    def run(self, way: Way) -> torch.Tensor:
        """One pass; the last layer's normed output."""
        residual, normed = self.start.clone(), self.start
        for layer in self.layers:
            residual, normed = self._layer(layer, way, residual, normed)
        return normed

    def _layer(self, layer: Layer, way: Way, residual: torch.Tensor, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size, norms = self.sizes, layer.norms

        def piece(name: str, compute: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
            if name in way.without and name in layer.ready:
                return layer.ready[name]
            layer.ready[name] = found = compute()
            return found

        def rope() -> tuple[torch.Tensor, ...]:
            given = (qkv, self.positions, self.angles, layer.heads[0], layer.heads[1], size.heads, size.kv_heads, EPS[0])
            return qkv_norm_rope(*given, layer.cache[0], layer.cache[1], self.slots)

        def attention() -> tuple[torch.Tensor, ...]:
            out = torch.empty_like(q)
            new = {"queries": self.queries, "k_new": k, "v_new": v} if self.queries > 1 else {}
            return (few_query_attention(q, layer.cache[0], layer.cache[1], self.indptr, self.indices, size.dim**-0.5, out=out, **new),)

        (qkv,) = piece("qkv", lambda: (self._product(layer, way, "qkv", normed),))
        q, k, v = piece("rope", rope)
        (attended,) = piece("attention", attention)
        (out,) = piece("o", lambda: (self._product(layer, way, "o", attended.view(len(attended), -1)),))
        dense_in, residual, router_in, expert_in = piece("norms", lambda: triple_rmsnorm(out, residual, *norms[:4]))
        if way.overlap and self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                (dense,) = piece("dense", lambda: (self._dense(layer, way, dense_in),))
        else:
            (dense,) = piece("dense", lambda: (self._dense(layer, way, dense_in),))
        routed = piece("router", lambda: self._route(layer, way, router_in))
        (experts,) = piece("experts", lambda: (self._experts(layer, way, expert_in, *routed),))
        if way.overlap and self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        weights = (norms[4], norms[5], norms[6])
        scalar = layer.heads[0, :1]
        residual, following = piece("tail", lambda: _both(dual_tail(dense, experts, residual, weights, scalar, EPS, norms[7])))
        return residual, following

    def _product(self, layer: Layer, way: Way, name: str, x: torch.Tensor) -> torch.Tensor:
        if not self._is_ours(way, name, x):
            return torch.nn.functional.linear(x, layer.weights[name])
        return self._ours(layer, way, name, x)

    def _ours(self, layer: Layer, way: Way, name: str, x: torch.Tensor, gated: bool = False) -> torch.Tensor:
        weight = layer.weights[name]
        usual = tile_for(weight.shape[0] // (2 if gated else 1), weight.shape[1], round(way.programs * self.sms), gated)
        tile = dict(way.tiles).get(name, usual)
        return few_row_linear(x, weight, layer.done[name], gated=gated, tile=tile)

    def _is_ours(self, way: Way, name: str, x: torch.Tensor) -> bool:
        most = few_row_linear_kernel.MOST_ROWS if name in way.always else MOST_ROWS[name] if name in way.ours else 0
        return len(x) <= most

    def _dense(self, layer: Layer, way: Way, x: torch.Tensor) -> torch.Tensor:
        if self._is_ours(way, "gate_up", x):
            acted = self._ours(layer, way, "gate_up", x, gated=True)
        else:
            acted = gelu_and_mul(torch.nn.functional.linear(x, layer.weights["gate_up"]))
        return self._product(layer, way, "down", acted)

    def _route(self, layer: Layer, way: Way, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Shares and ids, and for few tokens what their blocks are made of."""
        topk = self.sizes.topk
        if not way.few or len(x) > MOST_TOKENS:
            return choice(self._product(layer, way, "router", x), layer.scale, topk)
        if way.routed and "router" in way.ours:
            _, shares, ids, blocks = routed_product(x, layer.weights["router"], layer.scale, topk, layer.done["routed"])
        else:
            shares, ids, blocks = expert_routing(self._product(layer, way, "router", x), layer.scale, topk)
        return shares, ids, blocks.expert, blocks.row, blocks.count

    def _experts(
        self, layer: Layer, way: Way, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor, *blocks: torch.Tensor
    ) -> torch.Tensor:
        given = (x, layer.weights["w13"], layer.weights["w2"], shares, ids)
        if blocks:
            return few_token_experts.few_token_experts(*given, layer.done["experts"], Blocks(*blocks))
        return grouped_experts(*given)


def _both(made: tuple[torch.Tensor, torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
    assert made[1] is not None
    return made[0], made[1]


def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """SGLang's activation, in torch where there is no card."""
    if not x.is_cuda:
        gate, up = x.float().chunk(2, dim=-1)
        return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(x.dtype)
    from sglang.srt.layers.activation import gelu_tanh_and_mul

    out = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype, device=x.device)
    gelu_tanh_and_mul(x, out)
    return out


def choice(logits: torch.Tensor, scale: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """SGLang's launch for weights and ids of a router's logits."""
    from sglang.kernels.ops.moe.gemma4_routing import gemma4_fused_routing

    found: tuple[torch.Tensor, torch.Tensor] = gemma4_fused_routing(logits, scale, topk)
    return found


def ways() -> dict[str, Way]:
    """By what they are called in the table."""
    usual = Way()
    return {
        "as served": usual,
        **{f"{name} torch's": replace(usual, ours=tuple(each for each in PRODUCTS if each != name)) for name in PRODUCTS},
        "only the router's ours": replace(usual, ours=("router",)),
        "no product ours": replace(usual, ours=()),
        "every down ours": replace(usual, always=("down",)),
        "two programs an SM": replace(usual, programs=2),
        "weights early": replace(usual, launch="early"),
        "no dependent launch": replace(usual, launch="off"),
        "no overlap": replace(usual, overlap=False),
        "grouped experts": replace(usual, few=False),
        "router's product and choice apart": replace(usual, routed=False),
        **{f"without {piece}": replace(usual, without=(piece,)) for piece in PIECES},
    }


def measure(chain: Chain, way: Way, rounds: int) -> float:
    """Microseconds a layer."""
    dependent_launch.want(way.launch != "off")
    dependent_launch.want_early(way.launch == "early")
    try:
        return microseconds([partial(chain.run, way)], rounds) / len(chain.layers)
    finally:
        dependent_launch.want(False)
        dependent_launch.want_early(False)


def floor(sizes: Sizes, requests: int, keys: int, bandwidth: float, queries: int = 1) -> float:
    """Microseconds to read a layer's dense weights, the distinct experts of uniform routing and the keys once."""
    width, heads = sizes.hidden, sizes.heads + 2 * sizes.kv_heads
    dense = width * (heads * sizes.dim + sizes.heads * sizes.dim + 3 * sizes.dense + sizes.experts)
    distinct = sizes.experts * (1 - (1 - sizes.topk / sizes.experts) ** (requests * queries))
    read = dense + distinct * 3 * sizes.inner * width + requests * keys * 2 * sizes.kv_heads * sizes.dim
    return 2 * read / bandwidth / 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 4, 16, 32], metavar="N", help="in a step, one new token each")
    parser.add_argument("--keys", type=int, default=512, metavar="N", help="cached keys of each request")
    parser.add_argument("--queries", type=int, default=1, metavar="N", help="new tokens of each request; 4 is a verify step's")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="replays of each graph; the median is shown")
    parser.add_argument("--bandwidth", type=float, default=4288.0, metavar="GB/S", help="of the memory (default: an H200's, measured)")
    options = parser.parse_args()
    if not torch.cuda.is_available() or triton.knobs.runtime.interpret:
        raise SystemExit("layer_chain needs a CUDA card")
    sizes = Sizes()
    chains = {requests: Chain(sizes, requests, options.keys, queries=options.queries) for requests in options.requests}
    print("| requests | " + " | ".join(map(str, chains)) + " |\n|" + " --- |" * (1 + len(chains)))
    least = [f"{floor(sizes, requests, options.keys, options.bandwidth, options.queries):.1f}" for requests in chains]
    print(f"| everything read once | {' | '.join(least)} |")
    for name, way in ways().items():
        cells = [f"{measure(chain, way, options.rounds):.1f}" for chain in chains.values()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
