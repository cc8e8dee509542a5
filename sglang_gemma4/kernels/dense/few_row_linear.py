"""``x @ weight.T`` for a few rows, where reading the weight is all the work: decode and verify steps of one to a few requests.

A program multiplies a block of output columns with a part of the width. Where the output has too few blocks to fill the card, the width
is cut into parts; the program that finishes a block last adds them up, always in the same order, so there is no second launch and the
result is the same every time. With ``gated``, a program computes the same columns of gate and up, and writes ``gelu_tanh(gate) * up``.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.card import multiprocessors, reason_against_card
from sglang_gemma4.kernels.dependent_launch import LINE, await_inputs, launch_options, prefetch
from sglang_gemma4.kernels.matrices import DTYPES

MOST_ROWS = 64
MOST_PARTS = 16


@dataclass(frozen=True)
class Tile:
    """How a program works: output columns, width at a time, parts of the width, warps, and steps loaded ahead."""

    outputs: int
    depth: int
    parts: int
    warps: int = 4
    stages: int = 4


def tile_for(outputs: int, width: int, sms: int, gated: bool = False) -> Tile:
    """About one program an SM, each with at least four steps of the width; in layers of 26B-A4B at 1 and 4 rows within the spread of the
    fastest of about ten for each product (``runs/2026-11-23-26b-layer-chain``).

    Args:
        outputs: columns of the product; of a gated one, of the activation.
    """
    block = 64 if outputs > 512 else 16
    if gated:  # no parts where narrower blocks fill the card as well
        block = next((block for block in (64, 32) if triton.cdiv(outputs, block) >= 3 * sms / 4), 16)
    depth = 128 if width % 128 == 0 and not (gated and block == 64) else 64
    parts = max(1, min(round(sms / triton.cdiv(outputs, block)), triton.cdiv(width, depth) // 4, MOST_PARTS))
    return Tile(block, depth, parts)


def few_row_linear_reference(x: torch.Tensor, weight: torch.Tensor, *, gated: bool = False) -> torch.Tensor:
    """What :func:`few_row_linear` computes. Gate and up are rounded to ``x``'s dtype, as a product written to memory is."""
    product = (x.float() @ weight.float().T).to(x.dtype)
    if not gated:
        return product
    gate, up = product.float().chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(x.dtype)


@triton.jit
def _gelu_tanh(x):  # type: ignore[no-untyped-def]
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * inner))


@triton.jit(do_not_specialize=["rows"])
def _few_row_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, WIDTH]
    weight_ptr,  # [outputs, WIDTH]; gated: [2 * outputs, WIDTH], gate first
    out_ptr,  # [rows, outputs]
    parts_ptr,  # [PARTS, 1 or 2, rows, outputs] float32
    done_ptr,  # [blocks] int32, zeros; zeros again afterwards
    rows,
    outputs,
    x_stride,
    weight_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # rows, padded
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,  # columns of the weight that come while the kernel before still runs
    LINE: tl.constexpr,  # columns in a cache line
    PDL: tl.constexpr,
):
    block = tl.program_id(0)
    part = tl.program_id(1)
    share: tl.constexpr = (WIDTH + DEPTH * PARTS - 1) // (DEPTH * PARTS) * DEPTH
    begin = part * share
    end = tl.minimum(begin + share, WIDTH)
    output = block * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, DEPTH)
    real_output = output[:, None] < outputs
    real_row = row[None, :] < rows
    x_pointers = x_ptr + row[None, :].to(tl.int64) * x_stride + column[:, None]  # [DEPTH, ROWS]
    weight_pointers = weight_ptr + output[:, None].to(tl.int64) * weight_stride + column[None, :]  # [OUTPUTS, DEPTH]
    up_offset = tl.cast(outputs, tl.int64) * weight_stride
    if PDL:
        for offset in tl.static_range(0, AHEAD, LINE):
            first = tl.minimum(begin + offset, WIDTH - 1)
            line = weight_ptr + tl.minimum(output, outputs - 1).to(tl.int64) * weight_stride + first
            prefetch(line)
            if GATED:
                prefetch(line + up_offset)
    await_inputs(PDL)
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    up_total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for offset in range(begin, end, DEPTH):
        if WIDTH % DEPTH == 0:
            states = tl.load(x_pointers + offset, mask=real_row, other=0.0)
            weights = tl.load(weight_pointers + offset, mask=real_output, other=0.0, eviction_policy="evict_first")
        else:
            inside = offset + column < WIDTH
            states = tl.load(x_pointers + offset, mask=real_row & inside[:, None], other=0.0)
            weights = tl.load(weight_pointers + offset, mask=real_output & inside[None, :], other=0.0, eviction_policy="evict_first")
        total = tl.dot(weights, states, total, input_precision=PRECISION)
        if GATED:
            if WIDTH % DEPTH == 0:
                ups = tl.load(weight_pointers + up_offset + offset, mask=real_output, other=0.0, eviction_policy="evict_first")
            else:
                inside_up = real_output & (offset + column < WIDTH)[None, :]
                ups = tl.load(weight_pointers + up_offset + offset, mask=inside_up, other=0.0, eviction_policy="evict_first")
            up_total = tl.dot(ups, states, up_total, input_precision=PRECISION)
    place = row[None, :].to(tl.int64) * outputs + output[:, None]
    real = real_row & real_output
    last = PARTS == 1
    if PARTS > 1:
        size = tl.cast(rows, tl.int64) * outputs
        halves: tl.constexpr = 2 if GATED else 1
        mine = parts_ptr + part * halves * size + place
        tl.store(mine, total, mask=real)
        if GATED:
            tl.store(mine + size, up_total, mask=real)
        # Every thread's stores come before the count that tells the last program of them.
        tl.debug_barrier()
        last = tl.atomic_add(done_ptr + block, 1, sem="acq_rel", scope="gpu") == PARTS - 1
        if last:
            total = tl.zeros([OUTPUTS, ROWS], tl.float32)
            up_total = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for other in range(PARTS):
                theirs = parts_ptr + other * halves * size + place
                # Not from the L1 cache, which does not see what other SMs write.
                total += tl.load(theirs, mask=real, other=0.0, cache_modifier=".cg")
                if GATED:
                    up_total += tl.load(theirs + size, mask=real, other=0.0, cache_modifier=".cg")
            tl.store(done_ptr + block, 0)
    if last:
        dtype = out_ptr.dtype.element_ty
        if GATED:
            total = _gelu_tanh(total.to(dtype).to(tl.float32)) * up_total.to(dtype).to(tl.float32)
        tl.store(out_ptr + place, total.to(dtype), mask=real)


