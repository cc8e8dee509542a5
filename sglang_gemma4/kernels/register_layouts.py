"""Register layouts of :mod:`~sglang_gemma4.kernels.register_products`, and the PTX that dequantises its weights.

They follow the lanes of ``mma.m16n8k16``: four lanes share an output or row, each with other inputs; eight such
groups of lanes have different outputs or rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# The halves of a register hold the int4 values at places j and j + 4. As bfloat16, 0x4300 plus a value is 128 plus it.
FOUR_BITS = gl.constexpr(
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
# Bytes j and j + 2. e4m3's exponent and mantissa, in bfloat16's places, are the value times 2^-120, subnormals too.
FP8 = gl.constexpr(
    "{ .reg .b32 unbiased, none, a, b, sign; mov.b32 unbiased, 0x7b807b80; mov.b32 none, 0x80008000; "
    "shl.b32 a, $4, 4; shl.b32 sign, $4, 8; and.b32 a, a, 0x07f007f0; lop3.b32 a, sign, 0x80008000, a, 0xea; "
    "shr.u32 b, $4, 4; and.b32 b, b, 0x07f007f0; lop3.b32 b, $4, 0x80008000, b, 0xea; "
    "fma.rn.bf16x2 a, a, unbiased, none; fma.rn.bf16x2 b, b, unbiased, none; mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; }"
)


@gluon.constexpr_function
def _doublings(first, below):  # type: ignore[no-untyped-def]
    """``[first, 2 * first, 4 * first, ...]``, all below ``below``."""
    found = []
    while first < below:
        found.append(first)
        first *= 2
    return found


@gluon.constexpr_function
def _warp_bases(along, across, of_outputs):  # type: ignore[no-untyped-def]
    return [[0, of_outputs * step, 0] for step in _doublings(16, 16 * across)] + [[step, 0, 0] for step in _doublings(1, along)]


@gluon.constexpr_function
def words_layout(along, across, outputs):  # type: ignore[no-untyped-def]
    """Words ``[along, outputs, 16]``: a lane holds four adjacent words, four lanes cover an output."""
    registers = [[0, 0, 1], [0, 0, 2], [0, 8, 0], *([0, step, 0] for step in _doublings(16 * across, outputs))]
    lanes = [[0, 0, 4], [0, 0, 8], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, _warp_bases(along, across, 1), [], [along, outputs, 16])


@gluon.constexpr_function
def scales_layout(along, across, outputs):  # type: ignore[no-untyped-def]
    """Scales ``[along, outputs, 4]``: a lane holds the scale of its words."""
    registers = [[0, 8, 0], *([0, step, 0] for step in _doublings(16 * across, outputs))]
    lanes = [[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, _warp_bases(along, across, 1), [], [along, outputs, 4])


@gluon.constexpr_function
def rows_layout(along, across, rows, per):  # type: ignore[no-untyped-def]
    """Rows ``[along, rows, 16 * per]``: a lane holds the inputs of its words."""
    registers = [*([0, 0, step] for step in _doublings(1, 4 * per)), *([0, step, 0] for step in _doublings(8, rows))]
    lanes = [[0, 0, 4 * per], [0, 0, 8 * per], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, _warp_bases(along, across, 0), [], [along, rows, 16 * per])


@gluon.constexpr_function
def sums_layout(along, across):  # type: ignore[no-untyped-def]
    return gl.NVMMADistributedLayout([2, 0], [along, across, 1], [1, 16, 8])


@gluon.constexpr_function
def read_layout(along, warps):  # type: ignore[no-untyped-def]
    """Sums ``[along, outputs, rows]``: all terms of a sum are in one lane."""
    return gl.BlockedLayout([along, 1, 1], [1, 4, 8], [1, warps, 1], [2, 1, 0])


@gluon.constexpr_function
def steps_of(width, per, along):  # type: ignore[no-untyped-def]
    """Number of steps over the width; in each, every warp along it takes 16 words."""
    return (width + 16 * per * along - 1) // (16 * per * along)
