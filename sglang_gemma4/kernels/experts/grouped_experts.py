"""An MoE layer of tens to hundreds of tokens in four launches: blocks of rows, gate and up with activation, down, sum.

A token's outputs are added up in the order of its experts, so the result is reproducible.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.experts import register_experts
from sglang_gemma4.kernels.experts.expert_blocks import expert_blocks
from sglang_gemma4.kernels.experts.gated_experts import Tile, gated_experts, reason_against
from sglang_gemma4.kernels.four_bits import four_bit_sums
from sglang_gemma4.kernels.register_products import Warps
from sglang_gemma4.kernels.weights import Weight, as_type, levels_of, scale_of, words_in_group, zeros_of

SUM_COLUMNS = 512


def tiles_for(tokens: int) -> tuple[int, Tile, Tile]:
    """Rows per block, and the tiles of the first and the second GEMM."""
    return (32 if tokens > 192 else 16), Tile(64, 128, 4, 3), Tile(64, 128, 4, 4)


def four_bit_tiles_for(tokens: int) -> tuple[int, Tile, Tile]:
    """The same for 4-bit experts, in steps of 256 inputs, a cache line.

    They were the fastest tried on an H200 at 4, 32, 128 and 320 tokens. One GEMM's tile was varied at a time
    (``runs/2026-11-26-26b-h200-int4``).
    """
    if tokens > 192:
        return 32, Tile(64, 256, 4, 3), Tile(128, 256, 4, 2)
    return 16, Tile(64, 256, 4, 3) if tokens > 16 else Tile(32, 256, 4, 4), Tile(64, 256, 4, 3)


@triton.jit
def down_tile(  # type: ignore[no-untyped-def]
    h_ptr,  # [rows, INNER]
    w2_ptr,  # [experts, HIDDEN, INNER]
    scale_ptr,  # [experts, HIDDEN] float32, or None
    scale_expert_stride,
    scale_stride,
    zero_ptr,  # [experts, HIDDEN // 2, groups] uint8, of 4-bit levels that are not symmetric; or None
    expert,
    rows,  # [SIZE] int64, of one expert
    real,  # [SIZE]
    columns,  # [COLUMNS] int64
    inside,  # [COLUMNS]
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The second product of one block's rows in one tile of columns, ``[SIZE, COLUMNS]`` float32."""
    if GROUP > 0:
        words_ptr = w2_ptr + expert * (HIDDEN * (INNER // 8))
        zeros_ptr = None if zero_ptr is None else zero_ptr + expert * (HIDDEN // 2 * (INNER // 8 // GROUP))
        out, _ = four_bit_sums(
            h_ptr, rows, real, words_ptr, scale_ptr + expert * (HIDDEN * (INNER // 8 // GROUP)), zeros_ptr, columns, inside,
            0, INNER // 8, 0, INNER, SIZE, COLUMNS, DEPTH, GROUP, BITS,
        )  # fmt: skip
    else:
        depths = tl.arange(0, DEPTH)
        h_pointers = h_ptr + rows[:, None] * INNER + depths[None, :]
        w_pointers = w2_ptr + expert * (HIDDEN * INNER) + columns[None, :] * INNER + depths[:, None]
        out = tl.zeros([SIZE, COLUMNS], tl.float32)
        for start in range(0, INNER, DEPTH):
            left = depths < INNER - start
            h = tl.load(h_pointers + start, mask=real[:, None] & left[None, :], other=0.0)
            w = tl.load(w_pointers + start, mask=left[:, None] & inside[None, :], other=0.0)
            out = tl.dot(h, as_type(w, h.dtype), out, input_precision=PRECISION)
        if scale_ptr is not None:
            scale_pointers = scale_ptr + expert * scale_expert_stride + columns * scale_stride
            out *= tl.load(scale_pointers, mask=inside, other=0.0)[None, :]
    return out


@triton.jit(do_not_specialize=["ROWS"])
def _down_kernel(  # type: ignore[no-untyped-def]
    h_ptr,  # [rows, INNER]
    w2_ptr,  # [experts, HIDDEN, INNER]
    scale_ptr,
    scale_expert_stride,
    scale_stride,
    zero_ptr,
    expert_ptr,
    row_ptr,
    count_ptr,
    out_ptr,  # [rows, HIDDEN]
    ROWS,
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
    await_inputs(PDL)
    block = tl.program_id(0)
    # All loads at once, before it is known whether the block exists: what lies behind the last is undefined, and not used.
    count = tl.load(count_ptr)
    expert = tl.load(expert_ptr + block).to(tl.int64)
    rows = tl.load(row_ptr + block * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    if block < count:
        real = rows < ROWS
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = columns < HIDDEN
        out = down_tile(
            h_ptr, w2_ptr, scale_ptr, scale_expert_stride, scale_stride, zero_ptr, expert, rows, real, columns.to(tl.int64), inside,
            HIDDEN, INNER, SIZE, COLUMNS, DEPTH, GROUP, BITS, PRECISION,
        )  # fmt: skip
        stored = out_ptr + rows[:, None] * HIDDEN + columns[None, :]
        tl.store(stored, out.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit
def _sum_kernel(  # type: ignore[no-untyped-def]
    y_ptr,  # [tokens, TOPK, HIDDEN]
    ids_ptr,  # [tokens, TOPK]
    out_ptr,  # [tokens, HIDDEN]
    TOPK: tl.constexpr,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < HIDDEN
    total = tl.zeros([COLUMNS], tl.float32)
    for place in tl.static_range(TOPK):
        row = token * TOPK + place
        written = tl.load(ids_ptr + row) >= 0
        total += tl.load(y_ptr + row * HIDDEN + columns, mask=inside & written, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * HIDDEN + columns, total.to(out_ptr.dtype.element_ty), mask=inside)


def sum_of_rows(rows: torch.Tensor, ids: torch.Tensor, columns: int = SUM_COLUMNS) -> torch.Tensor:
    """Sums of each token's ``rows`` ``[tokens * experts per token, hidden]`` in float32, in order: ``[tokens, hidden]``.

    Args:
        ids: ``[tokens, experts per token]`` int; rows of expert -1 are left out.
        columns: columns that a program sums, a power of two.
    """
    tokens, hidden = ids.shape[0], rows.shape[1]
    out = torch.empty((tokens, hidden), dtype=rows.dtype, device=rows.device)
    _sum_kernel[(tokens, triton.cdiv(hidden, columns))](
        rows, ids, out, TOPK=ids.shape[1], HIDDEN=hidden, COLUMNS=columns, num_warps=4, **launch_options(rows.device)
    )
    return out


def grouped_experts(
    x: torch.Tensor,
    w13: Weight,
    w2: Weight,
    weights: torch.Tensor,
    ids: torch.Tensor,
    tiles: tuple[int, Tile, Tile] | None = None,
    warps: tuple[int, Warps, Warps] | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``[tokens, hidden]`` in x's dtype.

    Arguments are as in ``few_token_experts``, but the number of tokens is not limited. Its reference is
    ``few_token_experts_reference``. The host does not wait for the device.

    Args:
        tiles: rows per block and the tiles of the two GEMMs; None: by tokens and weights.
        warps: rows per block, and warps for :mod:`register_experts`, for fp8 or 4-bit weights; None: by tokens, if
            the weights qualify and ``tiles`` is None.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernels do not take.
    """
    reason = reason_against(x, w13, w2, weights, ids)
    if reason:
        raise ValueError(reason)
    tokens, hidden = x.shape
    if tokens == 0:
        return torch.empty_like(x)
    size, first, second = tiles or (four_bit_tiles_for(tokens) if words_in_group(w2) else tiles_for(tokens))
    if warps is None and tiles is None and register_experts.takes(x, w13, w2):
        warps = register_experts.BLOCK, *register_experts.warps_for(tokens, w13)
    blocks = expert_blocks(ids, w13.shape[0], warps[0] if warps else size)
    if warps:
        return sum_of_rows(register_experts.both(x, w13, w2, weights, ids, blocks, warps[0], warps[1:]), ids)
    h = gated_experts(x, w13, weights, ids, blocks, first)
    rows = torch.empty((ids.numel(), hidden), dtype=x.dtype, device=x.device)
    _down_kernel[(blocks.expert.numel(), triton.cdiv(hidden, second.columns))](
        h, levels_of(w2), *scale_of(w2), zeros_of(w2), blocks.expert, blocks.row, blocks.count, rows, ids.numel(),
        HIDDEN=hidden, INNER=w2.shape[2], SIZE=size, COLUMNS=second.columns, DEPTH=second.depth,
        GROUP=words_in_group(w2), BITS=x.dtype == torch.bfloat16,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=second.warps, num_stages=second.stages,
        **launch_options(x.device),
    )  # fmt: skip
    return sum_of_rows(rows, ids)
