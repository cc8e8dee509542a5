"""Both GEMMs of fp8 or 4-bit experts for few rows per block, by :mod:`~sglang_gemma4.kernels.register_products`.

They replace the Triton kernels of ``gated_experts``, ``few_token_experts`` and ``grouped_experts`` with the same
blocks. The rows between them keep their natural order of columns.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from sglang_gemma4.kernels import register_products as registers
from sglang_gemma4.kernels.dependent_launch import launch_options
from sglang_gemma4.kernels.experts.expert_blocks import Blocks
from sglang_gemma4.kernels.register_products import Warps
from sglang_gemma4.kernels.weights import Grouped, Weight

BLOCK = 8
"""Rows per block. Up to this many tokens, a row's place in its expert's block is its token's; above, rows are sorted."""
MOST_TOKENS, MOST_FP8_TOKENS = 64, 16
"""Most tokens of 4-bit and of fp8 experts. At 4 to 64 tokens on an H200, 4-bit ones take 17 to 21 % less time than
Triton's kernels. At 8 to 16, fp8 ones take 8 to 14 % less. With more tokens they gain nothing or lose, since
dequantising is then the limit, not memory (``runs/2026-11-27-26b-h200-registers``)."""


def takes(x: torch.Tensor, w13: Weight, w2: Weight) -> bool:
    """Whether this module computes a layer's experts, given that ``gated_experts.reason_against`` has passed."""
    most = MOST_TOKENS if isinstance(w13, Grouped) else MOST_FP8_TOKENS
    return len(x) <= most and registers.takes(x, w13, BLOCK) and registers.takes(x, w2, BLOCK)


def warps_for(tokens: int, w13: Weight) -> tuple[Warps, Warps]:
    """Warps of the first and the second GEMM: the fastest of about 15 pairs, or within 3 % of it."""
    few = tokens <= 4 or not isinstance(w13, Grouped)
    return Warps(16, 4 if few else 2, ahead=3 if tokens > 16 else 6), Warps(32, 2)


