"""Cases of a decoder layer's dense GEMMs, norms, tail and rotation, in the sizes of the released models and their assistants."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import starmap
from typing import Any

import torch

from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, candidates, dependently
from sglang_gemma4.benchmark.kernels.timer import Call
from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear
from sglang_gemma4.kernels.dense.gated_embedding import gated_embedding
from sglang_gemma4.kernels.dense.parts import Tile
from sglang_gemma4.kernels.norms.layer_tail import dual_tail, tail
from sglang_gemma4.kernels.norms.qkv_norm_rope import TokenTiles, qkv_norm_rope
from sglang_gemma4.kernels.norms.row_parts import RowTiles
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm

PRODUCTS: dict[str, tuple[int, int, bool]] = {
    "26B qkv, sliding": (8192, 2816, False),
    "26B qkv, full": (9216, 2816, False),
    "26B o, sliding": (2816, 4096, False),
    "26B o, full": (2816, 8192, False),
    "26B gate and up": (2112, 2816, True),
    "26B down": (2816, 2112, False),
    "26B router": (128, 2816, False),
    "assistant before": (1024, 5632, False),
    "assistant q": (4096, 1024, False),
    "assistant after": (2816, 1024, False),
    "E2B qkv, sliding": (2560, 1536, False),
    "E2B o, sliding": (1536, 2048, False),
    "E2B gate and up": (6144, 1536, True),
    "E2B down": (1536, 6144, False),
    "E2B per-layer gate": (256, 1536, False),
    "E2B per-layer projection": (1536, 256, False),
    "E2B gate and up, wide": (12288, 1536, True),
    "E2B down, wide": (1536, 12288, False),
    "E4B qkv, sliding": (3072, 2560, False),
    "E4B q, sliding": (2048, 2560, False),
    "E4B o, sliding": (2560, 2048, False),
    "E4B gate and up": (10240, 2560, True),
    "E4B down": (2560, 10240, False),
    "E4B per-layer gate": (256, 2560, False),
    "E4B per-layer projection": (2560, 256, False),
    "12B qkv, sliding": (8192, 3840, False),
    "12B qkv, full": (9216, 3840, False),
    "12B o, sliding": (3840, 4096, False),
    "12B o, full": (3840, 8192, False),
    "12B gate and up": (15360, 3840, True),
    "12B down": (3840, 15360, False),
    "12B assistant before": (1024, 7680, False),
    "12B assistant after": (3840, 1024, False),
    "31B qkv, sliding": (16384, 5376, False),
    "31B qkv, full": (20480, 5376, False),
    "31B o, sliding": (5376, 8192, False),
    "31B o, full": (5376, 16384, False),
    "31B gate and up": (21504, 5376, True),
    "31B down": (5376, 21504, False),
}
"""Outputs, width, gated. E2B's layers that share KV have a wide FFN; between its projections 12B's assistant equals 26B-A4B's."""
LINEAR_TILES = (
    (64, 128, 4, 3), (64, 128, 4, 4), (64, 64, 4, 4), (64, 64, 4, 6), (64, 256, 4, 3), (128, 64, 4, 4), (128, 64, 8, 4), (128, 128, 8, 3),
    (32, 128, 4, 4), (32, 256, 4, 3), (32, 128, 2, 4), (32, 64, 4, 8), (16, 128, 4, 4), (16, 256, 4, 4), (16, 512, 4, 3),
)  # fmt: skip
"""Candidate tiles: outputs, depth, warps, stages."""
PROGRAMS = range(48, 800)
"""Programs of a launch: fewer leave SMs of the largest GPUs idle, more make parts too short to be worth adding up."""
ROW_TILES = (
    (1, 1024, 4, 1), (1, 512, 2, 1), (1, 256, 1, 1), (4, 1024, 4, 2), (4, 512, 2, 1), (8, 1024, 4, 3),
    (16, 1024, 4, 2), (1, 256, 2, 1), (4, 256, 1, 1), (4, 4096, 8, 2), (4, 1024, 4, 1), (1, 1024, 2, 1),
)  # fmt: skip
TOKEN_TILES = ((1, 4), (1, 2), (4, 4), (1, 8), (4, 2), (2, 4))
"""Candidate layouts for many rows; those in use were chosen in runs/2026-11-23-row-tiles."""
EPS = 1e-6
EACH_EPS = (EPS, EPS, EPS)
MANY_ROWS = 1024
"""Number of rows from which the layouts for many rows are tried."""
LARGEST_STEP = 320
"""Most rows of a decode or verify step; more rows belong to a prefill."""


