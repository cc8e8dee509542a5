"""The gate of a layer's per-layer embedding (E2B, E4B) with the norm and the sum before it, in one launch, for a few rows.

``stream = rmsnorm(x) + residual`` and ``gelu_tanh(stream @ weight.T) * embedding``. A decode or verify step of a few rows spends most of
the three separate launches starting and ending them: the weight has 256 outputs. Here a program multiplies a block of outputs with a part
of the width as in :mod:`~sglang_gemma4.kernels.dense.few_row_linear`, and first sums the squares of whole rows by itself: 20 KiB that all
programs read from the L2 cache.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.card import multiprocessors
from sglang_gemma4.kernels.dense import gated_embedding
from sglang_gemma4.kernels.dense.few_row_linear import few_row_linear_reference, tile_for
from sglang_gemma4.kernels.dense.few_row_linear import reason_against as reason_against_weight
from sglang_gemma4.kernels.dense.parts import Tile, gelu_tanh, parts_summed
from sglang_gemma4.kernels.dependent_launch import LINE, await_inputs, launch_options, prefetch
from sglang_gemma4.kernels.norms import triple_rmsnorm
from sglang_gemma4.kernels.norms.layer_tail import tail_reference

MOST_ROWS = 32
"""Beyond, each program would read too many rows again; the product alone has the same limit (``few_row_linear.MOST_ROWS_OF_NARROW``)."""
MEASURED = {1536: Tile(16, 128, 8)}
"""By width: E2B's, 5.3 µs at 4 rows for 7.4 with :func:`tile_for`'s (``runs/2026-11-26-e4b-h200-steps``)."""
SQUARED = 8192
"""Values that a program squares at a time: 64 in a thread."""


def embedding_gate_reference(
    x: torch.Tensor, residual: torch.Tensor, norm_weight: torch.Tensor, eps: float, weight: torch.Tensor, embedding: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`embedding_gate` computes; same arguments and results."""
    stream, _ = tail_reference(x, residual, norm_weight, eps, rounded=True)
    return stream, gated_embedding.gated_embedding_reference(few_row_linear_reference(stream, weight), embedding)


