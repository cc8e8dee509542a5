"""GEMMs with 4-bit weights whose groups of inputs share a scale, as in checkpoints and SGLang's Triton experts.

An int32 word holds eight inputs of an output. So that no value leaves its register, a GEMM is the sum of eight GEMMs,
one per place in the word. Each takes the rows' inputs at its place, which :func:`by_place` makes contiguous. int4
values become bfloat16 two at a time by bit operations (0x4300 plus a value is 128 plus it), and are multiplied by
their scale there. So a weight is rounded to bfloat16 once, as in Marlin's kernels and in a dequantised checkpoint.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options

PLACES = 8
"""Inputs in an int32 word."""
COLUMNS = 1024


@triton.constexpr_function
def at_place(place: int, zeros: bool) -> str:
    """PTX for two words (adjacent inputs of one output) and their scales: the two dequantised weights at ``place``.

    ``zeros``: a fourth operand is added to 128 plus the int4 value, instead of symmetric weights' -136 (0xc308).
    """
    halves, shift = ("0x5410", "0x7632")[place // 4], 4 * (place % 4)
    return (
        "{ .reg .b32 t, one, off, none; mov.b32 one, 0x3f803f80; mov.b32 none, 0x80008000; "
        f"mov.b32 off, {'$4' if zeros else '0xc308c308'}; "
        f"prmt.b32 t, $1, $2, {halves}; shr.u32 t, t, {shift}; lop3.b32 t, t, 0x000f000f, 0x43004300, 0xea; "
        "fma.rn.bf16x2 t, t, one, off; fma.rn.bf16x2 $0, t, $3, none; }"
    )


@triton.jit
def _weights_at(words, scale, zero, dtype: tl.constexpr, PLACE: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The inputs at ``PLACE`` of the words, less their zero point, times their scale. ``BITS``: by PTX, for bfloat16; else as Triton's
    interpreter can. ``zero``: from :func:`_zeros`; None: 8."""
    if not BITS:
        level = (words >> (4 * PLACE)) & 15
        found = (level - (8 if zero is None else zero)).to(dtype) * scale.to(dtype)
    elif zero is None:
        ptx: tl.constexpr = at_place(PLACE, False)
        found = tl.inline_asm_elementwise(ptx, "=r,r,r,r", [words, scale], dtype=tl.bfloat16, is_pure=True, pack=2)
    else:
        with_zero: tl.constexpr = at_place(PLACE, True)
        found = tl.inline_asm_elementwise(with_zero, "=r,r,r,r,r", [words, scale, zero], dtype=tl.bfloat16, is_pure=True, pack=2)
    return found


