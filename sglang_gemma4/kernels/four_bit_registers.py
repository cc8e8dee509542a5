"""Few rows times 4-bit weights on a card: words go from memory into the registers in which the matrix instruction wants their weights.

Triton lays a tile out by itself, and a 4-bit weight then passes through shared memory, is shifted alone, and waits for its scale there. In
Gluon, Triton's own language for layouts, a lane loads four words of an output side by side, and the eight levels of a word become the
operand of ``mma.m16n8k16`` in the same lane: the instruction sums over its inputs in any order that both operands share, so the rows'
inputs are put in the words' order, in registers too. Levels four apart lie in both halves of a register, so a mask serves two. A program
has asked for all its words before it waits for the kernel before (:mod:`~sglang_gemma4.kernels.dependent_launch`), which is most of the
time of a product of one row; its warps share the width, and add their sums up in shared memory.

Weights have the same bits as in :mod:`~sglang_gemma4.kernels.four_bits`: level minus 8 times scale, rounded to bfloat16 once.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra import cuda

from sglang_gemma4.kernels.weights import Grouped

CAPABILITY = (8, 0)
"""The compute capability from which cards multiply bfloat16 so."""
MOST_ROWS = 32
SPAN = 128
"""Inputs of a row that a warp multiplies at a time: four words a lane, of four lanes."""

_wanted = False


def want(wanted: bool) -> None:
    """Whether this process multiplies 4-bit weights so, where :func:`reason_against` has nothing against it."""
    global _wanted
    _wanted = wanted


@functools.cache
def reason_against(device: torch.device) -> str | None:
    """Why kernels of this module do not run on a device, or None."""
    if device.type != "cuda":
        return f"tensors are on {device.type}"
    found = torch.cuda.get_device_capability(device)
    return None if found >= CAPABILITY else f"the card's compute capability is {found[0]}.{found[1]}; 8.0 and later are supported"


def takes(x: torch.Tensor, weight: object, rows: int) -> bool:
    """Whether ``rows`` of ``x`` times a weight are for this module."""
    fits = _wanted and isinstance(weight, Grouped) and 0 < rows <= MOST_ROWS and x.dtype == torch.bfloat16
    return fits and reason_against(x.device) is None


@dataclass(frozen=True)
class Warps:
    """How a program works: its outputs, how many warps share the width and how many the outputs (16 of them at a time), and how many steps
    of the width are asked for before the kernel before has ended."""

    outputs: int
    along: int
    across: int = 1
    ahead: int = 16

    @property
    def count(self) -> int:
        """Warps of a program."""
        return self.along * self.across

    def constants(self) -> dict[str, Any]:
        """Of a kernel's launch."""
        return {"OUTPUTS": self.outputs, "ALONG": self.along, "ACROSS": self.across, "num_warps": self.count}


def padded(rows: int) -> int:
    """Rows of a product: 8, 16 or 32."""
    return next(size for size in (8, 16, 32) if rows <= size)


# Two halves of a register have the levels of places j and j + 4; 0x4300 plus a level is 128 plus it, as bfloat16.
_TO_WEIGHTS = gl.constexpr(
    "{ .reg .b32 scale, one, off, none, a, b, c, d; mov.b32 scale, {$9, $9}; "
    "mov.b32 one, 0x3f803f80; mov.b32 off, 0xc308c308; mov.b32 none, 0x80008000; "
    "shr.u32 b, $8, 4; shr.u32 c, $8, 8; shr.u32 d, $8, 12; "
    + " ".join(
        f"lop3.b32 {out}, {word}, 0x000f000f, 0x43004300, 0xea; fma.rn.bf16x2 {out}, {out}, one, off; "
        f"fma.rn.bf16x2 {out}, {out}, scale, none;"
        for out, word in (("a", "$8"), ("b", "b"), ("c", "c"), ("d", "d"))
    )
    + " mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; mov.b32 {$4, $5}, c; mov.b32 {$6, $7}, d; }"
)


@gluon.constexpr_function
def _doublings(first, below):  # type: ignore[no-untyped-def]
    """``first``, twice it, and so on below ``below``."""
    found = []
    while first < below:
        found.append(first)
        first *= 2
    return found


