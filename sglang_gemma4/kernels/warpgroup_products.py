"""Tens to thousands of rows times 4-bit weights on a Hopper: from words into the registers of the warpgroup's matrix instruction.

``wgmma`` multiplies a first operand that lies in registers: as in :mod:`~sglang_gemma4.kernels.register_products` a lane loads words of an
output and makes that operand of them, while the instruction before still multiplies. The rows' inputs are the second operand, in shared
memory, in the words' order, in which :func:`by_span` puts them. A weight is converted once for up to 128 rows, and never written out.

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
"""The compute capability with ``wgmma``; later ones do not have it."""
SPAN = 64
"""Inputs multiplied at a time: two words of each of four lanes."""
OUTPUTS = 64
"""Of a product in a warpgroup: the instruction's."""
COLUMNS = 1024


@dataclass(frozen=True)
class Tile:
    """How a program works: rows, spans of inputs in shared memory, spans of words in registers before they are multiplied, and warpgroups.

    Two warpgroups have twice the outputs, so that rows are read half as often: for 2,048 tokens and one warpgroup a layer of 26B-A4B reads
    1.9 GB of them, and 1.1 of words.
    """

    rows: int
    stages: int = 4
    ahead: int = 2
    warpgroups: int = 1

    @property
    def outputs(self) -> int:
        """Of a product in a program."""
        return OUTPUTS * self.warpgroups


@functools.cache
def reason_against_card(device: torch.device) -> str | None:
    """Why this module does not run on a card, or None."""
    if device.type != "cuda":
        return f"tensors are on {device.type}"
    found = torch.cuda.get_device_capability(device)
    if found[0] != CAPABILITY:
        return f"the card's compute capability is {found[0]}.{found[1]}; 9.0 has the instruction"
    return assembler.reason_against_register_operands()


@gluon.constexpr_function
def sums_layout(outputs, rows):  # type: ignore[no-untyped-def]
    """``[outputs, rows]``."""
    return gl.NVMMADistributedLayout([3, 0], [outputs // 16, 1], [16, rows, 16])


@gluon.constexpr_function
def copy_layout(outputs):  # type: ignore[no-untyped-def]
    """``[rows, outputs]``: sixteen bytes a lane, eight or sixteen lanes a row."""
    return gl.BlockedLayout([1, 8], [256 // outputs, outputs // 8], [outputs // 16, 1], [1, 0])


@gluon.constexpr_function
def _warps(outputs):  # type: ignore[no-untyped-def]
    """Where the outputs of a warp begin: four in a warpgroup."""
    return [[16, 0], [32, 0]] + ([[64, 0]] if outputs == 128 else [])


@gluon.constexpr_function
def _words_layout(outputs):  # type: ignore[no-untyped-def]
    """``[outputs, 8]``: a lane has two words side by side of two outputs, four lanes an output."""
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[0, 1], [8, 0]], lanes, _warps(outputs), [], [outputs, 8])


@gluon.constexpr_function
def _scales_layout(outputs):  # type: ignore[no-untyped-def]
    """``[outputs, 4]``: the scale of each lane's words."""
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[8, 0]], lanes, _warps(outputs), [], [outputs, 4])


