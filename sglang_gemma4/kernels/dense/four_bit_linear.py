"""``x @ weight.T`` for few rows and a 4-bit weight in its checkpoint's layout: a quarter of bfloat16's bytes, read once.

Blocks of outputs and parts of the width are those of :mod:`~sglang_gemma4.kernels.dense.few_row_linear`, the inner
loop is the experts' (:mod:`~sglang_gemma4.kernels.four_bits`). One more launch first reorders the rows' inputs by
place in the int32 word.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dense.parts import Tile, gelu_tanh, parts_summed
from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.four_bits import by_place, four_bit_sums
from sglang_gemma4.kernels.weights import Grouped, levels_of, words_in_group


@triton.jit(do_not_specialize=["rows"])
def _four_bit_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, WIDTH] as by_place gives them
    words_ptr,  # [COUNT, WIDTH // 8] int32; gated: [2 * COUNT, ...], gate first
    scale_ptr,  # of each group of GROUP words
    zero_ptr,  # the same of two outputs, or None
    out_ptr,  # [rows, COUNT]
    parts_ptr,  # [PARTS, 1 or 2, rows, COUNT] float32
    done_ptr,  # [blocks] int32, zeros; zeros again afterwards
    rows,
    COUNT: tl.constexpr,  # outputs
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # rows, padded
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    share: tl.constexpr = (WIDTH + DEPTH * PARTS - 1) // (DEPTH * PARTS) * (DEPTH // 8)
    begin = tl.program_id(1) * share
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    total, up_total = four_bit_sums(
        x_ptr, row, row < rows, words_ptr, scale_ptr, zero_ptr, output, output < COUNT, begin, tl.minimum(begin + share, WIDTH // 8),
        COUNT if GATED else 0, WIDTH, ROWS, OUTPUTS, DEPTH, GROUP, BITS,
    )  # fmt: skip
    place = row[:, None].to(tl.int64) * COUNT + output[None, :]
    real = (row < rows)[:, None] & (output < COUNT)[None, :]
    last = PARTS == 1
    if PARTS > 1:
        size = tl.cast(rows, tl.int64) * COUNT
        total, up_total, last = parts_summed(total, up_total, place, real, size, parts_ptr, done_ptr, PARTS, GATED)
    if last:
        dtype = out_ptr.dtype.element_ty
        if GATED:
            total = gelu_tanh(total.to(dtype).to(tl.float32)) * up_total.to(dtype).to(tl.float32)
        tl.store(out_ptr + place, total.to(dtype), mask=real)


def launch(x: torch.Tensor, weight: Grouped, done: torch.Tensor, out: torch.Tensor, gated: bool, tile: Tile) -> None:
    """Fill ``out`` ``[rows, outputs]``; ``few_row_linear`` has checked the arguments. The host does not wait."""
    (rows, width), outputs = x.shape, out.shape[1]
    sums = torch.empty((tile.parts, 2 if gated else 1, rows, outputs) if tile.parts > 1 else 1, dtype=torch.float32, device=x.device)
    _four_bit_linear_kernel[(triton.cdiv(outputs, tile.outputs), tile.parts)](
        by_place(x.contiguous()), levels_of(weight), weight.scale, weight.zeros, out, sums, done, rows,
        COUNT=outputs, WIDTH=width, ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=tile.outputs, DEPTH=tile.depth, PARTS=tile.parts,
        GATED=gated, GROUP=words_in_group(weight), BITS=x.dtype == torch.bfloat16, num_warps=tile.warps, num_stages=tile.stages,
        **launch_options(x.device),
    )  # fmt: skip
