"""Norms and element-wise kernels of a decoder layer on this card: what they replace beside ours and the time to move the bytes once.

    python -m sglang_gemma4.benchmark.layer_times [--rows 1 4 32 80 320 8192] > times.md

More than 320 rows are a prefill's: of 26B-A4B alone, keys and values written into the pool too, which for stock is a launch more. Every
cell is timed in a CUDA graph of calls over several sets of tensors in turn; the median of the rounds. The bytes are those of the
activations in and out and of the weights, each once.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.kernels.dense.gated_embedding import gated_embedding
from sglang_gemma4.kernels.norms.layer_tail import dual_tail, tail
from sglang_gemma4.kernels.norms.qkv_norm_rope import qkv_norm_rope
from sglang_gemma4.kernels.norms.row_parts import RowTiles
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm

SETS = 4
EPS = 1e-6
EACH_EPS = (EPS, EPS, EPS)
LARGEST_STEP = 320
"""Rows of a decode or verify step; more are a prefill's."""
DTYPE = torch.bfloat16


@dataclass
class Case:
    """One row: what stock launches, what we launch, and the least bytes."""

    name: str
    stock: Callable[[], object]
    ours: Callable[..., object]
    """``tiles`` as the kernel's own."""
    moved: int
    launches: int
    """Of stock; ours is one unless the name says otherwise."""


def rand(*shape: int, around: float = 0.0) -> torch.Tensor:
    """Random bfloat16 on the card."""
    return (around + torch.randn(*shape, device="cuda")).to(DTYPE)


def triple(rows: int, width: int, moe: bool) -> Case:
    """After attention: 26B-A4B (``moe``) or a dense layer."""
    from sglang.srt.layers.layernorm import fused_add_rmsnorm, rmsnorm

    h, residual = rand(rows, width), rand(rows, width)
    weights = [rand(width, around=1.0) for _ in range(4 if moe else 2)]

    def stock() -> None:
        dense = rmsnorm(h, weights[0], EPS)
        fused_add_rmsnorm(dense, residual, weights[1], EPS)
        for weight in weights[2:]:
            rmsnorm(residual, weight, EPS)

    outputs = 4 if moe else 2
    return Case(
        f"after attention, {'MoE' if moe else 'dense'} {width}",
        stock,
        partial(triple_rmsnorm, h, residual, *weights),
        2 * width * (rows * (2 + outputs) + len(weights)),
        len(weights),
    )


def end(rows: int, width: int, moe: bool) -> Case:
    """A layer's end with the next input norm."""
    from sglang.kernels.ops.layernorm.gemma4_fused_ops import gemma_dual_rmsnorm_residual_scalar, gemma_rmsnorm_residual_scalar
    from sglang.srt.layers.layernorm import rmsnorm

    x, other, residual = (rand(rows, width) for _ in range(3))
    one, two, three, following = (rand(width, around=1.0) for _ in range(4))
    scalar = rand(1)

    def stock() -> None:
        if moe:
            out = gemma_dual_rmsnorm_residual_scalar(x, one, other, two, three, residual, scalar, *EACH_EPS)
        else:
            out = gemma_rmsnorm_residual_scalar(x, one, residual, scalar, EPS)
        rmsnorm(out, following, EPS)

    def ours(tiles: RowTiles | None = None) -> object:
        if moe:
            return dual_tail(x, other, residual, (one, two, three), scalar, EACH_EPS, following, tiles=tiles)
        return tail(x, residual, one, EPS, scalar, following, tiles=tiles)

    moved = 2 * width * (rows * (5 if moe else 4) + (4 if moe else 2))
    return Case(f"layer tail, {'MoE' if moe else 'dense'} {width}", stock, ours, moved, 2)


