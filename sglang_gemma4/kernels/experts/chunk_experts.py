"""4-bit experts of hundreds to thousands of tokens on a Hopper: from words into the registers of the warpgroup's matrix instruction.

An expert has tens to hundreds of rows here. Kernels of few rows (:mod:`grouped_experts`) convert its words again for every 32 of them,
and writing them out first (:mod:`prefill_experts`) takes half a millisecond a layer of 26B-A4B. ``wgmma`` multiplies a first operand that
lies in registers: as in :mod:`~sglang_gemma4.kernels.register_products` a lane loads words of an output and makes that operand of them,
while the instruction before still multiplies. The rows' inputs are the second operand, in shared memory, in the words' order: one launch
puts a chunk's inputs in it (:func:`by_span`), and the first product leaves its outputs in it.

Weights have the same bits as in :mod:`~sglang_gemma4.kernels.four_bits`; sums are float32.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait

from sglang_gemma4.kernels import register_layouts
from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.experts.expert_blocks import Blocks, expert_blocks
from sglang_gemma4.kernels.experts.gated_experts import reason_against as reason_against_experts
from sglang_gemma4.kernels.experts.grouped_experts import sum_of_rows
from sglang_gemma4.kernels.register_products import await_inputs as await_rows
from sglang_gemma4.kernels.register_products import gelu_tanh
from sglang_gemma4.kernels.weights import Grouped, Weight, words_in_group

CAPABILITY = 9
"""The compute capability with ``wgmma``; later ones do not have it."""
SPAN = 64
"""Inputs multiplied at a time: two words of each of four lanes."""
OUTPUTS = 64
"""Of a tile, of each of its two products: the instruction's."""
COLUMNS = 1024
SUM_COLUMNS = 1024


@dataclass(frozen=True)
class Tile:
    """How a program works: rows a block, spans of inputs in shared memory, and spans of words in registers before they are multiplied."""

    rows: int
    stages: int = 4
    ahead: int = 2


def tile_for(tokens: int) -> Tile:
    """Not measured. Of 128 experts, eight of which a token takes, one has a sixteenth of the tokens on average."""
    return Tile(32) if tokens <= 384 else Tile(64) if tokens <= 1536 else Tile(128, stages=3)


@functools.cache
def reason_against_card(device: torch.device) -> str | None:
    """Why this module does not run on a card, or None."""
    if device.type != "cuda":
        return f"tensors are on {device.type}"
    found = torch.cuda.get_device_capability(device)
    return None if found[0] == CAPABILITY else f"the card's compute capability is {found[0]}.{found[1]}; 9.0 has the instruction"


def reason_against(x: torch.Tensor, w13: Weight, w2: Weight, weights: torch.Tensor, ids: torch.Tensor) -> str | None:
    """Why these tensors are not for this module, or None."""
    if reason := reason_against_experts(x, w13, w2, weights, ids):
        return reason
    if x.dtype != torch.bfloat16 or not (isinstance(w13, Grouped) and isinstance(w2, Grouped)):
        return f"{type(w13).__name__} and {x.dtype}; 4-bit weights and bfloat16 are supported"
    hidden, inner = x.shape[1], w2.shape[2]
    if hidden % (2 * OUTPUTS) or inner % OUTPUTS:
        return f"experts of {hidden} x {inner}; multiples of {2 * OUTPUTS} and {OUTPUTS} are supported"
    return None


@gluon.constexpr_function
def _sums_layout(rows):  # type: ignore[no-untyped-def]
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])


@gluon.constexpr_function
def _words_layout():  # type: ignore[no-untyped-def]
    """``[64, 8]``: a lane has two words side by side of two outputs, four lanes an output."""
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[0, 1], [8, 0]], lanes, [[16, 0], [32, 0]], [], [64, 8])


@gluon.constexpr_function
def _scales_layout():  # type: ignore[no-untyped-def]
    """``[64, 4]``: the scale of each lane's words."""
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[8, 0]], lanes, [[16, 0], [32, 0]], [], [64, 4])


