"""An MoE layer of up to 16 tokens in two launches after routing: gate and up with the activation, then down and the sum.

Each chosen expert has one block, in which a row's place is its token's number, so its weights are read once. The
program of the second GEMM that finishes a block of columns last sums each token's rows, always in the order of its
experts. So the result is reproducible.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.experts import register_experts
from sglang_gemma4.kernels.experts.expert_blocks import Blocks, expert_blocks
from sglang_gemma4.kernels.experts.expert_routing import MOST_TOKENS
from sglang_gemma4.kernels.experts.gated_experts import Tile, gated_experts, gated_experts_reference, reason_against
from sglang_gemma4.kernels.experts.grouped_experts import down_tile, four_bit_tiles_for, grouped_experts
from sglang_gemma4.kernels.register_products import Warps
from sglang_gemma4.kernels.weights import Weight, dequantised, levels_of, scale_of, words_in_group, zeros_of

NARROWEST = 16
"""Columns of the second GEMM's narrowest tile; each block of this many has a counter."""


def tiles_for(tokens: int) -> tuple[Tile, Tile]:
    """Tiles of the first and the second GEMM, within 1 % of the fastest on an H200 (``runs/2026-11-23-few-token-experts``)."""
    return Tile(32, 128, 4, 4), Tile(64, 128, 4, 4) if tokens <= 4 else Tile(128, 64, 4, 4)