@gluon.jit
def _outputs(first, LIMIT: gl.constexpr, OUTPUTS: gl.constexpr, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """Those of a product in a program; beyond the last, that one again."""
    output = first + gl.arange(0, OUTPUTS, gl.SliceLayout(1, LAYOUT))
    if LIMIT % OUTPUTS:
        output = gl.minimum(output, LIMIT - 1)
    return output[:, None]


@gluon.jit
def _ask(  # type: ignore[no-untyped-def]
    words_ptr, scale_ptr, first, span,
    SECOND: gl.constexpr, LIMIT: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr, OUTPUTS: gl.constexpr,
):  # fmt: skip
    """The words of a span, ``[OUTPUTS, 8]``, and their scales ``[OUTPUTS, 4]``."""
    WORDS: gl.constexpr = WIDTH // 8  # noqa: N806
    W: gl.constexpr = _words_layout(OUTPUTS)  # noqa: N806
    S: gl.constexpr = _scales_layout(OUTPUTS)  # noqa: N806
    word = span * 8 + gl.arange(0, 8, gl.SliceLayout(0, W))[None, :]
    words = gl.load(words_ptr + (_outputs(first, LIMIT, OUTPUTS, W) + SECOND) * WORDS + word)
    word = span * 8 + 2 * gl.arange(0, 4, gl.SliceLayout(0, S))[None, :]
    return words, gl.load(scale_ptr + (_outputs(first, LIMIT, OUTPUTS, S) + SECOND) * (WORDS // GROUP) + word // GROUP)


@gluon.jit
def _ask_both(  # type: ignore[no-untyped-def]
    words_ptr, scale_ptr, first, span,
    SECOND: gl.constexpr, LIMIT: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr, OUTPUTS: gl.constexpr,
):  # fmt: skip
    """Of a span, for the first product and then for the second."""
    one = _ask(words_ptr, scale_ptr, first, span, 0, LIMIT, WIDTH, GROUP, OUTPUTS)
    return one + _ask(words_ptr, scale_ptr, first, span, SECOND, LIMIT, WIDTH, GROUP, OUTPUTS)


@gluon.jit
def _weights(words, scale, OUTPUTS: gl.constexpr, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[OUTPUTS, 64]`` bfloat16, the first operand, its inputs in the order of :func:`by_span_reference`."""
    found = four_bits(words, gl.reshape(gl.join(scale, scale), words.shape))
    places = gl.reshape(found, [OUTPUTS, 4, 2, 2, 2, 2])  # output, lane, word, half of a register, register, pair of registers
    placed = gl.reshape(gl.permute(places, [0, 2, 5, 4, 1, 3]), [OUTPUTS, 64])
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
    SECOND: gl.constexpr, LIMIT: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr, OUTPUTS: gl.constexpr, ROWS: gl.constexpr,
    STAGES: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """Multiply span ``now``, whose words lie in ``slot``; another one's take their place at once."""
    A: gl.constexpr = gl.DotOperandLayout(0, sums_layout(OUTPUTS, ROWS), 2)  # noqa: N806
    SPANS: gl.constexpr = WIDTH // 64  # noqa: N806
    mine = _weights(held[slot * 4], held[slot * 4 + 1], OUTPUTS, A)
    other = _weights(held[slot * 4 + 2], held[slot * 4 + 3], OUTPUTS, A)
    asked = _ask_both(words_ptr, scale_ptr, first, gl.minimum(now + AHEAD, SPANS - 1), SECOND, LIMIT, WIDTH, GROUP, OUTPUTS)
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
    LIMIT: gl.constexpr,  # of the first product in all programs; sums beyond are of the last
    WIDTH: gl.constexpr,
    GROUP: gl.constexpr,  # words that share a scale
    OUTPUTS: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
):
    """The rows' products with ``OUTPUTS`` from ``first`` and from ``first + SECOND`` on, ``[OUTPUTS, ROWS]`` float32 each.

    Inputs come through descriptors: copies of each lane would have to be fenced from the matrix instruction, and a fence waits for words
    that are on their way.
    """
    SUMS: gl.constexpr = sums_layout(OUTPUTS, ROWS)  # noqa: N806
    SPANS: gl.constexpr = WIDTH // 64  # noqa: N806
    staged = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, 64], x.layout)
    arrived = mbarrier.allocate_mbarrier(batch=STAGES)
    for stage in gl.static_range(STAGES):
        mbarrier.init(arrived.index(stage), count=1)
    fence_async_shared()
    gl.barrier()
    held = ()
    for span in gl.static_range(AHEAD):
        held = held + _ask_both(words_ptr, scale_ptr, first, min(span, SPANS - 1), SECOND, LIMIT, WIDTH, GROUP, OUTPUTS)
    for span in gl.static_range(STAGES - 1):
        _copy(x, row, staged, arrived, span, SPANS, STAGES)
    one = warpgroup_mma_init(gl.zeros([OUTPUTS, ROWS], gl.float32, SUMS))
    two = warpgroup_mma_init(gl.zeros([OUTPUTS, ROWS], gl.float32, SUMS))
    WHOLE: gl.constexpr = SPANS - SPANS % AHEAD  # noqa: N806
    for base in range(0, WHOLE, AHEAD):
        for slot in gl.static_range(AHEAD):
            held, one, two = _step(
                held, one, two, slot, base + slot, x, row, staged, arrived, words_ptr, scale_ptr, first,
                SECOND, LIMIT, WIDTH, GROUP, OUTPUTS, ROWS, STAGES, AHEAD,
            )  # fmt: skip
    for slot in gl.static_range(SPANS - WHOLE):
        held, one, two = _step(
            held, one, two, slot, WHOLE + slot, x, row, staged, arrived, words_ptr, scale_ptr, first,
            SECOND, LIMIT, WIDTH, GROUP, OUTPUTS, ROWS, STAGES, AHEAD,
        )  # fmt: skip
    one, two = warpgroup_mma_wait(0, deps=[one, two])
    gl.barrier()
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(arrived.index(stage))
    return one, two


@gluon.jit
def as_inputs(value, OUTPUTS: gl.constexpr, ROWS: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[ROWS, OUTPUTS]`` in :func:`copy_layout` from ``[OUTPUTS, ROWS]``, as the inputs of a product that comes next want them."""
    # Of each 64: lane, word, half of a register, pair of registers, register.
    places = gl.reshape(value, [OUTPUTS // 64, 4, 2, 2, 2, 2, ROWS])
    placed = gl.reshape(gl.permute(places, [0, 2, 4, 5, 1, 3, 6]), [OUTPUTS, ROWS])
    return as_rows(placed, OUTPUTS)


@gluon.jit
def as_rows(value, OUTPUTS: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[ROWS, OUTPUTS]`` in :func:`copy_layout` from ``[OUTPUTS, ROWS]``."""
    return gl.convert_layout(gl.permute(value, [1, 0]), copy_layout(OUTPUTS))


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
    """What :func:`by_span` makes of a row: inputs in the first operand's order, of bits word, pair, register, lane and half."""
    lane, word, half, pair, register = range(1, 6)
    return x.reshape(-1, 4, 2, 2, 2, 2).permute(0, word, pair, register, lane, half).reshape(x.shape)


def by_span(x: torch.Tensor, blocks: Blocks, topk: int) -> torch.Tensor:
    """Rows ``[tokens, width]``, contiguous, as ``blocks`` says, with the inputs of each 64 in the matrix instruction's order.

    Args:
        x: its width is a multiple of 64.
        blocks: of rows, ``topk`` of which a token has.

    Returns:
        ``[most blocks * rows a block, width]``; empty places and what is behind the last block are undefined.
    """
    tokens, width = x.shape
    out = torch.empty((blocks.row.numel(), width), dtype=x.dtype, device=x.device)
    _by_span_kernel[(blocks.row.numel(),)](
        x, out, x.stride(0), blocks.row, blocks.count, tokens * topk,
        TOPK=topk, ROWS=blocks.row.shape[1], WIDTH=width, COLUMNS=COLUMNS, num_warps=4, **launch_options(x.device),
    )  # fmt: skip
    return out


def described(rows: torch.Tensor, block: int) -> TensorDescriptor:
    """Contiguous rows ``[count, width]`` as :func:`products` takes them, ``block`` at a time; zeros beyond the last."""
    return TensorDescriptor.from_tensor(rows, [block, SPAN], gl.NVMMASharedLayout(128, 16, 2))
