"""GEMMs of few rows with fp8 or 4-bit weights: from global memory into the registers that the matrix instruction reads.

Triton chooses layouts itself: a quantised weight passes through shared memory, is shifted alone, and waits for its
scale there. Gluon, Triton's language with explicit layouts, lets a lane load four adjacent words of an output. A
word's values become the operand of ``mma.m16n8k16`` in the same lane. The instruction sums over inputs in any order
that both operands share, so the rows' inputs are put into the words' order, in registers too. Values two (fp8) or
four (int4) places apart lie in the two halves of a register, so one mask extracts both.

A program requests its words before it waits for the previous kernel (:mod:`~sglang_gemma4.kernels.dependent_launch`),
which covers most of the time of a one-row GEMM. Its warps split the width and add up their sums in shared memory.

4-bit weights have the same bits as in :mod:`~sglang_gemma4.kernels.four_bits`: value minus 8, times scale, rounded to
bfloat16 once. Every e4m3 value is exact in bfloat16; an output's scale is applied to its sums.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra import cuda

from sglang_gemma4.kernels import register_layouts as layouts
from sglang_gemma4.kernels.weights import Grouped, Scaled, Weight

CAPABILITY = (8, 0)
"""Lowest compute capability with this bfloat16 instruction."""
MOST_ROWS = 32
WORDS = 16
"""Words of a row that a warp multiplies at a time: four in each of four lanes."""

_wanted = False


def want(wanted: bool) -> None:
    """Enable or disable these kernels in this process; :func:`takes` decides per GEMM."""
    global _wanted
    _wanted = wanted


@functools.cache
def reason_against(device: torch.device) -> str | None:
    """Why kernels of this module do not run on a device, or None."""
    if device.type != "cuda":
        return f"tensors are on {device.type}"
    found = torch.cuda.get_device_capability(device)
    return None if found >= CAPABILITY else f"the GPU's compute capability is {found[0]}.{found[1]}; 8.0 and later are supported"


def takes(x: torch.Tensor, weight: Weight, rows: int) -> bool:
    """Whether this module computes the GEMM of ``rows`` rows of ``x`` with this weight."""
    if not (_wanted and 0 < rows <= MOST_ROWS and x.dtype == torch.bfloat16 and reason_against(x.device) is None):
        return False
    if isinstance(weight, Scaled):
        levels = weight.levels
        return not weight.block and levels.is_contiguous() and levels.shape[-1] % 16 == 0 and levels.data_ptr() % 16 == 0
    return isinstance(weight, Grouped) and weight.zeros is None


def words_of(weight: Weight) -> dict[str, Any]:
    """Kernel arguments for a weight that :func:`takes` accepts: words, scales, strides and constants of the format."""
    if isinstance(weight, Grouped):
        strides = dict.fromkeys(("scale_expert_stride", "scale_stride")[3 - weight.levels.dim() :])
        return {"words_ptr": weight.levels.view(torch.int32), "scale_ptr": weight.scale, **strides, "PER": 8, "GROUP": weight.group // 8}
    assert isinstance(weight, Scaled)
    strides = dict(zip(("scale_expert_stride", "scale_stride")[3 - weight.levels.dim() :], weight.scale.stride(), strict=True))
    return {"words_ptr": weight.levels.view(torch.int32), "scale_ptr": weight.scale, **strides, "PER": 4, "GROUP": 0}


@dataclass(frozen=True)
class Warps:
    """Shape of a program: outputs, warps that split the width (``along``) and the outputs (``across``, 16 at a time).

    ``ahead``: steps of the width whose loads are issued before the previous kernel has ended.
    """

    outputs: int
    along: int
    across: int = 1
    ahead: int = 6

    @property
    def count(self) -> int:
        """Warps of a program."""
        return self.along * self.across

    def constants(self) -> dict[str, Any]:
        """Constants and options of a kernel launch."""
        return {"OUTPUTS": self.outputs, "ALONG": self.along, "ACROSS": self.across, "AHEAD": self.ahead, "num_warps": self.count}


def padded(rows: int) -> int:
    """``rows`` rounded up to what a GEMM supports: 8, 16 or 32."""
    return next(size for size in (8, 16, 32) if rows <= size)


@gluon.jit
def _ask(  # type: ignore[no-untyped-def]
    words_ptr, scale_ptr, first, step, COUNT: gl.constexpr, WIDTH: gl.constexpr, PER: gl.constexpr, GROUP: gl.constexpr,
    OUTPUTS: gl.constexpr, ALONG: gl.constexpr, ACROSS: gl.constexpr,
):  # fmt: skip
    """The words of one step, ``[ALONG, OUTPUTS, 16]``, and scales of groups ``[ALONG, OUTPUTS, 4]``; zeros beyond the weight's edges."""
    WORDS: gl.constexpr = WIDTH // PER  # noqa: N806
    W: gl.constexpr = layouts.words_layout(ALONG, ACROSS, OUTPUTS)  # noqa: N806
    S: gl.constexpr = layouts.scales_layout(ALONG, ACROSS, OUTPUTS)  # noqa: N806
    EDGE: gl.constexpr = COUNT % OUTPUTS != 0 or (step + 1) * ALONG * 16 > WORDS  # noqa: N806
    warp = gl.arange(0, ALONG, gl.SliceLayout(1, gl.SliceLayout(2, W)))[:, None, None]
    output = first + gl.arange(0, OUTPUTS, gl.SliceLayout(0, gl.SliceLayout(2, W)))[None, :, None]
    word = (step * ALONG + warp) * 16 + gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, W)))[None, None, :]
    if EDGE:
        words = gl.load(words_ptr + output * WORDS + word, mask=(word < WORDS) & (output < COUNT), other=0)
    else:
        words = gl.load(words_ptr + output * WORDS + word)
    s_warp = gl.arange(0, ALONG, gl.SliceLayout(1, gl.SliceLayout(2, S)))[:, None, None]
    s_output = first + gl.arange(0, OUTPUTS, gl.SliceLayout(0, gl.SliceLayout(2, S)))[None, :, None]
    s_word = (step * ALONG + s_warp) * 16 + 4 * gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, S)))[None, None, :]
    if GROUP == 0:
        scale = s_word
    elif EDGE:
        at = scale_ptr + s_output * (WORDS // GROUP) + s_word // GROUP
        scale = gl.load(at, mask=(s_word < WORDS) & (s_output < COUNT), other=0.0)
    else:
        scale = gl.load(scale_ptr + s_output * (WORDS // GROUP) + s_word // GROUP)
    return words, scale


@gluon.jit
def _further(words_ptr, scale_ptr, outputs: gl.constexpr, WIDTH: gl.constexpr, PER: gl.constexpr, GROUP: gl.constexpr):  # type: ignore[no-untyped-def]
    """Pointers to the words and the scales of groups some outputs further."""
    words_ptr += outputs * (WIDTH // PER)
    if GROUP > 0:
        scale_ptr += outputs * (WIDTH // PER // GROUP)
    return words_ptr, scale_ptr


@gluon.jit
def ask_ahead(  # type: ignore[no-untyped-def]
    words_ptr,  # [outputs, WIDTH // PER] int32
    scale_ptr,  # of groups: [outputs, WIDTH // PER // GROUP]
    first,  # output of the program's tile
    SECOND: gl.constexpr,  # outputs from it to a second product's; 0: there is none
    COUNT: gl.constexpr,  # outputs of a product
    WIDTH: gl.constexpr,
    PER: gl.constexpr,  # inputs in a word
    GROUP: gl.constexpr,  # words that share a scale, 4 at least; 0: there are no groups
    OUTPUTS: gl.constexpr,
    ALONG: gl.constexpr,
    ACROSS: gl.constexpr,
    AHEAD: gl.constexpr,
):
    """Words and scales of the first ``AHEAD`` steps of the width, loaded and not waited for."""
    held = ()
    more_ptr, more_scale_ptr = _further(words_ptr, scale_ptr, SECOND, WIDTH, PER, GROUP)
    for step in gl.static_range(layouts.steps_of(WIDTH, PER, ALONG)):
        if step < AHEAD:
            held = held + _ask(words_ptr, scale_ptr, first, step, COUNT, WIDTH, PER, GROUP, OUTPUTS, ALONG, ACROSS)
            if SECOND:
                held = held + _ask(more_ptr, more_scale_ptr, first, step, COUNT, WIDTH, PER, GROUP, OUTPUTS, ALONG, ACROSS)
    return held


@gluon.jit
def four_bits(words, scale):  # type: ignore[no-untyped-def]
    """The weights of words, each with its scale: of their shape and ``[2, 2, 2]``: half a register, and which register, low bit first."""
    wide = gl.convert_layout(scale, words.type.layout, assert_trivial=True)
    one, two, three, four, five, six, seven, eight = gl.inline_asm_elementwise(
        layouts.FOUR_BITS, "=h,=h,=h,=h,=h,=h,=h,=h,r,h", [words, wide],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16),
        is_pure=True, pack=1,
    )  # fmt: skip
    low = gl.join(gl.join(one, two), gl.join(three, four))
    high = gl.join(gl.join(five, six), gl.join(seven, eight))
    return gl.join(low, high)


@gluon.jit
def _four(scale):  # type: ignore[no-untyped-def]
    """Of each scale four, side by side."""
    return gl.join(gl.join(scale, scale), gl.join(scale, scale))


@gluon.jit
def _fp8(words):  # type: ignore[no-untyped-def]
    """``[.., .., 16, 2, 2, 1]``, likewise."""
    one, two, three, four = gl.inline_asm_elementwise(
        layouts.FP8, "=h,=h,=h,=h,r", [words], dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=1
    )
    both = gl.join(gl.join(one, two), gl.join(three, four))
    return gl.reshape(both, [words.shape[0], words.shape[1], 16, 2, 2, 1])


@gluon.jit
def _weights(words, scale, PER: gl.constexpr, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[ALONG, OUTPUTS, 16 * PER]`` bfloat16, the first operand."""
    ALONG: gl.constexpr = words.shape[0]  # noqa: N806
    OUTPUTS: gl.constexpr = words.shape[1]  # noqa: N806
    found = four_bits(words, gl.reshape(_four(scale), words.shape)) if PER == 8 else _fp8(words)
    places = gl.reshape(found, [ALONG, OUTPUTS, 4, 4, 2, 2, PER // 4])  # lane, word, half, register
    placed = gl.reshape(gl.permute(places, [0, 1, 3, 2, 6, 5, 4]), [ALONG, OUTPUTS, 16 * PER])
    return gl.convert_layout(placed, LAYOUT, assert_trivial=True)


@gluon.jit
def _inputs(x, PER: gl.constexpr, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """``[ALONG, 16 * PER, ROWS]``, the second operand, in the order of :func:`_weights`, from ``[ALONG, ROWS, 16 * PER]``."""
    ALONG: gl.constexpr = x.shape[0]  # noqa: N806
    ROWS: gl.constexpr = x.shape[1]  # noqa: N806
    places = gl.reshape(x, [ALONG, ROWS, 4, 4, 2, PER // 2])  # lane, word, half, register
    placed = gl.reshape(gl.permute(places, [0, 3, 2, 5, 4, 1]), [ALONG, 16 * PER, ROWS])
    return gl.convert_layout(placed, LAYOUT, assert_trivial=True)


@gluon.jit
def _over_warps(sums):  # type: ignore[no-untyped-def]
    """``[OUTPUTS, ROWS]`` from each warp's sums ``[ALONG, OUTPUTS, ROWS]``, always added up in the same order."""
    ALONG: gl.constexpr = sums.shape[0]  # noqa: N806
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])  # noqa: N806
    shared = gl.allocate_shared_memory(gl.float32, sums.shape, FLAT, sums)
    return gl.sum(shared.load(layouts.read_layout(ALONG, gl.num_warps())), 0)


@gluon.jit
def summed_rows(ROWS: gl.constexpr, ALONG: gl.constexpr):  # type: ignore[no-untyped-def]
    """``0 ... ROWS - 1`` as the sums' rows are laid out."""
    return gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(0, layouts.read_layout(ALONG, gl.num_warps()))))


@gluon.jit
def summed_outputs(OUTPUTS: gl.constexpr, ALONG: gl.constexpr):  # type: ignore[no-untyped-def]
    """``0 ... OUTPUTS - 1`` as the sums' outputs are laid out."""
    return gl.arange(0, OUTPUTS, gl.SliceLayout(1, gl.SliceLayout(0, layouts.read_layout(ALONG, gl.num_warps()))))


@gluon.jit
def rows_of(ROWS: gl.constexpr, PER: gl.constexpr, ALONG: gl.constexpr, ACROSS: gl.constexpr):  # type: ignore[no-untyped-def]
    """``0 ... ROWS - 1`` as :func:`register_sums` wants its rows laid out."""
    return gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, layouts.rows_layout(ALONG, ACROSS, ROWS, PER))))