@gluon.constexpr_function
def _flat(outputs, warps):  # type: ignore[no-untyped-def]
    """``[rows, outputs]``, lanes along the outputs."""
    lanes = min(outputs, 32)
    return gl.BlockedLayout([1, 1], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.jit(do_not_specialize=["LAST"])
def _register_gated_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [tokens, HIDDEN]
    words_ptr,  # [experts, 2 * INNER, HIDDEN // PER] int32, gate first
    scale_ptr,  # [experts, 2 * INNER, HIDDEN // PER // GROUP]; fp8: [experts, 2 * INNER]
    scale_expert_stride,
    scale_stride,
    shares_ptr,  # [rows] float32
    expert_ptr,  # [blocks]
    row_ptr,  # [blocks, SIZE]
    count_ptr,
    out_ptr,  # [rows, INNER]
    LAST,  # rows in all
    TOPK: gl.constexpr,
    HIDDEN: gl.constexpr,
    INNER: gl.constexpr,
    PER: gl.constexpr,
    GROUP: gl.constexpr,
    SIZE: gl.constexpr,
    ROWS: gl.constexpr,  # of a block that are computed, its first ones
    OUTPUTS: gl.constexpr,
    ALONG: gl.constexpr,
    ACROSS: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    registers.await_inputs(PDL)
    block = gl.program_id(0)
    # All loads at once, before it is known whether the block exists: what lies behind the last is undefined, and not used.
    count = gl.load(count_ptr)
    expert = gl.load(expert_ptr + block).to(gl.int64)
    row = gl.load(row_ptr + block * SIZE + registers.rows_of(ROWS, PER, ALONG, ACROSS)).to(gl.int64)
    mine = gl.load(row_ptr + block * SIZE + registers.summed_rows(ROWS, ALONG)).to(gl.int64)
    if (block < count) & (expert >= 0):
        first = gl.program_id(1) * OUTPUTS
        words_ptr += expert * (2 * INNER * (HIDDEN // PER))
        if GROUP > 0:
            scale_ptr += expert * (2 * INNER * (HIDDEN // PER // GROUP))
        else:
            scale_ptr += expert * scale_expert_stride
        held = registers.ask_ahead(words_ptr, scale_ptr, first, INNER, INNER, HIDDEN, PER, GROUP, OUTPUTS, ALONG, ACROSS, AHEAD)
        share = gl.load(shares_ptr + mine, mask=mine < LAST, other=0.0).to(gl.float32)
        x_at = x_ptr + gl.where(row < LAST, row // TOPK, 0) * HIDDEN
        gate, up = registers.register_sums(
            held, x_at, words_ptr, scale_ptr, first, INNER, INNER, HIDDEN, PER, GROUP, ROWS, OUTPUTS, ALONG, ACROSS, AHEAD
        )
        column = first + registers.summed_outputs(OUTPUTS, ALONG)
        if GROUP == 0:
            gate *= gl.load(scale_ptr + column * scale_stride, mask=column < INNER, other=0.0)[:, None]
            up *= gl.load(scale_ptr + (column + INNER) * scale_stride, mask=column < INNER, other=0.0)[:, None]
        value = registers.gelu_tanh(gate) * up * share[None, :]
        stored = out_ptr + mine[None, :] * INNER + column[:, None]
        gl.store(stored, value.to(out_ptr.dtype.element_ty), mask=(mine < LAST)[None, :] & (column < INNER)[:, None])


@gluon.jit(do_not_specialize=["TOKENS"])
def _register_down_kernel(  # type: ignore[no-untyped-def]
    h_ptr,  # [rows, INNER]
    words_ptr,  # [experts, HIDDEN, INNER // PER] int32
    scale_ptr,  # [experts, HIDDEN, INNER // PER // GROUP]; fp8: [experts, HIDDEN]
    scale_expert_stride,
    scale_stride,
    ids_ptr,  # [tokens, TOPK]
    expert_ptr,  # [blocks]
    row_ptr,  # [blocks, SIZE]
    count_ptr,
    rows_ptr,  # [rows, HIDDEN]
    out_ptr,  # [tokens, HIDDEN]; without SUMMED it is not written
    done_ptr,  # [blocks of columns] int32, zeros; zeros again afterwards
    TOKENS,
    TOPK: gl.constexpr,
    HIDDEN: gl.constexpr,
    INNER: gl.constexpr,
    PER: gl.constexpr,
    GROUP: gl.constexpr,
    SIZE: gl.constexpr,
    ROWS: gl.constexpr,
    SUMMED: gl.constexpr,  # the program that finishes a block of columns last adds up each token's rows, in the order of its experts
    OUTPUTS: gl.constexpr,
    ALONG: gl.constexpr,
    ACROSS: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    registers.await_inputs(PDL)
    block = gl.program_id(0)
    count = gl.load(count_ptr)
    expert = gl.load(expert_ptr + block).to(gl.int64)
    row = gl.load(row_ptr + block * SIZE + registers.rows_of(ROWS, PER, ALONG, ACROSS)).to(gl.int64)
    mine = gl.load(row_ptr + block * SIZE + registers.summed_rows(ROWS, ALONG)).to(gl.int64)
    first = gl.program_id(1) * OUTPUTS
    if block < count:
        words_ptr += expert * (HIDDEN * (INNER // PER))
        if GROUP > 0:
            scale_ptr += expert * (HIDDEN * (INNER // PER // GROUP))
        else:
            scale_ptr += expert * scale_expert_stride
        held = registers.ask_ahead(words_ptr, scale_ptr, first, 0, HIDDEN, INNER, PER, GROUP, OUTPUTS, ALONG, ACROSS, AHEAD)
        h_at = h_ptr + gl.where(row < TOKENS * TOPK, row, 0) * INNER
        total, _ = registers.register_sums(
            held, h_at, words_ptr, scale_ptr, first, 0, HIDDEN, INNER, PER, GROUP, ROWS, OUTPUTS, ALONG, ACROSS, AHEAD
        )
        column = first + registers.summed_outputs(OUTPUTS, ALONG)
        if GROUP == 0:
            total *= gl.load(scale_ptr + column * scale_stride, mask=column < HIDDEN, other=0.0)[:, None]
        stored = rows_ptr + mine[None, :] * HIDDEN + column[:, None]
        gl.store(stored, total.to(rows_ptr.dtype.element_ty), mask=(mine < TOKENS * TOPK)[None, :] & (column < HIDDEN)[:, None])
    if SUMMED:
        expected = gl.maximum(count, 1)  # without any expert, the first program writes zeros
        if block < expected:
            # Every thread's stores come before the count that tells the last program of them.
            gl.barrier()
            last = gl.atomic_add(done_ptr + gl.program_id(1), 1, sem="acq_rel", scope="gpu") == expected - 1
            if last:
                FLAT: gl.constexpr = _flat(OUTPUTS, gl.num_warps())  # noqa: N806
                token = gl.arange(0, ROWS, gl.SliceLayout(1, FLAT))
                columns = first + gl.arange(0, OUTPUTS, gl.SliceLayout(0, FLAT))
                summed = gl.zeros([ROWS, OUTPUTS], gl.float32, FLAT)
                for place in gl.static_range(TOPK):
                    theirs = token * TOPK + place
                    chosen = gl.load(ids_ptr + theirs, mask=token < TOKENS, other=-1) >= 0
                    at = rows_ptr + theirs[:, None].to(gl.int64) * HIDDEN + columns[None, :]
                    # Not from the L1 cache, which does not see what other SMs write.
                    real = chosen[:, None] & (columns < HIDDEN)[None, :]
                    summed += gl.load(at, mask=real, other=0.0, cache_modifier=".cg").to(gl.float32)
                target = out_ptr + token[:, None].to(gl.int64) * HIDDEN + columns[None, :]
                gl.store(target, summed.to(out_ptr.dtype.element_ty), mask=(token < TOKENS)[:, None] & (columns < HIDDEN)[None, :])
                gl.store(done_ptr + gl.program_id(1), 0)


def gated(
    x: torch.Tensor, w13: Weight, shares: torch.Tensor, ids: torch.Tensor, blocks: Blocks, out: torch.Tensor, rows: int, warps: Warps
) -> None:
    """Fill ``out`` ``[tokens * experts per token, inner]``; the first ``rows`` of each block are computed."""
    inner = out.shape[1]
    _register_gated_kernel[(blocks.expert.numel(), triton.cdiv(inner, warps.outputs))](
        x_ptr=x, **registers.words_of(w13), shares_ptr=shares, expert_ptr=blocks.expert, row_ptr=blocks.row, count_ptr=blocks.count,
        out_ptr=out, LAST=ids.numel(), TOPK=ids.shape[1], HIDDEN=x.shape[1], INNER=inner, SIZE=blocks.row.shape[1],
        ROWS=registers.padded(rows), **warps.constants(), **launch_options(x.device),
    )  # fmt: skip


def down(
    h: torch.Tensor, w2: Weight, ids: torch.Tensor, blocks: Blocks, rows: int, warps: Warps, done: torch.Tensor | None = None
) -> torch.Tensor:
    """``[tokens * experts per token, hidden]``, or, with counters ``done``, each token's sum ``[tokens, hidden]``.

    With ``done`` a row's place in its block is its token's number.
    """
    hidden = w2.shape[1]
    each = torch.empty((ids.numel(), hidden), dtype=h.dtype, device=h.device)
    out = each if done is None else torch.empty((ids.shape[0], hidden), dtype=h.dtype, device=h.device)
    _register_down_kernel[(blocks.expert.numel(), triton.cdiv(hidden, warps.outputs))](
        h_ptr=h, **registers.words_of(w2), ids_ptr=ids, expert_ptr=blocks.expert, row_ptr=blocks.row, count_ptr=blocks.count,
        rows_ptr=each, out_ptr=out, done_ptr=done, TOKENS=ids.shape[0], TOPK=ids.shape[1], HIDDEN=hidden, INNER=w2.shape[2],
        SIZE=blocks.row.shape[1], ROWS=registers.padded(rows), SUMMED=done is not None, **warps.constants(), **launch_options(h.device),
    )  # fmt: skip
    return out


def both(
    x: torch.Tensor,
    w13: Weight,
    w2: Weight,
    shares: torch.Tensor,
    ids: torch.Tensor,
    blocks: Blocks,
    rows: int,
    warps: tuple[Warps, Warps],
    done: torch.Tensor | None = None,
) -> torch.Tensor:
    """Both GEMMs of a layer's experts; ``gated_experts.reason_against`` must have passed. The host does not wait.

    Args:
        x: ``[tokens, hidden]`` bfloat16; the other arguments are as in ``few_token_experts``.
        rows: rows of each block that are computed, all that it has.
        warps: of the first and of the second GEMM.
        done: counters; None: the rows are not added up.

    Returns:
        Each token's sum ``[tokens, hidden]``, or each row ``[tokens * experts per token, hidden]``.

    Raises:
        ValueError: the weights are not quantised, or a block is smaller than what is computed of it.
    """
    for weight in (w13, w2):
        if isinstance(weight, torch.Tensor):
            raise ValueError(f"experts by warps: weights of {weight.dtype}; fp8 and 4 bits are supported, give tiles")
    if registers.padded(rows) > blocks.row.shape[1]:
        raise ValueError(f"experts by warps: blocks of {blocks.row.shape[1]} rows, of which {rows} are computed; 8, 16 or 32 are supported")
    h = torch.empty((ids.numel(), w13.shape[1] // 2), dtype=x.dtype, device=x.device)
    gated(x, w13, shares, ids, blocks, h, rows, warps[0])
    return down(h, w2, ids, blocks, rows, warps[1], done)