@gluon.constexpr_function
def _warp_bases(along, across, of_outputs):  # type: ignore[no-untyped-def]
    return [[0, of_outputs * step, 0] for step in _doublings(16, 16 * across)] + [[step, 0, 0] for step in _doublings(1, along)]


@gluon.constexpr_function
def _words_layout(along, across, outputs):  # type: ignore[no-untyped-def]
    """``[along, outputs, 16]``: a lane has four words side by side, four lanes an output."""
    registers = [[0, 0, 1], [0, 0, 2], [0, 8, 0], *([0, step, 0] for step in _doublings(16 * across, outputs))]
    lanes = [[0, 0, 4], [0, 0, 8], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, _warp_bases(along, across, 1), [], [along, outputs, 16])


@gluon.constexpr_function
def _scales_layout(along, across, outputs):  # type: ignore[no-untyped-def]
    """``[along, outputs, 4]``: the scale of each lane's words."""
    registers = [[0, 8, 0], *([0, step, 0] for step in _doublings(16 * across, outputs))]
    lanes = [[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, _warp_bases(along, across, 1), [], [along, outputs, 4])


@gluon.constexpr_function
def _rows_layout(along, across, rows):  # type: ignore[no-untyped-def]
    """``[along, rows, 128]``: a lane has 32 inputs of a row, those of its words."""
    registers = [*([0, 0, step] for step in _doublings(1, 32)), *([0, step, 0] for step in _doublings(8, rows))]
    lanes = [[0, 0, 32], [0, 0, 64], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, _warp_bases(along, across, 0), [], [along, rows, 128])


@gluon.constexpr_function
def _sums_layout(along, across):  # type: ignore[no-untyped-def]
    return gl.NVMMADistributedLayout([2, 0], [along, across, 1], [1, 16, 8])


@gluon.constexpr_function
def steps_of(width, along):  # type: ignore[no-untyped-def]
    """Steps of the width, 128 inputs of each warp along it."""
    return (width + 128 * along - 1) // (128 * along)


@gluon.jit
def _ask(  # type: ignore[no-untyped-def]
    words_ptr, scale_ptr, first, step, COUNT: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr,
    OUTPUTS: gl.constexpr, ALONG: gl.constexpr, ACROSS: gl.constexpr,
):  # fmt: skip
    """The words of one step, ``[ALONG, OUTPUTS, 16]``, and their scales ``[ALONG, OUTPUTS, 4]``; zeros beyond the weight's edges."""
    WORDS: gl.constexpr = WIDTH // 8  # noqa: N806
    W: gl.constexpr = _words_layout(ALONG, ACROSS, OUTPUTS)  # noqa: N806
    S: gl.constexpr = _scales_layout(ALONG, ACROSS, OUTPUTS)  # noqa: N806
    warp = gl.arange(0, ALONG, gl.SliceLayout(1, gl.SliceLayout(2, W)))[:, None, None]
    output = first + gl.arange(0, OUTPUTS, gl.SliceLayout(0, gl.SliceLayout(2, W)))[None, :, None]
    word = (step * ALONG + warp) * 16 + gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, W)))[None, None, :]
    s_warp = gl.arange(0, ALONG, gl.SliceLayout(1, gl.SliceLayout(2, S)))[:, None, None]
    s_output = first + gl.arange(0, OUTPUTS, gl.SliceLayout(0, gl.SliceLayout(2, S)))[None, :, None]
    s_word = (step * ALONG + s_warp) * 16 + 4 * gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, S)))[None, None, :]
    word_at = words_ptr + output * WORDS + word
    scale_at = scale_ptr + s_output * (WORDS // GROUP) + s_word // GROUP
    if COUNT % OUTPUTS != 0 or (step + 1) * ALONG * 16 > WORDS:
        words = gl.load(word_at, mask=(word < WORDS) & (output < COUNT), other=0)
        scale = gl.load(scale_at, mask=(s_word < WORDS) & (s_output < COUNT), other=0.0)
    else:
        words = gl.load(word_at)
        scale = gl.load(scale_at)
    return words, scale


@gluon.jit
def ask_ahead(  # type: ignore[no-untyped-def]
    words_ptr,  # [outputs, WIDTH // 8] int32
    scale_ptr,  # [outputs, WIDTH // 8 // GROUP]
    first,  # output of the program's tile
    SECOND: gl.constexpr,  # outputs from it to a second product's; 0: there is none
    COUNT: gl.constexpr,  # outputs of a product
    WIDTH: gl.constexpr,
    GROUP: gl.constexpr,  # words that share a scale, 4 at least
    OUTPUTS: gl.constexpr,
    ALONG: gl.constexpr,
    ACROSS: gl.constexpr,
    AHEAD: gl.constexpr,
):
    """Words and scales of the first ``AHEAD`` steps of the width, loaded and not waited for."""
    held = ()
    for step in gl.static_range(steps_of(WIDTH, ALONG)):
        if step < AHEAD:
            held = held + _ask(words_ptr, scale_ptr, first, step, COUNT, WIDTH, GROUP, OUTPUTS, ALONG, ACROSS)
            if SECOND:
                more_ptr = words_ptr + SECOND * (WIDTH // 8)
                more_scale_ptr = scale_ptr + SECOND * (WIDTH // 8 // GROUP)
                held = held + _ask(more_ptr, more_scale_ptr, first, step, COUNT, WIDTH, GROUP, OUTPUTS, ALONG, ACROSS)
    return held


@gluon.jit
def _weights(words, scale, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[.., .., 128]`` bfloat16, the first operand, from words and scales."""
    ALONG: gl.constexpr = words.shape[0]  # noqa: N806
    OUTPUTS: gl.constexpr = words.shape[1]  # noqa: N806
    wide = gl.reshape(gl.join(gl.join(scale, scale), gl.join(scale, scale)), [ALONG, OUTPUTS, 16])
    wide = gl.convert_layout(wide, words.type.layout, assert_trivial=True)
    one, two, three, four, five, six, seven, eight = gl.inline_asm_elementwise(
        _TO_WEIGHTS, "=h,=h,=h,=h,=h,=h,=h,=h,r,h", [words, wide],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16),
        is_pure=True, pack=1,
    )  # fmt: skip
    low = gl.join(gl.join(one, two), gl.join(three, four))
    high = gl.join(gl.join(five, six), gl.join(seven, eight))
    places = gl.reshape(gl.join(low, high), [ALONG, OUTPUTS, 4, 4, 2, 2, 2])  # lane, word, half, pair, pair of pairs
    return gl.convert_layout(gl.reshape(gl.permute(places, [0, 1, 3, 2, 6, 5, 4]), [ALONG, OUTPUTS, 128]), LAYOUT, assert_trivial=True)


@gluon.jit
def _inputs(x, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[ALONG, 128, ROWS]``, the second operand, in the order of :func:`_weights`, from ``[ALONG, ROWS, 128]``."""
    ALONG: gl.constexpr = x.shape[0]  # noqa: N806
    ROWS: gl.constexpr = x.shape[1]  # noqa: N806
    places = gl.reshape(x, [ALONG, ROWS, 4, 4, 2, 4])  # lane, word, half, pair
    return gl.convert_layout(gl.reshape(gl.permute(places, [0, 3, 2, 5, 4, 1]), [ALONG, 128, ROWS]), LAYOUT, assert_trivial=True)


@gluon.jit
def _over_warps(sums):  # type: ignore[no-untyped-def]
    """``[OUTPUTS, ROWS]`` from each warp's sums ``[ALONG, OUTPUTS, ROWS]``, always added up in the same order."""
    ALONG: gl.constexpr = sums.shape[0]  # noqa: N806
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])  # noqa: N806
    READ: gl.constexpr = gl.BlockedLayout([ALONG, 1, 1], [1, 4, 8], [1, gl.num_warps(), 1], [2, 1, 0])  # noqa: N806
    shared = gl.allocate_shared_memory(gl.float32, sums.shape, FLAT, sums)
    return gl.sum(shared.load(READ), 0)


@gluon.jit
def rows_of(ROWS: gl.constexpr, ALONG: gl.constexpr, ACROSS: gl.constexpr):  # type: ignore[no-untyped-def]
    """``0 ... ROWS - 1`` as :func:`register_sums` wants its rows laid out."""
    return gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, _rows_layout(ALONG, ACROSS, ROWS))))


