"""``x @ weight.T`` for tens to thousands of rows and a 4-bit weight as its checkpoint holds it, on a Hopper.

A verify step of 16 requests has more rows than the kernels of few rows take; written out for cuBLAS, a layer's weights of 26B-A4B are
100 MB of memory more, twice. Here they are read once for every 128 rows, a quarter of bfloat16's bytes
(:mod:`~sglang_gemma4.kernels.warpgroup_products`).
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from sglang_gemma4.kernels import warpgroup_products as warpgroups
from sglang_gemma4.kernels.assembler import keeps_operands
from sglang_gemma4.kernels.dependent_launch import launch_options
from sglang_gemma4.kernels.register_products import gelu_tanh
from sglang_gemma4.kernels.warpgroup_products import OUTPUTS, SPAN, Tile
from sglang_gemma4.kernels.weights import Grouped, Weight, words_in_group

WIDE = 256
"""Rows from which on a program takes 128 of them. Not measured."""
MOST_ROWS = 1024
"""More are for cuBLAS behind the weight written out. Not measured."""

_wanted = False


def want(wanted: bool) -> None:
    """Whether this process multiplies 4-bit weights so, where there is nothing against it."""
    global _wanted
    _wanted = wanted


def takes(x: torch.Tensor, weight: Weight, gated: bool = False) -> bool:
    """Whether a product is for this module."""
    return _wanted and 0 < x.shape[0] <= MOST_ROWS and x.is_cuda and reason_against(x, weight, gated) is None


def tile_for(rows: int) -> Tile:
    """Not measured."""
    return Tile(32) if rows <= 32 else Tile(64) if rows < WIDE else Tile(128, stages=3, ahead=1)


def reason_against(x: torch.Tensor, weight: Weight, gated: bool = False) -> str | None:
    """Why a product is not for this module, or None; where the tensors lie is not looked at."""
    if not isinstance(weight, Grouped) or weight.levels.dim() != 2 or x.dtype != torch.bfloat16:
        return f"{type(weight).__name__} and {x.dtype}; 4-bit weights and bfloat16 are supported"
    if weight.zeros is not None:
        return "levels with zero points; symmetric ones are supported"
    outputs, width = weight.shape
    if x.dim() != 2 or x.shape[1] != width or x.stride(1) != 1:
        return f"rows {tuple(x.shape)} of strides {x.stride()} and a weight {tuple(weight.shape)}"
    if width % SPAN or outputs % (2 * OUTPUTS if gated else OUTPUTS):
        return f"a weight {tuple(weight.shape)}; multiples of {2 * OUTPUTS if gated else OUTPUTS} and {SPAN} are supported"
    return None


@keeps_operands
@gluon.jit(do_not_specialize=["rows"])
def _wide_linear_kernel(  # type: ignore[no-untyped-def]
    x,  # descriptor of [rows, WIDTH] as by_span gives them
    words_ptr,  # [COUNT, WIDTH // 8] int32; gated: [2 * COUNT, ...], gate first
    scale_ptr,
    out_ptr,  # [rows, COUNT]
    rows,
    COUNT: gl.constexpr,  # outputs
    WIDTH: gl.constexpr,
    GATED: gl.constexpr,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    COPY: gl.constexpr = warpgroups.copy_layout()  # noqa: N806
    first = gl.program_id(0) * 64
    row = gl.program_id(1) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY))
    SECOND: gl.constexpr = COUNT if GATED else 0  # noqa: N806
    value, up = warpgroups.products(x, gl.program_id(1) * ROWS, words_ptr, scale_ptr, first, SECOND, WIDTH, GROUP, ROWS, STAGES, AHEAD, PDL)
    if GATED:
        value = gelu_tanh(value.to(gl.bfloat16).to(gl.float32)) * up.to(gl.bfloat16).to(gl.float32)
    at = out_ptr + row.to(gl.int64)[:, None] * COUNT + (first + gl.arange(0, 64, gl.SliceLayout(0, COPY)))[None, :]
    gl.store(at, warpgroups.as_rows(value.to(gl.bfloat16)), mask=(row < rows)[:, None])


def wide_linear(x: torch.Tensor, weight: Weight, *, gated: bool = False, tile: Tile | None = None) -> torch.Tensor:
    """``[rows, outputs]`` bfloat16: ``x`` ``[rows, width]`` times a 4-bit ``weight`` ``[outputs, width]``; gated: as ``few_row_linear``.

    The host does not wait for the device.

    Raises:
        ValueError: what :func:`reason_against` names.
    """
    if reason := reason_against(x, weight, gated):
        raise ValueError(reason)
    assert isinstance(weight, Grouped)
    (rows, width), outputs = x.shape, weight.shape[0] // (2 if gated else 1)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    tile = tile or tile_for(rows)
    _wide_linear_kernel[(outputs // OUTPUTS, triton.cdiv(rows, tile.rows))](
        warpgroups.described(warpgroups.by_span(x), tile.rows), weight.levels.view(torch.int32), weight.scale, out, rows,
        COUNT=outputs, WIDTH=width, GATED=gated, GROUP=words_in_group(weight), ROWS=tile.rows, STAGES=tile.stages, AHEAD=tile.ahead,
        num_warps=4, **launch_options(x.device),
    )  # fmt: skip
    return out