def linear(place: Place, product: str, rows: int) -> Row:
    """The row of one GEMM: cuBLAS, followed by SGLang's activation if gated, and ours."""
    outputs, width, gated = place.pick(PRODUCTS[product], (64, 128, PRODUCTS[product][2]))
    weight, x = place.rand(outputs * (1 + gated), width, spread=width**-0.5), place.rand(rows, width)
    done = counters(outputs, x.device)

    def cublas() -> torch.Tensor:
        out = torch.nn.functional.linear(x, weight)
        return activation(out) if gated else out

    def ours(tile: Tile | None = None) -> torch.Tensor:
        return few_row_linear(x, weight, done, gated=gated, tile=tile)

    tiles = [
        Tile(each, depth, parts, warps, stages)
        for each, depth, warps, stages in LINEAR_TILES
        for parts in (1, 2, 3, 4, 5, 6, 8, 10, 12)
        if width // depth >= 2 * parts and width % depth == 0 and not (gated and each * depth > 8192)
        if place.tiny or -(-outputs // each) * parts in PROGRAMS
    ]
    early = {name: dependently(call) for name, call in candidates(ours, tiles).items()}
    ways = {"cuBLAS": cublas, "ours, each alone": ours, "ours": dependently(ours)}
    return Row(ways, 2.0 * weight.numel(), 2.0 * rows * weight.numel(), early)


def activation(x: torch.Tensor) -> torch.Tensor:
    """SGLang's ``gelu_tanh(gate) * up``, or torch's without a GPU."""
    if not x.is_cuda:
        gate, up = x.float().chunk(2, dim=-1)
        return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(x.dtype)
    from sglang.srt.layers.activation import gelu_tanh_and_mul

    out = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype, device=x.device)
    gelu_tanh_and_mul(x, out)
    return out


def after_attention(place: Place, rows: int, width: int, moe: bool) -> Row:
    """The row of the norms between attention and the FFN; the residual is updated in place."""
    h, residual = place.rand(rows, width), place.rand(rows, width)
    weights = [place.rand(width, around=1.0) for _ in range(4 if moe else 2)]

    def stock() -> None:
        from sglang.srt.layers.layernorm import fused_add_rmsnorm, rmsnorm

        dense = rmsnorm(h, weights[0], EPS)
        fused_add_rmsnorm(dense, residual, weights[1], EPS)
        for weight in weights[2:]:
            rmsnorm(residual, weight, EPS)

    ours = partial(triple_rmsnorm, h, residual, *weights)
    moved = 2 * width * (rows * (2 + len(weights)) + len(weights))
    return _row(stock, ours, moved, rows, starmap(RowTiles, ROW_TILES))


def layer_end(place: Place, rows: int, width: int, moe: bool) -> Row:
    """The row of a layer's end together with the next layer's input norm."""
    x, other, residual = (place.rand(rows, width) for _ in range(3))
    one, two, three, following = (place.rand(width, around=1.0) for _ in range(4))
    scalar = place.rand(1)

    def stock() -> torch.Tensor:
        from sglang.kernels.ops.layernorm.gemma4_fused_ops import gemma_dual_rmsnorm_residual_scalar, gemma_rmsnorm_residual_scalar
        from sglang.srt.layers.layernorm import rmsnorm

        if moe:
            out = gemma_dual_rmsnorm_residual_scalar(x, one, other, two, three, residual, scalar, *EACH_EPS)
        else:
            out = gemma_rmsnorm_residual_scalar(x, one, residual, scalar, EPS)
        normed: torch.Tensor = rmsnorm(out, following, EPS)
        return normed

    def ours(tiles: RowTiles | None = None) -> Any:
        if moe:
            return dual_tail(x, other, residual, (one, two, three), scalar, EACH_EPS, following, tiles=tiles)[1]
        return tail(x, residual, one, EPS, scalar, following, tiles=tiles)[1]

    moved = 2 * width * (rows * (5 if moe else 4) + (4 if moe else 2))
    return _row(stock, ours, moved, rows, starmap(RowTiles, ROW_TILES))