@triton.jit(do_not_specialize=["rows"])
def _embedding_gate_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, WIDTH]
    residual_ptr,
    norm_ptr,  # [WIDTH]
    weight_ptr,  # [outputs, WIDTH]
    embedding_ptr,  # [rows, outputs]
    stream_ptr,  # [rows, WIDTH]
    out_ptr,  # [rows, outputs]
    parts_ptr,  # [PARTS, 1, rows, outputs] float32
    done_ptr,  # [blocks] int32, zeros; zeros again afterwards
    rows,
    outputs,
    eps,
    x_stride,
    residual_stride,
    weight_stride,
    embedding_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # rows, padded
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    SQUARED: tl.constexpr,  # columns at a time
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,  # columns of the weight that come while the kernel before still runs
    LINE: tl.constexpr,  # columns in a cache line
    PDL: tl.constexpr,
):
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    block = tl.program_id(0)
    share: tl.constexpr = (WIDTH + DEPTH * PARTS - 1) // (DEPTH * PARTS) * DEPTH
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, WIDTH)
    output = block * OUTPUTS + tl.arange(0, OUTPUTS)
    real_output = output[None, :] < outputs
    row = tl.arange(0, ROWS)[:, None]
    real_row = row < rows
    if PDL:
        for ahead in tl.static_range(0, AHEAD, LINE):
            prefetch(weight_ptr + tl.minimum(output, outputs - 1).to(tl.int64) * weight_stride + tl.minimum(begin + ahead, WIDTH - 1))
        prefetch(norm_ptr + tl.minimum(begin + tl.arange(0, 16) * LINE, WIDTH - 1))
    await_inputs(PDL)
    x_rows = x_ptr + row.to(tl.int64) * x_stride
    squares = tl.zeros([ROWS, SQUARED], tl.float32)
    for first in tl.static_range(0, WIDTH, SQUARED):
        wide = first + tl.arange(0, SQUARED)[None, :]
        part = tl.load(x_rows + wide, mask=real_row & (wide < WIDTH), other=0.0).to(tl.float32)
        squares += part * part
    scale = tl.rsqrt(tl.sum(squares, 1) / WIDTH + eps)[:, None]
    residual_rows = residual_ptr + row.to(tl.int64) * residual_stride
    stream_rows = stream_ptr + row.to(tl.int64) * WIDTH
    weight_rows = weight_ptr + output[None, :].to(tl.int64) * weight_stride
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for offset in range(begin, end, DEPTH):
        column = offset + tl.arange(0, DEPTH)
        real = real_row & (column < WIDTH)[None, :]
        x = tl.load(x_rows + column[None, :], mask=real, other=0.0).to(tl.float32)
        residual = tl.load(residual_rows + column[None, :], mask=real, other=0.0).to(tl.float32)
        norm = tl.load(norm_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
        weights = tl.load(weight_rows + column[:, None], mask=real_output & (column < WIDTH)[:, None], other=0.0)
        stream = ((x * scale * norm).to(dtype).to(tl.float32) + residual).to(dtype)
        tl.store(stream_rows + column[None, :], stream, mask=real & (block == 0))  # all blocks of outputs have it
        total = tl.dot(stream, weights, total, input_precision=PRECISION)
    place = row.to(tl.int64) * outputs + output[None, :]
    real = real_row & real_output
    last = PARTS == 1
    if PARTS > 1:
        total, _, last = parts_summed(total, total, place, real, tl.cast(rows, tl.int64) * outputs, parts_ptr, done_ptr, PARTS, False)
    if last:
        embedding = tl.load(embedding_ptr + row.to(tl.int64) * embedding_stride + output[None, :], mask=real, other=0.0).to(tl.float32)
        gate = gelu_tanh(total.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        tl.store(out_ptr + place, (gate * embedding).to(dtype), mask=real)


def reason_against(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, embedding: torch.Tensor) -> str | None:
    """Why :func:`embedding_gate` does not take these, or None; the number of rows is not checked, since it differs from step to step."""
    if reason := triple_rmsnorm.reason_against(x, residual, {}) or reason_against_weight(x, weight):
        return reason
    if weight.shape[1] != x.shape[1] or embedding.shape != (x.shape[0], weight.shape[0]):
        shapes = f"{tuple(x.shape)}, {tuple(weight.shape)} and {tuple(embedding.shape)}"
        return f"x, weight and embedding are {shapes}; [rows, width], [outputs, width] and [rows, outputs] are supported"
    if embedding.dtype != x.dtype or embedding.stride(1) != 1:
        return f"the embedding is {embedding.dtype} with strides {embedding.stride()}; rows of {x.dtype} are supported"
    return None


def embedding_gate(
    x: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    embedding: torch.Tensor,
    done: torch.Tensor,
    *,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``stream = rmsnorm(x) + residual`` and ``gelu_tanh(stream @ weight.T) * embedding``, each step rounded as in separate kernels.

    The host does not wait for the device.

    Args:
        x: ``[rows, width]``, up to :data:`MOST_ROWS` rows; float32, bfloat16 or float16. ``residual`` of the same shape and dtype.
        norm_weight: ``[width]``; ``eps`` of the same norm.
        weight: ``[outputs, width]``, the gate's, of the same dtype, by rows.
        embedding: ``[rows, outputs]``, such as one layer's slice of ``[rows, layers, outputs]``.
        done: from ``few_row_linear.counters``, for this weight alone.

    Returns:
        ``[rows, width]`` and ``[rows, outputs]``, both of ``x``'s dtype.

    Raises:
        ValueError: for a shape, dtype or number of rows that it does not take.
    """
    reason = reason_against(x, residual, weight, embedding)
    (rows, width), outputs = x.shape, weight.shape[0]
    if reason is None and rows > MOST_ROWS:
        reason = f"{rows} rows; at most {MOST_ROWS} are supported"
    if reason is None and norm_weight.shape != (width,):
        reason = f"the norm's weight is {tuple(norm_weight.shape)}; ({width},) is supported"
    if tile is None:
        tile = MEASURED.get(width) or tile_for(outputs, width, multiprocessors(x.device, elsewhere=8))
    blocks = triton.cdiv(outputs, tile.outputs)
    if reason is None and tile.parts > 1 and (done.dtype != torch.int32 or done.numel() < blocks):
        reason = f"{done.numel()} counters of {done.dtype}; expected {blocks} of int32, see few_row_linear.counters"
    if reason:
        raise ValueError(f"embedding_gate: {reason}")
    stream = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows == 0:
        return stream, out
    padded = max(16, triton.next_power_of_2(rows))
    parts = torch.empty((tile.parts, 1, rows, outputs) if tile.parts > 1 else 1, dtype=torch.float32, device=x.device)
    _embedding_gate_kernel[(blocks, tile.parts)](
        x, residual, norm_weight, weight, embedding, stream, out, parts, done, rows, outputs, eps,
        x.stride(0), residual.stride(0), weight.stride(0), embedding.stride(0),
        WIDTH=width, ROWS=padded, OUTPUTS=tile.outputs, DEPTH=tile.depth, PARTS=tile.parts,
        SQUARED=min(SQUARED // padded, triton.next_power_of_2(width)), PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.warps, num_stages=tile.stages,
        AHEAD=min(tile.stages * tile.depth, triton.cdiv(width, tile.parts)), LINE=LINE // weight.element_size(), **launch_options(x.device),
    )  # fmt: skip
    return stream, out
