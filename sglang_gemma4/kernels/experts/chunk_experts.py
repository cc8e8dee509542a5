"""4-bit experts for hundreds to thousands of tokens on Hopper, by :mod:`~sglang_gemma4.kernels.warpgroup_products`.

An expert has tens to hundreds of rows here. The few-row kernels (:mod:`grouped_experts`) dequantise its weights again
for every 32 of them. Dequantising to memory first (:mod:`prefill_experts`) takes half a millisecond per layer of
26B-A4B. Here one launch gathers each expert's rows, with their inputs in the words' order; the first GEMM writes its
outputs in that order.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from sglang_gemma4.kernels import warpgroup_products as warpgroups
from sglang_gemma4.kernels.assembler import keeps_operands
from sglang_gemma4.kernels.dependent_launch import launch_options
from sglang_gemma4.kernels.experts.expert_blocks import Blocks, expert_blocks
from sglang_gemma4.kernels.experts.gated_experts import reason_against as reason_against_experts
from sglang_gemma4.kernels.experts.grouped_experts import sum_of_rows
from sglang_gemma4.kernels.register_products import await_inputs, gelu_tanh
from sglang_gemma4.kernels.warpgroup_products import OUTPUTS, Tile
from sglang_gemma4.kernels.weights import Grouped, Weight, words_in_group

SUM_COLUMNS = 1024


def tile_for(tokens: int) -> Tile:
    """Blocks of 32 rows up to 640 tokens, of 64 above. Each of 128 experts has a sixteenth of the tokens on average.

    On an H200 32 rows are fastest at 384 tokens and 64 at 1,024; 128 are slower at both
    (``runs/2026-11-29-26b-h200-int4-chunks``). With 64 rows, four spans of words ahead are 7 % faster than two. One
    span ahead, of three stages, is as fast as four (``runs/2026-11-29-26b-h200-int4-gaps``).
    """
    return Tile(32) if tokens <= 640 else Tile(64, ahead=4)


def reason_against(x: torch.Tensor, w13: Weight, w2: Weight, weights: torch.Tensor, ids: torch.Tensor) -> str | None:
    """Why these tensors are not for this module, or None."""
    if reason := reason_against_experts(x, w13, w2, weights, ids):
        return reason
    if x.dtype != torch.bfloat16 or not (isinstance(w13, Grouped) and isinstance(w2, Grouped)):
        return f"{type(w13).__name__} and {x.dtype}; 4-bit weights and bfloat16 are supported"
    if w13.zeros is not None or w2.zeros is not None:
        return "quantised values with zero points; symmetric ones are supported"
    hidden, inner = x.shape[1], w2.shape[2]
    if hidden % (2 * OUTPUTS) or inner % OUTPUTS:
        return f"experts of {hidden} x {inner}; multiples of {2 * OUTPUTS} and {OUTPUTS} are supported"
    return None


@keeps_operands
@gluon.jit(do_not_specialize=["LAST"])
def _gate_and_up_kernel(  # type: ignore[no-untyped-def]
    x,  # descriptor of [blocks * ROWS, HIDDEN] as by_span gives them
    words_ptr,  # [experts, 2 * INNER, HIDDEN // 8] int32, gate first
    scale_ptr,  # [experts, 2 * INNER, HIDDEN // 8 // GROUP]
    shares_ptr,  # [rows] float32
    expert_ptr,  # [blocks]; -1: of no expert
    row_ptr,  # [blocks, ROWS]
    count_ptr,
    h_ptr,  # [blocks, ROWS, INNER], as by_span gives them
    LAST,  # rows in all
    HIDDEN: gl.constexpr,
    INNER: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    COPY: gl.constexpr = warpgroups.copy_layout()  # noqa: N806
    SUMS: gl.constexpr = warpgroups.sums_layout(ROWS)  # noqa: N806
    await_inputs(PDL)
    block = gl.program_id(1)
    # All loads at once, before it is known whether the block exists: what lies behind the last is undefined, and not used.
    count = gl.load(count_ptr)
    expert = gl.load(expert_ptr + block).to(gl.int64)
    mine = gl.load(row_ptr + block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, SUMS)))
    if (block < count) & (expert >= 0):
        first = gl.program_id(0) * 64
        share = gl.load(shares_ptr + mine, mask=mine < LAST, other=0.0).to(gl.float32)
        words_ptr += expert * (2 * INNER * (HIDDEN // 8))
        scale_ptr += expert * (2 * INNER * (HIDDEN // 8 // GROUP))
        gate, up = warpgroups.products(x, block * ROWS, words_ptr, scale_ptr, first, INNER, HIDDEN, GROUP, ROWS, STAGES, AHEAD)
        value = (gelu_tanh(gate) * up * share[None, :]).to(gl.bfloat16)
        # The outputs of this tile are a span of the second product's inputs.
        at = h_ptr + (block.to(gl.int64) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY)))[:, None] * INNER
        gl.store(at + (first + gl.arange(0, 64, gl.SliceLayout(0, COPY)))[None, :], warpgroups.as_inputs(value, ROWS))


@keeps_operands
@gluon.jit(do_not_specialize=["LAST"])
def _down_kernel(  # type: ignore[no-untyped-def]
    h,  # descriptor of [blocks * ROWS, INNER], as the first product leaves them
    words_ptr,  # [experts, HIDDEN, INNER // 8] int32
    scale_ptr,  # [experts, HIDDEN, INNER // 8 // GROUP]
    expert_ptr,
    row_ptr,
    count_ptr,
    out_ptr,  # [rows, HIDDEN]
    LAST,
    HIDDEN: gl.constexpr,
    INNER: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    COPY: gl.constexpr = warpgroups.copy_layout()  # noqa: N806
    await_inputs(PDL)
    block = gl.program_id(1)
    count = gl.load(count_ptr)
    expert = gl.load(expert_ptr + block).to(gl.int64)
    row = gl.load(row_ptr + block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY)))
    if (block < count) & (expert >= 0):
        first = gl.program_id(0) * 128
        words_ptr += expert * (HIDDEN * (INNER // 8))
        scale_ptr += expert * (HIDDEN * (INNER // 8 // GROUP))
        one, two = warpgroups.products(h, block * ROWS, words_ptr, scale_ptr, first, 64, INNER, GROUP, ROWS, STAGES, AHEAD)
        at = out_ptr + row.to(gl.int64)[:, None] * HIDDEN + (first + gl.arange(0, 64, gl.SliceLayout(0, COPY)))[None, :]
        real = (row < LAST)[:, None]
        gl.store(at, warpgroups.as_rows(one.to(gl.bfloat16)), mask=real)
        gl.store(at + 64, warpgroups.as_rows(two.to(gl.bfloat16)), mask=real)


def chunk_experts(
    x: torch.Tensor,
    w13: Weight,
    w2: Weight,
    weights: torch.Tensor,
    ids: torch.Tensor,
    blocks: Blocks | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``[tokens, hidden]`` bfloat16. Arguments are as in ``few_token_experts``.

    The number of tokens is not limited. Its reference is ``few_token_experts_reference``. The host does not wait for
    the device. Rows may be in any order within an expert's blocks, empty places last: each row's sums are its own, so
    the result is reproducible.

    Args:
        blocks: the rows in blocks of ``tile.rows``; blocks of expert -1 are skipped. None: made by ``expert_blocks``.
        tile: None: chosen by :func:`tile_for`.

    Raises:
        ValueError: tensors or blocks that the kernels do not take.
    """
    tile = tile or tile_for(x.shape[0])
    reason = reason_against(x, w13, w2, weights, ids)
    if reason is None and blocks is not None and blocks.row.shape[1:] != (tile.rows,):
        reason = f"rows lie in blocks {tuple(blocks.row.shape)}; the tile takes {tile.rows} a block"
    if reason:
        raise ValueError(reason)
    assert isinstance(w13, Grouped)
    assert isinstance(w2, Grouped)
    tokens, hidden = x.shape
    if tokens == 0:
        return torch.empty_like(x)
    if blocks is None:
        blocks = expert_blocks(ids, w13.shape[0], tile.rows)
    most, inner = blocks.expert.numel(), w2.shape[2]
    h = torch.empty((most, tile.rows, inner), dtype=x.dtype, device=x.device)
    out = torch.empty((ids.numel(), hidden), dtype=x.dtype, device=x.device)
    options = {
        "HIDDEN": hidden, "INNER": inner, "ROWS": tile.rows, "STAGES": tile.stages, "AHEAD": tile.ahead, "num_warps": 4,
        **launch_options(x.device),
    }  # fmt: skip
    theirs = warpgroups.described(warpgroups.by_span(x, blocks, ids.shape[1]), tile.rows)
    _gate_and_up_kernel[(inner // OUTPUTS, most)](
        theirs, w13.levels.view(torch.int32), w13.scale, weights, blocks.expert, blocks.row, blocks.count, h, ids.numel(),
        GROUP=words_in_group(w13), **options,
    )  # fmt: skip
    between = warpgroups.described(h.view(-1, inner), tile.rows)
    _down_kernel[(hidden // (2 * OUTPUTS), most)](
        between, w2.levels.view(torch.int32), w2.scale, blocks.expert, blocks.row, blocks.count, out, ids.numel(),
        GROUP=words_in_group(w2), **options,
    )  # fmt: skip
    return sum_of_rows(out, ids, SUM_COLUMNS)