@gluon.jit
def _inputs_of(pointers, inputs, start, WIDTH: gl.constexpr, SPAN: gl.constexpr):  # type: ignore[no-untyped-def]
    """The rows' inputs of a step; zeros beyond the width."""
    if start + SPAN > WIDTH:
        return gl.load(pointers + start, mask=inputs < WIDTH - start, other=0.0)
    else:  # noqa: RET505 - what is not compiled must not be reached
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
    PER: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    OUTPUTS: gl.constexpr,
    ALONG: gl.constexpr,
    ACROSS: gl.constexpr,
    AHEAD: gl.constexpr,
):
    """Both products of the rows in the program's outputs, ``[OUTPUTS, ROWS]`` float32; the second is zero where there is none. Scales of
    outputs are not in them."""
    X: gl.constexpr = layouts.rows_layout(ALONG, ACROSS, ROWS, PER)  # noqa: N806
    SUMS: gl.constexpr = layouts.sums_layout(ALONG, ACROSS)  # noqa: N806
    A: gl.constexpr = gl.DotOperandLayout(0, SUMS, PER)  # noqa: N806
    B: gl.constexpr = gl.DotOperandLayout(1, SUMS, PER)  # noqa: N806
    EACH: gl.constexpr = 4 if SECOND else 2  # noqa: N806
    SPAN: gl.constexpr = 16 * PER * ALONG  # noqa: N806
    warp = gl.arange(0, ALONG, gl.SliceLayout(1, gl.SliceLayout(2, X)))[:, None, None]
    inputs = warp * (16 * PER) + gl.arange(0, 16 * PER, gl.SliceLayout(0, gl.SliceLayout(1, X)))[None, None, :]
    pointers = x_at[None, :, None] + inputs
    more_ptr, more_scale_ptr = _further(words_ptr, scale_ptr, SECOND, WIDTH, PER, GROUP)
    one = gl.zeros([ALONG, OUTPUTS, ROWS], gl.float32, SUMS)
    two = gl.zeros([ALONG, OUTPUTS, ROWS], gl.float32, SUMS)
    for step in gl.static_range(layouts.steps_of(WIDTH, PER, ALONG)):
        b = _inputs(_inputs_of(pointers, inputs, step * SPAN, WIDTH, SPAN), PER, B)
        if step < AHEAD:
            words, scale = held[step * EACH], held[step * EACH + 1]
        else:
            words, scale = _ask(words_ptr, scale_ptr, first, step, COUNT, WIDTH, PER, GROUP, OUTPUTS, ALONG, ACROSS)
        one = mma_v2(_weights(words, scale, PER, A), b, one)
        if SECOND:
            if step < AHEAD:
                words, scale = held[step * EACH + 2], held[step * EACH + 3]
            else:
                words, scale = _ask(more_ptr, more_scale_ptr, first, step, COUNT, WIDTH, PER, GROUP, OUTPUTS, ALONG, ACROSS)
            two = mma_v2(_weights(words, scale, PER, A), b, two)
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