def per_layer_embedding(rows: int, width: int, narrow: int = 256, layers: int = 35) -> Case:
    """E2B's and E4B's tail without its two products; three launches of ours."""
    from sglang.srt.layers.layernorm import rmsnorm

    dense, residual, added, gate = rand(rows, width), rand(rows, width), rand(rows, width), rand(rows, narrow)
    embedding = rand(rows, layers, narrow)[:, layers // 2]
    one, two, following = (rand(width, around=1.0) for _ in range(3))
    scalar = rand(1)

    def stock() -> None:
        stream = rmsnorm(dense, one, EPS) + residual
        _ = torch.nn.functional.gelu(gate, approximate="tanh") * embedding
        out = (stream + rmsnorm(added, two, EPS)) * scalar
        rmsnorm(out, following, EPS)

    def ours() -> None:
        stream, _ = tail(dense, residual, one, EPS, rounded=True)
        gated_embedding(gate, embedding)
        tail(added, stream, two, EPS, scalar, following, rounded=True)

    moved = 2 * (width * (rows * 7 + 3) + 3 * rows * narrow)
    return Case(f"per-layer embedding tail {width} (3 launches)", stock, ours, moved, 8)


def queries(rows: int, heads: int, kv_heads: int, dim: int, shared: bool = False, pool: bool = False) -> Case:
    """Norms and rotation, with the copies of k and v that a verify step makes.

    Args:
        shared: a layer that reads another's KV.
        pool: keys and values are written into the pool too.
    """
    from sglang.kernels.ops.attention.rope import apply_rope_with_cos_sin_cache_inplace
    from sglang.kernels.ops.kvcache.kvcache import store_cache
    from sglang.kernels.ops.layernorm.gemma4_fused_ops import gemma_qkv_rmsnorm

    qkv = rand(rows, (heads + 2 * kv_heads) * dim)
    one, two = rand(dim, around=1.0), rand(dim, around=1.0)
    positions = torch.randint(0, 8192, (rows,), device="cuda")
    angles = torch.rand(8192, dim // 2, device="cuda") * 7
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1)
    q, k, v = qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
    caches = [torch.empty(rows + 1, kv_heads, dim, dtype=DTYPE, device="cuda") for _ in range(2)] if pool else []
    slots = 1 + torch.randperm(rows, device="cuda")
    where: dict[str, Any] = {"k_cache": caches[0], "v_cache": caches[1], "slots": slots} if pool else {}

    def stock() -> None:
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
    return Case(
        f"q/k/v norm and rotation, {heads}/{kv_heads} heads of {dim}{', shared KV' if shared else ', into the pool' if pool else ''}",
        stock,
        partial(qkv_norm_rope, qkv, positions, cos_sin, one, two, heads, 0 if shared else kv_heads, EPS, **where),
        2 * 2 * rows * every * dim + rows * dim * 4 + (2 * 2 * rows * kv_heads * dim if pool else 0),
        3 if shared else 5 if pool else 4,
    )


def cases(rows: int) -> list[Callable[[], Case]]:
    """Of one step of ``rows`` tokens: 26B-A4B, then E2B. Of a prefill 26B-A4B alone."""
    if rows > LARGEST_STEP:
        return [
            partial(triple, rows, 2816, True),
            partial(end, rows, 2816, True),
            partial(queries, rows, 16, 8, 256, pool=True),
            partial(queries, rows, 16, 2, 512, pool=True),
        ]
    return [
        partial(triple, rows, 2816, True),
        partial(end, rows, 2816, True),
        partial(queries, rows, 16, 8, 256),
        partial(queries, rows, 16, 2, 512),
        partial(triple, rows, 1536, False),
        partial(end, rows, 5376, False),
        partial(per_layer_embedding, rows, 1536),
        partial(queries, rows, 8, 1, 256),
        partial(queries, rows, 8, 1, 256, True),
        partial(queries, rows, 8, 1, 512, True),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 32, 80, 320, 8192], metavar="N", help="(1 4 32 80 320 8192)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="replays of each graph (default 5)")
    parser.add_argument("--bandwidth", type=float, default=4295.0, metavar="GB/S", help="of the card's memory (default: an H200's)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("layer_times needs a CUDA card")
    print("| case | tokens | stock launches | stock µs | ours µs | floor µs |\n|" + " --- |" * 6, flush=True)
    for rows in options.rows:
        for make in cases(rows):
            sets = [make() for _ in range(SETS)]
            stock = microseconds([one.stock for one in sets], options.rounds)
            ours = microseconds([one.ours for one in sets], options.rounds)
            floor = sets[0].moved / options.bandwidth / 1000
            print(f"| {sets[0].name} | {rows} | {sets[0].launches} | {stock:.2f} | {ours:.2f} | {floor:.2f} |", flush=True)


if __name__ == "__main__":
    main()
