"""The case of a dense model's layers in a step: microseconds per layer as served, with some GEMMs replaced, and with torch's.

It runs two sliding layers at full size, each with its own weights, in one CUDA graph, with their norms, rotation and
attention, and with per-layer embeddings if the model has them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, dependently, short
from sglang_gemma4.benchmark.kernels.layers import EPS, activation
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention
from sglang_gemma4.kernels.card import card, multiprocessors
from sglang_gemma4.kernels.dense.few_row_linear import MOST_ROWS, counters, few_row_linear, measured_tile
from sglang_gemma4.kernels.dense.gated_embedding import gated_embedding
from sglang_gemma4.kernels.dense.parts import Tile
from sglang_gemma4.kernels.norms.layer_tail import tail
from sglang_gemma4.kernels.norms.qkv_norm_rope import qkv_norm_rope
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm

LAYERS = 2
QUERIES = 4
"""Tokens of a request in a verify step."""
WINDOW = 512


@dataclass(frozen=True)
class Sizes:
    """Sizes of a sliding layer; ``narrow`` is the width of a per-layer embedding, 0 if the model has none."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    dim: int
    narrow: int


MODELS = {
    "E4B": Sizes(2560, 10240, 8, 2, 256, 256),
    "E2B": Sizes(1536, 6144, 8, 1, 256, 256),
    "E2B, wide": Sizes(1536, 12288, 8, 1, 256, 256),
    "12B": Sizes(3840, 15360, 16, 8, 256, 0),
    "31B": Sizes(5376, 21504, 32, 16, 256, 0),
}
TINY = Sizes(64, 128, 4, 2, 16, 32)
PRODUCTS = ("qkv", "o", "gate_up", "down", "gate", "projection")
Tiles = dict[str, Tile | None]
"""Tiles of the GEMMs that are ours; None lets the kernel choose. The other GEMMs are torch's."""
TRIED: dict[str, dict[str, tuple[Tile, ...]]] = {
    "E4B": {
        "qkv": (Tile(64, 128, 5), Tile(64, 64, 4), Tile(64, 128, 3)),
        "o": (Tile(64, 128, 6, stages=3), Tile(64, 256, 4, stages=3), Tile(64, 128, 4)),
        "gate_up": (Tile(64, 128, 1, stages=3), Tile(32, 128, 1), Tile(64, 64, 1, stages=6)),
        "down": (Tile(64, 128, 6), Tile(64, 128, 5, stages=3), Tile(64, 64, 6)),
        "gate": (Tile(16, 128, 8), Tile(16, 128, 5)),
    },
    "E2B": {"gate_up": (Tile(64, 128, 1, stages=3), Tile(64, 64, 1)), "down": (Tile(64, 128, 6),)},
    "E2B, wide": {"gate_up": (Tile(64, 128, 1, stages=3),), "down": (Tile(64, 128, 6), Tile(64, 128, 10))},
    "12B": {
        "qkv": (Tile(64, 128, 1), Tile(64, 128, 2)),
        "o": (Tile(64, 128, 4), Tile(64, 128, 2)),
        "gate_up": (Tile(64, 128, 1), Tile(64, 128, 1, stages=3), Tile(32, 128, 1, warps=2)),
        "down": (Tile(64, 128, 3), Tile(64, 128, 4), Tile(64, 128, 6)),
    },
    "31B": {"gate_up": (Tile(64, 128, 1), Tile(32, 128, 1, warps=2)), "down": (Tile(64, 128, 3), Tile(64, 128, 6))},
}
"""Tiles to try for one GEMM instead of the kernel's own choice; each was fast by itself."""