@gluon.constexpr_function
def _copy_layout():  # type: ignore[no-untyped-def]
    """``[rows, 64]``: sixteen bytes a lane, eight lanes a row."""
    return gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])


@gluon.jit
def _ask(words_ptr, scale_ptr, first, span, WIDTH: gl.constexpr, GROUP: gl.constexpr):  # type: ignore[no-untyped-def]
    """The words of a span, ``[64, 8]``, and their scales ``[64, 4]``."""
    WORDS: gl.constexpr = WIDTH // 8  # noqa: N806
    W: gl.constexpr = _words_layout()  # noqa: N806
    S: gl.constexpr = _scales_layout()  # noqa: N806
    output = first + gl.arange(0, 64, gl.SliceLayout(1, W))[:, None]
    word = span * 8 + gl.arange(0, 8, gl.SliceLayout(0, W))[None, :]
    words = gl.load(words_ptr + output * WORDS + word)
    output = first + gl.arange(0, 64, gl.SliceLayout(1, S))[:, None]
    word = span * 8 + 2 * gl.arange(0, 4, gl.SliceLayout(0, S))[None, :]
    return words, gl.load(scale_ptr + output * (WORDS // GROUP) + word // GROUP)


@gluon.jit
def _weights(words, scale, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[64, 64]`` bfloat16, the first operand, its inputs in the order of :func:`place_in_span`."""
    wide = gl.convert_layout(gl.reshape(gl.join(scale, scale), words.shape), words.type.layout, assert_trivial=True)
    one, two, three, four, five, six, seven, eight = gl.inline_asm_elementwise(
        register_layouts.FOUR_BITS, "=h,=h,=h,=h,=h,=h,=h,=h,r,h", [words, wide],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16),
        is_pure=True, pack=1,
    )  # fmt: skip
    low = gl.join(gl.join(one, two), gl.join(three, four))
    high = gl.join(gl.join(five, six), gl.join(seven, eight))
    places = gl.reshape(gl.join(low, high), [64, 4, 2, 2, 2, 2])  # output, lane, word, half of a register, register, pair of registers
    placed = gl.reshape(gl.permute(places, [0, 2, 5, 4, 1, 3]), [64, 64])
    return gl.convert_layout(placed, LAYOUT, assert_trivial=True)


@gluon.jit
def _copy(pointers, staged, span, SPANS: gl.constexpr, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Have a span of the rows' inputs copied, where there is one; a group of copies either way, since groups are counted."""
    if span < SPANS:
        async_copy.async_copy_global_to_shared(staged.index(span % STAGES), pointers + span * 64)
    async_copy.commit_group()


@gluon.jit
def _both(  # type: ignore[no-untyped-def]
    x_at,  # pointers to the rows' first inputs, laid out along the rows of _copy_layout
    words_ptr,  # [outputs, WIDTH // 8] int32
    scale_ptr,  # [outputs, WIDTH // 8 // GROUP]
    first,
    SECOND: gl.constexpr,
    WIDTH: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
):
    """The rows' products with 64 outputs from ``first`` and with 64 from ``first + SECOND``, ``[64, ROWS]`` float32 each."""
    SUMS: gl.constexpr = _sums_layout(ROWS)  # noqa: N806
    A: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)  # noqa: N806
    COPY: gl.constexpr = _copy_layout()  # noqa: N806
    SPANS: gl.constexpr = WIDTH // 64  # noqa: N806
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)  # noqa: N806
    staged = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, 64], SHARED)
    pointers = x_at[:, None] + gl.arange(0, 64, gl.SliceLayout(0, COPY))[None, :]
    for span in gl.static_range(STAGES - 1):
        _copy(pointers, staged, span, SPANS, STAGES)
    held = ()
    for span in gl.static_range(AHEAD):
        held = held + _ask(words_ptr, scale_ptr, first, min(span, SPANS - 1), WIDTH, GROUP)
        held = held + _ask(words_ptr, scale_ptr, first + SECOND, min(span, SPANS - 1), WIDTH, GROUP)
    one = warpgroup_mma_init(gl.zeros([64, ROWS], gl.float32, SUMS))
    two = warpgroup_mma_init(gl.zeros([64, ROWS], gl.float32, SUMS))
    for span in range(SPANS):
        # While the span before is multiplied.
        mine = _weights(held[0], held[1], A)
        other = _weights(held[2], held[3], A)
        one, two = warpgroup_mma_wait(0, deps=[one, two])
        async_copy.wait_group(STAGES - 2)
        gl.barrier()  # every lane's copies of this span are there, and nobody reads the span before any more
        inputs = staged.index(span % STAGES).permute([1, 0])
        one = warpgroup_mma(mine, inputs, one, is_async=True)
        two = warpgroup_mma(other, inputs, two, is_async=True)
        next_span = gl.minimum(span + AHEAD, SPANS - 1)
        held = held[4:] + _ask(words_ptr, scale_ptr, first, next_span, WIDTH, GROUP)
        held = held + _ask(words_ptr, scale_ptr, first + SECOND, next_span, WIDTH, GROUP)
        _copy(pointers, staged, span + STAGES - 1, SPANS, STAGES)
    one, two = warpgroup_mma_wait(0, deps=[one, two])
    async_copy.wait_group(0)
    return one, two