def reason_against(x: torch.Tensor, weight: torch.Tensor) -> str | None:
    """Why :func:`few_row_linear` does not take these, or None; the number of rows is not checked, since it differs from step to step."""
    if x.dtype not in DTYPES or weight.dtype != x.dtype:
        return f"x is {x.dtype} and the weight {weight.dtype}; both must be one of {', '.join(str(one) for one in DTYPES)}"
    if weight.dim() != 2 or weight.stride(1) != 1:
        return f"the weight's shape is {tuple(weight.shape)} with strides {tuple(weight.stride())}; it must be [outputs, width] by rows"
    if weight.shape[1] % 16 or weight.stride(0) % 8:
        return f"the weight's width is {weight.shape[1]}; it must be a multiple of 16"
    return reason_against_card(x.device)


def counters(outputs: int, device: torch.device) -> torch.Tensor:
    """Zeroed counters of finished parts for the calls with one weight: int32, one for each block of ``outputs`` columns."""
    return torch.zeros(triton.cdiv(outputs, 16), dtype=torch.int32, device=device)


def few_row_linear(
    x: torch.Tensor, weight: torch.Tensor, done: torch.Tensor, *, gated: bool = False, tile: Tile | None = None
) -> torch.Tensor:
    """``x @ weight.T``, or ``gelu_tanh(x @ gate.T) * (x @ up.T)``. The host does not wait for the device.

    Args:
        x: ``[rows, width]``, up to :data:`MOST_ROWS` rows, the width contiguous; float32, bfloat16 or float16.
        weight: ``[outputs, width]`` of the same dtype; ``gated``: ``[2 * outputs, width]``, the gate's rows first.
        done: from :func:`counters`, for this weight alone: two calls that may run at the same time must not share it.

    Returns:
        ``[rows, outputs]`` of ``x``'s dtype.

    Raises:
        ValueError: for a shape, dtype or number of rows that it does not take.
    """
    problem = reason_against(x, weight)
    if problem is not None:
        raise ValueError(f"few_row_linear: {problem}")
    if x.dim() != 2 or x.stride(1) != 1 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"few_row_linear: x is {tuple(x.shape)} with strides {tuple(x.stride())}; expected [rows, {weight.shape[1]}]")
    rows, width = x.shape
    if rows > MOST_ROWS:
        raise ValueError(f"few_row_linear: {rows} rows; at most {MOST_ROWS}, use torch.nn.functional.linear")
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    if gated and weight.shape[0] % 2:
        raise ValueError(f"few_row_linear: a gated weight has an even number of rows, this one {weight.shape[0]}")
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    if tile is None:
        tile = tile_for(outputs, width, multiprocessors(x.device, elsewhere=8), gated)
    blocks = triton.cdiv(outputs, tile.outputs)
    if tile.parts > 1 and (done.dtype != torch.int32 or done.numel() < blocks):
        raise ValueError(f"few_row_linear: {done.numel()} counters of {done.dtype}; expected {blocks} of int32, see counters()")
    halves = 2 if gated else 1
    parts = torch.empty((tile.parts, halves, rows, outputs) if tile.parts > 1 else 1, dtype=torch.float32, device=x.device)
    _few_row_linear_kernel[(blocks, tile.parts)](
        x, weight, out, parts, done, rows, outputs, x.stride(0), weight.stride(0),
        WIDTH=width, ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=tile.outputs, DEPTH=tile.depth, PARTS=tile.parts, GATED=gated,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=tile.warps, num_stages=tile.stages,
        AHEAD=min(tile.stages * tile.depth, triton.cdiv(width, tile.parts)), LINE=LINE // x.element_size(), **launch_options(x.device),
    )  # fmt: skip
    return out