class Chain:
    """Two layers of a verify step for ``requests`` requests with :data:`WINDOW` cached keys each."""

    def __init__(self, place: Place, size: Sizes, requests: int) -> None:
        self.size, tokens, device, rand = size, requests * QUERIES, place.device, place.rand
        keys = place.pick(WINDOW, 5)
        shapes = {
            "qkv": ((size.heads + 2 * size.kv_heads) * size.dim, size.hidden),
            "o": (size.hidden, size.heads * size.dim),
            "gate_up": (2 * size.inner, size.hidden),
            "down": (size.hidden, size.inner),
        }
        if size.narrow:
            shapes |= {"gate": (size.narrow, size.hidden), "projection": (size.hidden, size.narrow)}
        self.bytes = 2.0 * (sum(rows * width for rows, width in shapes.values()) + requests * keys * 2 * size.kv_heads * size.dim)
        self.weights = [{name: rand(*shape, spread=shape[1] ** -0.5) for name, shape in shapes.items()} for _ in range(LAYERS)]
        self.done = [{name: counters(shape[0], self.weights[0]["o"].device) for name, shape in shapes.items()} for _ in range(LAYERS)]
        self.caches = [rand(2, requests * keys + 1, size.kv_heads, size.dim, spread=size.dim**-0.5) for _ in range(LAYERS)]
        self.norms, self.heads = rand(5, size.hidden, around=1.0, spread=0.02), rand(2, size.dim, around=1.0, spread=0.05)
        self.embedding, self.scalar = rand(tokens, LAYERS, size.narrow or 1), rand(1, around=1.0)
        self.indptr = torch.arange(requests + 1, device=device, dtype=torch.int32) * keys
        self.indices = 1 + torch.randperm(requests * keys, device=device)
        self.positions = torch.full((tokens,), keys - 1, device=device)
        self.angles = torch.randn(keys, size.dim, device=device)
        self.start = rand(tokens, size.hidden)

    def run(self, tiles: Tiles) -> torch.Tensor:
        """Run one pass; returns the last layer's normed output."""
        residual, normed = self.start.clone(), self.start
        for number in range(LAYERS):
            residual, normed = self._layer(number, tiles, residual, normed)
        return normed

    def _layer(self, number: int, tiles: Tiles, residual: torch.Tensor, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size, norms, cache = self.size, self.norms, self.caches[number]

        def product(name: str, x: torch.Tensor, gated: bool = False) -> torch.Tensor:
            weight = self.weights[number][name]
            if name in tiles and len(x) <= MOST_ROWS:
                return few_row_linear(x, weight, self.done[number][name], gated=gated, tile=tiles[name])
            out = torch.nn.functional.linear(x, weight)
            return activation(out) if gated else out

        given = (self.positions, self.angles, self.heads[0], self.heads[1], size.heads, size.kv_heads, EPS)
        q, k, v = qkv_norm_rope(product("qkv", normed), *given)
        few_query_attention(
            q, cache[0], cache[1], self.indptr, self.indices, 1.0, out=(out := torch.empty_like(q)), queries=QUERIES, k_new=k, v_new=v,
            window=WINDOW - 1,
        )  # fmt: skip
        dense_in, residual = triple_rmsnorm(product("o", out.view(len(out), -1)), residual, norms[0], norms[1])[:2]
        dense = product("down", product("gate_up", dense_in, gated=True))
        if not size.narrow:
            residual, following = tail(dense, residual, norms[2], EPS, self.scalar, norms[4])
        else:
            stream, _ = tail(dense, residual, norms[2], EPS, rounded=True)
            embedded = product("projection", gated_embedding(product("gate", stream), self.embedding[:, number]))
            residual, following = tail(embedded, stream, norms[3], EPS, self.scalar, norms[4], rounded=True)
        assert following is not None
        return residual, following


def row(place: Place, model: str, requests: int) -> Row:
    """The row of one batch; its floor reads a layer's weights and keys once."""
    chain = Chain(place, place.pick(MODELS[model], TINY), requests)
    names = [name for name in PRODUCTS if name in chain.weights[0]]
    ours: Tiles = dict.fromkeys(names)

    def way(tiles: Tiles, dependent: bool = True) -> Callable[[], object]:
        return dependently(lambda: chain.run(tiles), dependent)

    def begun(late: bool) -> Tiles:
        """Our own choice of tiles, but with a fixed moment at which the next launch's programs start."""
        device, shapes = chain.start.device, {name: chain.weights[0][name].shape for name in names}
        sms, of = multiprocessors(device, elsewhere=8), card(device)
        gated = {name: name == "gate_up" for name in names}
        return {
            name: replace(measured_tile(outputs // (1 + gated[name]), width, sms, gated[name], of), late=late)
            for name, (outputs, width) in shapes.items()
        }

    ways = {"torch": way({}), "ours, no dependent launch": way(ours, False)}
    ways |= {"ours, next at once": way(begun(late=False)), "ours, next when read": way(begun(late=True))}
    ways |= {f"ours, {name} torch's": way({each: None for each in names if each != name}) for name in names}
    ways["ours"] = way(ours)
    tried: dict[str, tuple[Tile, ...]] = {} if place.tiny else TRIED[model]
    tiles = {f"ours, {name} {short(tile)}": way(ours | {name: tile}) for name, each in tried.items() for tile in each}
    return Row(ways, chain.bytes * LAYERS, tiles=tiles, parts=LAYERS)


CASES = (
    Case(
        "dense-chain",
        "a verify step's whole layers of a dense model: torch's GEMMs, ours, ours with one changed; floor: all read once",
        {"model": tuple(MODELS), "requests": (1, 4, 8, 16)},
        row,
        {"model": ("E4B",), "requests": (2,)},
        sets=1,
    ),
)