def few_token_experts_reference(x: torch.Tensor, w13: Weight, w2: Weight, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """What :func:`few_token_experts` computes, in float32; ``[tokens, hidden]`` in x's dtype."""
    hidden = gated_experts_reference(x, w13, weights, ids)
    out, values = torch.zeros_like(x, dtype=torch.float32), dequantised(w2)
    for row, expert in enumerate(ids.flatten().tolist()):
        if expert >= 0:
            out[row // ids.shape[1]] += values[expert] @ hidden[row]
    return out.to(x.dtype)


@triton.jit(do_not_specialize=["TOKENS"])
def _down_and_sum_kernel(  # type: ignore[no-untyped-def]
    h_ptr,  # [rows, INNER]
    w2_ptr,  # [experts, HIDDEN, INNER]
    scale_ptr,  # [experts, HIDDEN] float32, or None
    scale_expert_stride,
    scale_stride,
    zero_ptr,  # [experts, HIDDEN // 2, groups] uint8, or None
    ids_ptr,  # [tokens, TOPK]
    expert_ptr,  # [blocks]
    row_ptr,  # [blocks, SIZE]
    count_ptr,
    rows_ptr,  # [rows, HIDDEN]
    out_ptr,  # [tokens, HIDDEN]
    done_ptr,  # [blocks of columns] int32, zeros; zeros again afterwards
    TOKENS,
    TOPK: tl.constexpr,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    block = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < HIDDEN
    await_inputs(PDL)
    # All loads at once, before it is known whether the block exists: what lies behind the last is undefined, and not used.
    places = tl.arange(0, SIZE)
    count = tl.load(count_ptr)
    expert = tl.load(expert_ptr + block).to(tl.int64)
    row = tl.load(row_ptr + block * SIZE + places).to(tl.int64)
    real_columns = columns.to(tl.int64)
    if block < count:
        real = row < TOKENS * TOPK
        product = down_tile(
            h_ptr, w2_ptr, scale_ptr, scale_expert_stride, scale_stride, zero_ptr, expert, row, real, real_columns, inside,
            HIDDEN, INNER, SIZE, COLUMNS, DEPTH, GROUP, BITS, PRECISION,
        )  # fmt: skip
        stored = rows_ptr + row[:, None] * HIDDEN + real_columns[None, :]
        tl.store(stored, product.to(rows_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])
    expected = tl.maximum(count, 1)  # without any expert, the first program writes zeros
    if block < expected:
        # Every thread's stores come before the count that tells the last program of them.
        tl.debug_barrier()
        last = tl.atomic_add(done_ptr + tl.program_id(1), 1, sem="acq_rel", scope="gpu") == expected - 1
        if last:
            total = tl.zeros([SIZE, COLUMNS], tl.float32)
            for place in tl.static_range(TOPK):
                mine = places * TOPK + place
                chosen = tl.load(ids_ptr + mine, mask=places < TOKENS, other=-1) >= 0
                theirs = rows_ptr + mine[:, None].to(tl.int64) * HIDDEN + real_columns[None, :]
                # Not from the L1 cache, which does not see what other SMs write.
                total += tl.load(theirs, mask=chosen[:, None] & inside[None, :], other=0.0, cache_modifier=".cg").to(tl.float32)
            target = out_ptr + places[:, None].to(tl.int64) * HIDDEN + real_columns[None, :]
            tl.store(target, total.to(out_ptr.dtype.element_ty), mask=(places < TOKENS)[:, None] & inside[None, :])
            tl.store(done_ptr + tl.program_id(1), 0)


def counters(hidden: int, device: torch.device) -> torch.Tensor:
    """Zeroed counters of finished programs for the calls of one layer: int32, one for each block of columns."""
    return torch.zeros(triton.cdiv(hidden, NARROWEST), dtype=torch.int32, device=device)


def few_token_experts(
    x: torch.Tensor,
    w13: Weight,
    w2: Weight,
    weights: torch.Tensor,
    ids: torch.Tensor,
    done: torch.Tensor,
    blocks: Blocks | None = None,
    tiles: tuple[Tile, Tile] | None = None,
    warps: tuple[Warps, Warps] | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``[tokens, hidden]`` in x's dtype. The host does not wait for the device.

    Args:
        x: ``[tokens, hidden]``, 1 to 16 tokens, float32, bfloat16 or float16; contiguous like the rest.
        w13: ``[experts, 2 * inner, hidden]`` in x's dtype, fp8 or 4-bit, the gate's rows first.
        w2: ``[experts, hidden, inner]``, likewise.
        weights: ``[tokens, experts per token]`` float32.
        ids: ``[tokens, experts per token]`` int32 or int64, a token's experts all different; -1: none.
        done: from :func:`counters`; two calls that may run at the same time must not share it.
        blocks: of ``ids``, by token, from ``expert_routing``; None: made by one more launch. A row whose id has
            become -1 since is computed and left out of the sum.
        tiles: for the two GEMMs; None: by tokens and weights.
        warps: use :mod:`register_experts` with these, for fp8 or 4-bit weights; None: by tokens, if the weights
            qualify and ``tiles`` is None.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernels do not take.
    """
    tokens, hidden = x.shape[0], x.shape[-1]
    reason = reason_against(x, w13, w2, weights, ids)
    if reason is None and not 1 <= tokens <= MOST_TOKENS:
        reason = f"{tokens} tokens; 1 to {MOST_TOKENS} are supported"
    first, second = tiles or (four_bit_tiles_for(tokens)[1:] if words_in_group(w2) else tiles_for(tokens))
    if reason is None and warps is None and tiles is None and register_experts.takes(x, w13, w2):
        if tokens > register_experts.BLOCK:
            return grouped_experts(x, w13, w2, weights, ids)
        warps = register_experts.warps_for(tokens, w13)
    columns = warps[1].outputs if warps else second.columns
    if reason is None and (done.dtype != torch.int32 or done.numel() < triton.cdiv(hidden, columns)):
        reason = f"{done.numel()} counters of {done.dtype}; {triton.cdiv(hidden, columns)} of int32 are supported, see counters()"
    if reason:
        raise ValueError(reason)
    if blocks is None:
        blocks = expert_blocks(ids, w13.shape[0], MOST_TOKENS, by_token=True)
    if warps:
        return register_experts.both(x, w13, w2, weights, ids, blocks, tokens, warps, done)
    h = gated_experts(x, w13, weights, ids, blocks, first)
    rows = torch.empty((ids.numel(), hidden), dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    _down_and_sum_kernel[(blocks.expert.numel(), triton.cdiv(hidden, second.columns))](
        h, levels_of(w2), *scale_of(w2), zeros_of(w2), ids, blocks.expert, blocks.row, blocks.count, rows, out, done, tokens,
        TOPK=ids.shape[1], HIDDEN=hidden, INNER=w2.shape[2], SIZE=MOST_TOKENS, COLUMNS=second.columns, DEPTH=second.depth,
        GROUP=words_in_group(w2), BITS=x.dtype == torch.bfloat16,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=second.warps, num_stages=second.stages, **launch_options(x.device),
    )  # fmt: skip
    return out