@gluon.jit(do_not_specialize=["LAST"])
def _gate_and_up_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [tokens, HIDDEN] as by_span gives them
    words_ptr,  # [experts, 2 * INNER, HIDDEN // 8] int32, gate first
    scale_ptr,  # [experts, 2 * INNER, HIDDEN // 8 // GROUP]
    shares_ptr,  # [rows] float32
    expert_ptr,  # [blocks]; -1: of no expert
    row_ptr,  # [blocks, ROWS]
    count_ptr,
    h_ptr,  # [blocks, ROWS, INNER], as by_span gives them
    LAST,  # rows in all
    TOPK: gl.constexpr,
    HIDDEN: gl.constexpr,
    INNER: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    COPY: gl.constexpr = _copy_layout()  # noqa: N806
    SUMS: gl.constexpr = _sums_layout(ROWS)  # noqa: N806
    await_rows(PDL)
    block = gl.program_id(1)
    # All loads at once, before it is known whether the block exists: what lies behind the last is undefined, and not used.
    count = gl.load(count_ptr)
    expert = gl.load(expert_ptr + block).to(gl.int64)
    row = gl.load(row_ptr + block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY)))
    mine = gl.load(row_ptr + block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, SUMS)))
    if (block < count) & (expert >= 0):
        first = gl.program_id(0) * 64
        share = gl.load(shares_ptr + mine, mask=mine < LAST, other=0.0).to(gl.float32)
        x_at = x_ptr + gl.where(row < LAST, row // TOPK, 0).to(gl.int64) * HIDDEN
        words_ptr += expert * (2 * INNER * (HIDDEN // 8))
        scale_ptr += expert * (2 * INNER * (HIDDEN // 8 // GROUP))
        gate, up = _both(x_at, words_ptr, scale_ptr, first, INNER, HIDDEN, GROUP, ROWS, STAGES, AHEAD)
        value = (gelu_tanh(gate) * up * share[None, :]).to(gl.bfloat16)
        # The outputs of this tile are a span of the second product's inputs.
        places = gl.reshape(value, [4, 2, 2, 2, 2, ROWS])  # lane, word, half of a register, pair of registers, register
        placed = gl.reshape(gl.permute(places, [1, 3, 4, 0, 2, 5]), [64, ROWS])
        stored = gl.convert_layout(gl.permute(placed, [1, 0]), COPY)
        at = h_ptr + (block.to(gl.int64) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY)))[:, None] * INNER
        gl.store(at + (first + gl.arange(0, 64, gl.SliceLayout(0, COPY)))[None, :], stored)


@gluon.jit(do_not_specialize=["LAST"])
def _down_kernel(  # type: ignore[no-untyped-def]
    h_ptr,  # [blocks, ROWS, INNER], as the first product leaves them
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
    COPY: gl.constexpr = _copy_layout()  # noqa: N806
    await_rows(PDL)
    block = gl.program_id(1)
    count = gl.load(count_ptr)
    expert = gl.load(expert_ptr + block).to(gl.int64)
    place = gl.arange(0, ROWS, gl.SliceLayout(1, COPY))
    row = gl.load(row_ptr + block * ROWS + place)
    if (block < count) & (expert >= 0):
        first = gl.program_id(0) * 128
        h_at = h_ptr + (block.to(gl.int64) * ROWS + place) * INNER
        words_ptr += expert * (HIDDEN * (INNER // 8))
        scale_ptr += expert * (HIDDEN * (INNER // 8 // GROUP))
        one, two = _both(h_at, words_ptr, scale_ptr, first, 64, INNER, GROUP, ROWS, STAGES, AHEAD)
        at = out_ptr + row.to(gl.int64)[:, None] * HIDDEN + (first + gl.arange(0, 64, gl.SliceLayout(0, COPY)))[None, :]
        real = (row < LAST)[:, None]
        gl.store(at, gl.convert_layout(gl.permute(one.to(gl.bfloat16), [1, 0]), COPY), mask=real)
        gl.store(at + 64, gl.convert_layout(gl.permute(two.to(gl.bfloat16), [1, 0]), COPY), mask=real)


@triton.jit
def place_in_span(column):  # type: ignore[no-untyped-def]
    """Where an input lies in its span after :func:`by_span`: the first operand's order, of bits lane, word, half, pair and register."""
    lane, word, half = column // 16 % 4, column // 8 % 2, column // 4 % 2
    return word * 32 + column // 2 % 2 * 16 + column % 2 * 8 + lane * 2 + half


@triton.jit
def _by_span_kernel(x_ptr, out_ptr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    await_inputs(PDL)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0).to(tl.int64) * WIDTH
    values = tl.load(x_ptr + row + column, mask=column < WIDTH)
    tl.store(out_ptr + row + column // 64 * 64 + place_in_span(column), values, mask=column < WIDTH)


def by_span_reference(x: torch.Tensor) -> torch.Tensor:
    """What :func:`by_span` computes."""
    lane, word, half, pair, register = range(1, 6)
    return x.view(-1, 4, 2, 2, 2, 2).permute(0, word, pair, register, lane, half).reshape(x.shape)


def by_span(x: torch.Tensor) -> torch.Tensor:
    """Contiguous rows ``[tokens, width]`` with the inputs of each 64 in the matrix instruction's order; the width is a multiple of 64."""
    out = torch.empty_like(x)
    tokens, width = x.shape
    _by_span_kernel[(tokens, triton.cdiv(width, COLUMNS))](x, out, WIDTH=width, COLUMNS=COLUMNS, num_warps=4, **launch_options(x.device))
    return out


def chunk_experts(
    x: torch.Tensor,
    w13: Weight,
    w2: Weight,
    weights: torch.Tensor,
    ids: torch.Tensor,
    blocks: Blocks | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``[tokens, hidden]`` bfloat16; arguments as ``few_token_experts`` has, any tokens.

    Its reference is ``few_token_experts_reference``. The host does not wait for the device. Rows may lie in any order in an expert's
    blocks, empty places last: each row's sums are its own, so the result is the same every time.

    Args:
        blocks: of the rows, as many a block as ``tile`` says; blocks of expert -1 are left out. None: ``expert_blocks`` makes them.
        tile: None: :func:`tile_for` the tokens.

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
    _gate_and_up_kernel[(inner // 64, most)](
        by_span(x), w13.levels.view(torch.int32), w13.scale, weights, blocks.expert, blocks.row, blocks.count, h, ids.numel(),
        TOPK=ids.shape[1], GROUP=words_in_group(w13), **options,
    )  # fmt: skip
    _down_kernel[(hidden // 128, most)](
        h, w2.levels.view(torch.int32), w2.scale, blocks.expert, blocks.row, blocks.count, out, ids.numel(),
        GROUP=words_in_group(w2), **options,
    )  # fmt: skip
    return sum_of_rows(out, ids, SUM_COLUMNS)
