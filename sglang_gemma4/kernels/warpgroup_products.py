"""GEMMs of tens to thousands of rows with 4-bit weights on Hopper: from int32 words into the registers of ``wgmma``.

``wgmma`` can take its first operand from registers. As in :mod:`~sglang_gemma4.kernels.register_products`, a lane
loads words of an output and dequantises them into that operand, while the previous instruction still runs. The rows
are the second operand, in shared memory, with their inputs in the words' order (:func:`by_span`). A weight is
dequantised once for up to 64 rows, and never written to memory.

Weights have the same bits as in :mod:`~sglang_gemma4.kernels.four_bits`; sums are float32.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from sglang_gemma4.kernels import assembler
from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.experts.expert_blocks import Blocks
from sglang_gemma4.kernels.register_products import four_bits

CAPABILITY = 9
"""Major compute capability with ``wgmma``; later ones do not have it."""
SPAN = 64
"""Inputs multiplied at a time: two words of each of four lanes."""
OUTPUTS = 64
"""Outputs of a GEMM per program, as many as ``wgmma`` takes."""
COLUMNS = 1024


@dataclass(frozen=True)
class Tile:
    """Shape of a program: rows, spans of inputs in shared memory, and spans of words loaded into registers ahead."""

    rows: int
    stages: int = 4
    ahead: int = 2


@functools.cache
def reason_against_card(device: torch.device) -> str | None:
    """Why this module does not run on a GPU, or None."""
    if device.type != "cuda":
        return f"tensors are on {device.type}"
    found = torch.cuda.get_device_capability(device)
    if found[0] != CAPABILITY:
        return f"the GPU's compute capability is {found[0]}.{found[1]}; 9.0 has the instruction"
    return assembler.reason_against_register_operands()


@gluon.constexpr_function
def sums_layout(rows):  # type: ignore[no-untyped-def]
    """Sums ``[64, rows]``."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])


@gluon.constexpr_function
def copy_layout():  # type: ignore[no-untyped-def]
    """Inputs ``[rows, 64]``: 16 bytes per lane, eight lanes per row."""
    return gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])


@gluon.constexpr_function
def _words_layout():  # type: ignore[no-untyped-def]
    """Words ``[64, 8]``: a lane holds two adjacent words of each of two outputs, four lanes cover an output."""
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[0, 1], [8, 0]], lanes, [[16, 0], [32, 0]], [], [64, 8])


@gluon.constexpr_function
def _scales_layout():  # type: ignore[no-untyped-def]
    """Scales ``[64, 4]``: a lane holds the scales of its words."""
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[8, 0]], lanes, [[16, 0], [32, 0]], [], [64, 4])


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
def _ask_both(words_ptr, scale_ptr, first, span, SECOND: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr):  # type: ignore[no-untyped-def]
    """Of a span, for the first product and then for the second."""
    return _ask(words_ptr, scale_ptr, first, span, WIDTH, GROUP) + _ask(words_ptr, scale_ptr, first + SECOND, span, WIDTH, GROUP)