@triton.jit
def _zeros(zero_ptr, columns, groups, read, GROUPS: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """``[groups, COLUMNS]``: the groups' zero points, int32; for PTX -128 less them, bfloat16, which -128's lowest bits hold."""
    pair = tl.load(zero_ptr + (columns // 2)[None, :] * GROUPS + groups[:, None], mask=read, other=0)
    zero = (pair >> ((columns % 2) * 4).to(tl.uint8)[None, :]) & 15
    return (zero.to(tl.int16) | -15616).to(tl.bfloat16, bitcast=True) if BITS else zero.to(tl.int32)  # 0xc300


@triton.jit
def _for_words(scale, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """``[words, COLUMNS]`` from one scale for each ``GROUP`` words."""
    wide = tl.broadcast_to(scale[:, None, :], [scale.shape[0], GROUP, scale.shape[1]])
    return tl.reshape(wide, [scale.shape[0] * GROUP, scale.shape[1]])


@triton.jit
def four_bit_sums(  # type: ignore[no-untyped-def]
    x_ptr,  # rows as by_place gives them
    rows,  # [SIZE] int64: which of them
    real,  # [SIZE]
    words_ptr,  # of the expert, [outputs, WIDTH // 8] int32
    scale_ptr,  # of the expert, [outputs, WIDTH // (8 * GROUP)]
    zero_ptr,  # of the expert, [outputs // 2, WIDTH // (8 * GROUP)] uint8; None: 8
    columns,  # [COLUMNS]: outputs
    inside,  # [COLUMNS]
    begin,  # words: from where on, a multiple of DEPTH // 8
    end,
    SECOND: tl.constexpr,  # how many outputs further a second product's lie, which has the same inputs; 0: there is none
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,  # words
    BITS: tl.constexpr,
):
    """Both products of the rows in one tile of columns, over the words from ``begin`` to ``end``: ``[SIZE, COLUMNS]`` float32 each; the
    second is zero where there is none."""
    WORDS: tl.constexpr = WIDTH // 8  # noqa: N806
    STEP: tl.constexpr = DEPTH // 8  # noqa: N806
    GROUPS: tl.constexpr = WORDS // GROUP  # noqa: N806
    word = tl.arange(0, STEP)
    group = tl.arange(0, STEP // GROUP)
    x_pointers = x_ptr + rows[:, None] * WIDTH + word[None, :]
    word_pointers = words_ptr + columns[None, :] * WORDS + word[:, None]
    scale_pointers = scale_ptr + columns[None, :] * GROUPS + group[:, None]
    one = tl.zeros([SIZE, COLUMNS], tl.float32)
    two = tl.zeros([SIZE, COLUMNS], tl.float32)
    for start in range(begin, end, STEP):
        read = inside[None, :] & (word < end - start)[:, None]
        scaled = inside[None, :] & (group < GROUPS - start // GROUP)[:, None]
        words = tl.load(word_pointers + start, mask=read, other=0)
        scale = _for_words(tl.load(scale_pointers + start // GROUP, mask=scaled, other=0.0), GROUP)
        zero = None
        if zero_ptr is not None:
            zero = _for_words(_zeros(zero_ptr, columns, group + start // GROUP, scaled, GROUPS, BITS), GROUP)
        if SECOND:
            more = tl.load(word_pointers + (SECOND * WORDS + start), mask=read, other=0)
            scales = _for_words(tl.load(scale_pointers + (SECOND * GROUPS + start // GROUP), mask=scaled, other=0.0), GROUP)
            zeros = None
            if zero_ptr is not None:
                zeros = _for_words(_zeros(zero_ptr, columns + SECOND, group + start // GROUP, scaled, GROUPS, BITS), GROUP)
        for place in tl.static_range(8):
            taken = tl.load(x_pointers + (place * WORDS + start), mask=real[:, None] & (word < end - start)[None, :], other=0.0)
            one = tl.dot(taken, _weights_at(words, scale, zero, taken.dtype, place, BITS), one, input_precision="ieee")
            if SECOND:
                two = tl.dot(taken, _weights_at(more, scales, zeros, taken.dtype, place, BITS), two, input_precision="ieee")
    return one, two


@triton.jit
def _by_place_kernel(x_ptr, out_ptr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    await_inputs(PDL)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0).to(tl.int64) * WIDTH
    values = tl.load(x_ptr + row + column, mask=column < WIDTH)
    tl.store(out_ptr + row + place_of(column, WIDTH), values, mask=column < WIDTH)


@triton.jit
def place_of(column, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where an input lies after :func:`by_place`."""
    return column % 8 * (WIDTH // 8) + column // 8


def by_place_reference(x: torch.Tensor) -> torch.Tensor:
    """What :func:`by_place` computes."""
    return x.unflatten(-1, (-1, PLACES)).transpose(-1, -2).flatten(-2)


def by_place(x: torch.Tensor) -> torch.Tensor:
    """Reorder contiguous rows ``[tokens, width]`` by place in the int32 word: place 0 of all words first, then place 1.

    The width is a multiple of 8. The host does not wait for the device.
    """
    out = torch.empty_like(x)
    tokens, width = x.shape
    _by_place_kernel[(tokens, triton.cdiv(width, COLUMNS))](x, out, WIDTH=width, COLUMNS=COLUMNS, num_warps=4, **launch_options(x.device))
    return out
