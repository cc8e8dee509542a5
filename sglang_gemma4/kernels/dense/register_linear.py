"""``x @ weight.T`` for up to 32 rows and an fp8 or 4-bit weight, by :mod:`~sglang_gemma4.kernels.register_products`."""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from sglang_gemma4.kernels import register_products as registers
from sglang_gemma4.kernels.dependent_launch import launch_options
from sglang_gemma4.kernels.register_products import Warps
from sglang_gemma4.kernels.weights import Weight

LONG = 8192
"""Width above which all warps of a program split the width."""


def warps_for(outputs: int, width: int, rows: int, per: int, sms: int, gated: bool = False) -> Warps:
    """Eight warps along the width, or four if the programs would then not all be resident at once.

    Words loaded ahead take registers, which limits resident programs. Tiles are narrow where wide ones would leave
    half of the GPU idle. On an H200 most GEMMs of 26B-A4B, 31B and E2B are within 10 % of the fastest of about ten.
    Three are within 40 % (4, 16 and 32 rows; ``runs/2026-11-27-26b-h200-registers``).

    Args:
        outputs: columns of the result; with ``gated``, of the activation.
        per: inputs in an int32 word.
    """
    narrow = triton.cdiv(outputs, 32) < (sms if gated else sms / 2) or (gated and rows <= 8)
    wide = 16 if narrow else 32
    programs = triton.cdiv(outputs, wide)
    at_once = sms * (2 if rows <= 8 else 1)
    along = 8 if (programs <= at_once or width > LONG) and width > 4 * registers.WORDS * per else 4
    most = 3 * sms if rows <= 8 else 2 * sms if per == 4 and rows > 16 else programs
    crowded = programs > sms and (gated or along == 8 or programs > most)
    return Warps(wide, along, ahead=3 if crowded else 6)


@gluon.jit(do_not_specialize=["rows"])
def _register_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, WIDTH]
    words_ptr,  # [COUNT, WIDTH // PER] int32; gated: [2 * COUNT, ...], gate first
    scale_ptr,  # of groups, or of outputs
    scale_stride,
    out_ptr,  # [rows, COUNT]
    rows,
    x_stride,
    COUNT: gl.constexpr,
    WIDTH: gl.constexpr,
    PER: gl.constexpr,
    GROUP: gl.constexpr,
    GATED: gl.constexpr,
    ROWS: gl.constexpr,
    OUTPUTS: gl.constexpr,
    ALONG: gl.constexpr,
    ACROSS: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    SECOND: gl.constexpr = COUNT if GATED else 0  # noqa: N806
    first = gl.program_id(0) * OUTPUTS
    held = registers.ask_ahead(words_ptr, scale_ptr, first, SECOND, COUNT, WIDTH, PER, GROUP, OUTPUTS, ALONG, ACROSS, AHEAD)
    registers.await_inputs(PDL)
    x_at = x_ptr + gl.minimum(registers.rows_of(ROWS, PER, ALONG, ACROSS), rows - 1) * x_stride
    total, up = registers.register_sums(
        held, x_at, words_ptr, scale_ptr, first, SECOND, COUNT, WIDTH, PER, GROUP, ROWS, OUTPUTS, ALONG, ACROSS, AHEAD
    )
    row = registers.summed_rows(ROWS, ALONG)[None, :]
    output = first + registers.summed_outputs(OUTPUTS, ALONG)[:, None]
    dtype = out_ptr.dtype.element_ty
    if GROUP == 0:
        total *= gl.load(scale_ptr + output * scale_stride, mask=output < COUNT, other=0.0)
    if GATED:
        if GROUP == 0:
            up *= gl.load(scale_ptr + (output + COUNT) * scale_stride, mask=output < COUNT, other=0.0)
        total = registers.gelu_tanh(total.to(dtype).to(gl.float32)) * up.to(dtype).to(gl.float32)
    gl.store(out_ptr + row * COUNT + output, total.to(dtype), mask=(row < rows) & (output < COUNT))


def launch(x: torch.Tensor, weight: Weight, out: torch.Tensor, gated: bool, warps: Warps) -> None:
    """Fill ``out`` ``[rows, outputs]``. ``registers.takes`` and ``few_row_linear`` have checked the arguments. The host
    does not wait."""
    (rows, width), outputs = x.shape, out.shape[1]
    _register_linear_kernel[(triton.cdiv(outputs, warps.outputs),)](
        x_ptr=x, **registers.words_of(weight), out_ptr=out, rows=rows, x_stride=x.stride(0), COUNT=outputs, WIDTH=width, GATED=gated,
        ROWS=registers.padded(rows), **warps.constants(), **launch_options(x.device),
    )  # fmt: skip