@gluon.jit
def _weights(words, scale, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[64, 64]`` bfloat16, the first operand, its inputs in the order of :func:`by_span_reference`."""
    found = four_bits(words, gl.reshape(gl.join(scale, scale), words.shape))
    places = gl.reshape(found, [64, 4, 2, 2, 2, 2])  # output, lane, word, half of a register, register, pair of registers
    placed = gl.reshape(gl.permute(places, [0, 2, 5, 4, 1, 3]), [64, 64])
    return gl.convert_layout(placed, LAYOUT, assert_trivial=True)


@gluon.jit
def _copy(x, row, staged, arrived, span, SPANS: gl.constexpr, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Have a span of the rows' inputs copied, where there is one."""
    there = span < SPANS
    barrier = arrived.index(span % STAGES)
    mbarrier.expect(barrier, x.nbytes_per_cta, pred=there)
    tma.async_load(x, [row, span * 64], barrier, staged.index(span % STAGES), pred=there)


@gluon.jit
def _step(  # type: ignore[no-untyped-def]
    held, one, two, slot: gl.constexpr, now, x, row, staged, arrived, words_ptr, scale_ptr, first,
    SECOND: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """Multiply span ``now``, whose words lie in ``slot``; another one's take their place at once."""
    A: gl.constexpr = gl.DotOperandLayout(0, sums_layout(ROWS), 2)  # noqa: N806
    SPANS: gl.constexpr = WIDTH // 64  # noqa: N806
    mine = _weights(held[slot * 4], held[slot * 4 + 1], A)
    other = _weights(held[slot * 4 + 2], held[slot * 4 + 3], A)
    asked = _ask_both(words_ptr, scale_ptr, first, gl.minimum(now + AHEAD, SPANS - 1), SECOND, WIDTH, GROUP)
    held = held[: slot * 4] + asked + held[(slot + 1) * 4 :]
    one, two = warpgroup_mma_wait(0, deps=[one, two])
    gl.barrier()  # nobody reads the span before any more
    mbarrier.wait(arrived.index(now % STAGES), now // STAGES % 2)
    inputs = staged.index(now % STAGES).permute([1, 0])
    one = warpgroup_mma(mine, inputs, one, is_async=True)
    two = warpgroup_mma(other, inputs, two, is_async=True)
    _copy(x, row, staged, arrived, now + STAGES - 1, SPANS, STAGES)
    return held, one, two


@gluon.jit
def products(  # type: ignore[no-untyped-def]
    x,  # descriptor of rows in the words' order: blocks of [ROWS, 64]
    row,  # the first of this program's
    words_ptr,  # [outputs, WIDTH // 8] int32
    scale_ptr,  # [outputs, WIDTH // 8 // GROUP]
    first,
    SECOND: gl.constexpr,  # outputs from the first product's to the second one's
    WIDTH: gl.constexpr,
    GROUP: gl.constexpr,  # words that share a scale
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
):
    """The rows' products with 64 outputs from ``first`` and with 64 from ``first + SECOND``, ``[64, ROWS]`` float32 each.

    Inputs come through descriptors: copies of each lane would have to be fenced from the matrix instruction, and a fence waits for words
    that are on their way.
    """
    SUMS: gl.constexpr = sums_layout(ROWS)  # noqa: N806
    SPANS: gl.constexpr = WIDTH // 64  # noqa: N806
    staged = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, 64], x.layout)
    arrived = mbarrier.allocate_mbarrier(batch=STAGES)
    for stage in gl.static_range(STAGES):
        mbarrier.init(arrived.index(stage), count=1)
    fence_async_shared()
    gl.barrier()
    held = ()
    for span in gl.static_range(AHEAD):
        held = held + _ask_both(words_ptr, scale_ptr, first, min(span, SPANS - 1), SECOND, WIDTH, GROUP)
    for span in gl.static_range(STAGES - 1):
        _copy(x, row, staged, arrived, span, SPANS, STAGES)
    one = warpgroup_mma_init(gl.zeros([64, ROWS], gl.float32, SUMS))
    two = warpgroup_mma_init(gl.zeros([64, ROWS], gl.float32, SUMS))
    WHOLE: gl.constexpr = SPANS - SPANS % AHEAD  # noqa: N806
    for base in range(0, WHOLE, AHEAD):
        for slot in gl.static_range(AHEAD):
            held, one, two = _step(
                held, one, two, slot, base + slot, x, row, staged, arrived, words_ptr, scale_ptr, first,
                SECOND, WIDTH, GROUP, ROWS, STAGES, AHEAD,
            )  # fmt: skip
    for slot in gl.static_range(SPANS - WHOLE):
        held, one, two = _step(
            held, one, two, slot, WHOLE + slot, x, row, staged, arrived, words_ptr, scale_ptr, first,
            SECOND, WIDTH, GROUP, ROWS, STAGES, AHEAD,
        )  # fmt: skip
    one, two = warpgroup_mma_wait(0, deps=[one, two])
    gl.barrier()
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(arrived.index(stage))
    return one, two


@gluon.jit
def as_inputs(value, ROWS: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[ROWS, 64]`` in :func:`copy_layout` from outputs ``[64, ROWS]``, as the inputs of a product that comes next want them."""
    places = gl.reshape(value, [4, 2, 2, 2, 2, ROWS])  # lane, word, half of a register, pair of registers, register
    placed = gl.reshape(gl.permute(places, [1, 3, 4, 0, 2, 5]), [64, ROWS])
    return gl.convert_layout(gl.permute(placed, [1, 0]), copy_layout())


@gluon.jit
def as_rows(value):  # type: ignore[no-untyped-def]
    """``[ROWS, 64]`` in :func:`copy_layout` from outputs ``[64, ROWS]``."""
    return gl.convert_layout(gl.permute(value, [1, 0]), copy_layout())


@triton.jit(do_not_specialize=["LAST"])
def _by_span_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    out_ptr,
    stride,
    row_ptr,  # [blocks, ROWS]: which row lies where, of TOPK a token
    count_ptr,
    LAST,
    TOPK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(row_ptr + place).to(tl.int64)
    real = (row < LAST) & (place < tl.load(count_ptr) * ROWS)  # what lies behind the last block is undefined
    row = row // TOPK
    if real:
        for start in tl.static_range(0, WIDTH, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            values = tl.load(x_ptr + row * stride + column, mask=column < WIDTH)
            # Bits of an input: lane, word, half of a register, pair of registers, register; and as the first operand wants them.
            places = tl.permute(tl.reshape(values, [COLUMNS // 64, 4, 2, 2, 2, 2]), (0, 2, 4, 5, 1, 3))
            tl.store(out_ptr + place * WIDTH + column, tl.reshape(places, [COLUMNS]), mask=column < WIDTH)


def by_span_reference(x: torch.Tensor) -> torch.Tensor:
    """What :func:`by_span` does to a row: inputs go into the first operand's order (word, pair, register, lane, half)."""
    lane, word, half, pair, register = range(1, 6)
    return x.reshape(-1, 4, 2, 2, 2, 2).permute(0, word, pair, register, lane, half).reshape(x.shape)


def by_span(x: torch.Tensor, blocks: Blocks, topk: int) -> torch.Tensor:
    """Gather contiguous rows ``[tokens, width]`` into ``blocks``, each 64 inputs in the matrix instruction's order.

    Args:
        x: the width is a multiple of 64.
        blocks: blocks of rows; a token has ``topk`` rows.

    Returns:
        ``[most blocks * rows per block, width]``; empty places and rows after the last block are undefined.
    """
    tokens, width = x.shape
    out = torch.empty((blocks.row.numel(), width), dtype=x.dtype, device=x.device)
    _by_span_kernel[(blocks.row.numel(),)](
        x, out, x.stride(0), blocks.row, blocks.count, tokens * topk,
        TOPK=topk, ROWS=blocks.row.shape[1], WIDTH=width, COLUMNS=COLUMNS, num_warps=4, **launch_options(x.device),
    )  # fmt: skip
    return out


def described(rows: torch.Tensor, block: int) -> TensorDescriptor:
    """TMA descriptor of contiguous rows ``[count, width]`` for :func:`products`, by ``block`` rows; zeros past the end."""
    return TensorDescriptor.from_tensor(rows, [block, SPAN], gl.NVMMASharedLayout(128, 16, 2))