@gluon.jit
def _inputs_of(pointers, inputs, start, WIDTH: gl.constexpr, ALONG: gl.constexpr):  # type: ignore[no-untyped-def]
    """The rows' inputs from ``start`` on, ``[ALONG, ROWS, 128]``; zeros beyond the width."""
    if start + ALONG * 128 > WIDTH:
        return gl.load(pointers + start, mask=inputs < WIDTH - start, other=0.0)
    else:
        return gl.load(pointers + start)


@gluon.jit
def register_sums(  # type: ignore[no-untyped-def]
    held,  # what ask_ahead returned for the same weight and constants
    x_at,  # pointers to the rows' first inputs, laid out as rows_of; each must be readable
    words_ptr,
    scale_ptr,
    first,
    SECOND: gl.constexpr,
    COUNT: gl.constexpr,
    WIDTH: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    OUTPUTS: gl.constexpr,
    ALONG: gl.constexpr,
    ACROSS: gl.constexpr,
    AHEAD: gl.constexpr,
):
    """Both products of the rows in the program's outputs, ``[OUTPUTS, ROWS]`` float32; the second is zero where there is none."""
    X: gl.constexpr = _rows_layout(ALONG, ACROSS, ROWS)  # noqa: N806
    SUMS: gl.constexpr = _sums_layout(ALONG, ACROSS)  # noqa: N806
    A: gl.constexpr = gl.DotOperandLayout(0, SUMS, 8)  # noqa: N806
    B: gl.constexpr = gl.DotOperandLayout(1, SUMS, 8)  # noqa: N806
    EACH: gl.constexpr = 4 if SECOND else 2  # noqa: N806
    warp = gl.arange(0, ALONG, gl.SliceLayout(1, gl.SliceLayout(2, X)))[:, None, None]
    inputs = warp * 128 + gl.arange(0, 128, gl.SliceLayout(0, gl.SliceLayout(1, X)))[None, None, :]
    pointers = x_at[None, :, None] + inputs
    one = gl.zeros([ALONG, OUTPUTS, ROWS], gl.float32, SUMS)
    two = gl.zeros([ALONG, OUTPUTS, ROWS], gl.float32, SUMS)
    for step in gl.static_range(steps_of(WIDTH, ALONG)):
        b = _inputs(_inputs_of(pointers, inputs, step * ALONG * 128, WIDTH, ALONG), B)
        if step < AHEAD:
            words, scale = held[step * EACH], held[step * EACH + 1]
        else:
            words, scale = _ask(words_ptr, scale_ptr, first, step, COUNT, WIDTH, GROUP, OUTPUTS, ALONG, ACROSS)
        one = mma_v2(_weights(words, scale, A), b, one)
        if SECOND:
            if step < AHEAD:
                words, scale = held[step * EACH + 2], held[step * EACH + 3]
            else:
                more_ptr = words_ptr + SECOND * (WIDTH // 8)
                more_scale_ptr = scale_ptr + SECOND * (WIDTH // 8 // GROUP)
                words, scale = _ask(more_ptr, more_scale_ptr, first, step, COUNT, WIDTH, GROUP, OUTPUTS, ALONG, ACROSS)
            two = mma_v2(_weights(words, scale, A), b, two)
    one = _over_warps(one)
    return one, _over_warps(two) if SECOND else gl.zeros_like(one)


@gluon.jit
def await_inputs(PDL: gl.constexpr):  # type: ignore[no-untyped-def]
    """As ``dependent_launch.await_inputs``; the next kernel's programs may start at once."""
    if PDL:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()


@gluon.jit
def gelu_tanh(x):  # type: ignore[no-untyped-def]
    """The FFN's activation in float32."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + gl.exp(-2.0 * inner))