def embedding_tail(place: Place, rows: int, width: int, narrow: int = 256, layers: int = 35) -> Row:
    """The row of E2B's and E4B's tail with per-layer embeddings, without its two GEMMs: SGLang needs eight launches, ours three."""
    dense, residual, added, gate = place.rand(rows, width), place.rand(rows, width), place.rand(rows, width), place.rand(rows, narrow)
    embedding = place.rand(rows, layers, narrow)[:, layers // 2]
    one, two, following = (place.rand(width, around=1.0) for _ in range(3))
    scalar = place.rand(1)

    def stock() -> torch.Tensor:
        from sglang.srt.layers.layernorm import rmsnorm

        stream = rmsnorm(dense, one, EPS) + residual
        _ = torch.nn.functional.gelu(gate, approximate="tanh") * embedding
        out = (stream + rmsnorm(added, two, EPS)) * scalar
        normed: torch.Tensor = rmsnorm(out, following, EPS)
        return normed

    def ours() -> Any:
        stream, _ = tail(dense, residual, one, EPS, rounded=True)
        gated_embedding(gate, embedding)
        return tail(added, stream, two, EPS, scalar, following, rounded=True)[1]

    return Row({"SGLang": stock, "ours": ours}, 2 * (width * (rows * 7 + 3) + 3 * rows * narrow))


def rotation(place: Place, rows: int, heads: int, kv_heads: int, dim: int, shared: bool = False) -> Row:
    """The row of norms and rotation of q, k and v, with a verify step's copies of k and v; a prefill's also go into the KV pool.

    ``shared``: the layer reads another layer's KV.
    """
    pool = rows > LARGEST_STEP
    qkv = place.rand(rows, (heads + 2 * kv_heads) * dim)
    one, two = place.rand(dim, around=1.0), place.rand(dim, around=1.0)
    positions = torch.randint(0, 8192, (rows,), device=place.device)
    angles = torch.rand(8192, dim // 2, device=place.device) * 7
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1)
    q, k, v = qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
    caches = [place.rand(rows + 1, kv_heads, dim) for _ in range(2)] if pool else []
    slots = 1 + torch.randperm(rows, device=place.device)
    where: dict[str, Any] = {"k_cache": caches[0], "v_cache": caches[1], "slots": slots} if pool else {}

    def stock() -> None:
        from sglang.kernels.ops.attention.rope import apply_rope_with_cos_sin_cache_inplace
        from sglang.kernels.ops.kvcache.kvcache import store_cache
        from sglang.kernels.ops.layernorm.gemma4_fused_ops import gemma_qkv_rmsnorm

        gemma_qkv_rmsnorm(q, None if shared else k, None if shared else v, one, None if shared else two, heads, kv_heads, dim, EPS)
        keys = torch.zeros_like(q[:, : kv_heads * dim]) if shared else k
        apply_rope_with_cos_sin_cache_inplace(
            positions=positions, q=q.view(rows, -1, dim), k=keys.view(rows, -1, dim), cos_sin_cache=cos_sin, is_neox=True
        )
        if not shared:
            adjacent = k.contiguous(), v.contiguous()
            if pool:
                store_cache(*adjacent, caches[0].flatten(1), caches[1].flatten(1), slots)

    every = heads + (0 if shared else 2 * kv_heads)
    ours = partial(qkv_norm_rope, qkv, positions, cos_sin, one, two, heads, 0 if shared else kv_heads, EPS, **where)
    moved = 4 * rows * every * dim + rows * dim * 4 + (4 * rows * kv_heads * dim if pool else 0)
    return _row(stock, ours, moved, rows, starmap(TokenTiles, TOKEN_TILES))


PARTS: dict[str, tuple[Callable[..., Row], bool]] = {
    "26B after attention": (partial(after_attention, width=2816, moe=True), True),
    "26B layer tail": (partial(layer_end, width=2816, moe=True), True),
    "26B q/k/v, sliding": (partial(rotation, heads=16, kv_heads=8, dim=256), True),
    "26B q/k/v, full": (partial(rotation, heads=16, kv_heads=2, dim=512), True),
    "E2B after attention": (partial(after_attention, width=1536, moe=False), False),
    "12B after attention": (partial(after_attention, width=3840, moe=False), True),
    "12B layer tail": (partial(layer_end, width=3840, moe=False), True),
    "12B q/k/v, full": (partial(rotation, heads=16, kv_heads=1, dim=512), True),
    "31B after attention": (partial(after_attention, width=5376, moe=False), True),
    "31B layer tail": (partial(layer_end, width=5376, moe=False), True),
    "31B q/k/v, sliding": (partial(rotation, heads=32, kv_heads=16, dim=256), True),
    "31B q/k/v, full": (partial(rotation, heads=32, kv_heads=4, dim=512), True),
    "E2B per-layer embedding tail": (partial(embedding_tail, width=1536), False),
    "E2B q/k/v, sliding": (partial(rotation, heads=8, kv_heads=1, dim=256), False),
    "E2B q/k/v, sliding, shared KV": (partial(rotation, heads=8, kv_heads=1, dim=256, shared=True), False),
    "E2B q/k/v, full, shared KV": (partial(rotation, heads=8, kv_heads=1, dim=512, shared=True), False),
}
"""The function that makes the row, and whether prefill sizes are measured too. 12B's sliding layers have 26B-A4B's heads."""


def part(place: Place, part: str, rows: int) -> Row | None:
    """The row of one of :data:`PARTS`; None for prefill sizes that are not measured."""
    make, long = PARTS[part]
    return make(place, rows) if long or rows <= LARGEST_STEP else None


def _row(stock: Call, ours: Callable[..., Any], moved: float, rows: int, tiles: Iterable[Any]) -> Row:
    tried = candidates(lambda tile: ours(tiles=tile), tiles) if rows >= MANY_ROWS else {}
    return Row({"SGLang": stock, "ours": ours}, moved, tiles=tried)


CASES = (
    Case(
        "linear",
        "a small-M dense GEMM: cuBLAS (with the activation where gated), ours alone, ours as in a step; floor: the weight read once",
        {"product": tuple(PRODUCTS), "rows": (1, 4, 16, 32)},
        linear,
        {"product": ("26B down", "26B gate and up"), "rows": (3,)},
    ),
    Case(
        "layer-parts",
        "norms, layer tail and rotation: SGLang's launches, ours; above 320 rows as in a prefill, written into the KV pool; floor: bytes",
        {"part": tuple(PARTS), "rows": (1, 4, 32, 80, 320, 1024, 8192)},
        part,
        {"part": tuple(PARTS), "rows": (3,)},
        sets=4,
    ),
)
