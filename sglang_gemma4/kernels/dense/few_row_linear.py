"""``x @ weight.T`` for a few rows, where reading the weight is all the work: decode and verify steps of few requests.

A program multiplies a block of output columns with a part of the width. If the output has too few blocks to fill the
GPU, the width is cut into parts. The program that finishes a block last adds them up, always in the same order. So
there is no second launch, and the result is reproducible. With ``gated``, a program computes the same columns of gate
and up, and writes ``gelu_tanh(gate) * up``.

An fp8 weight (:mod:`~sglang_gemma4.kernels.weights`) has half the bytes and is multiplied in the activation's type. A
4-bit weight has its own kernel (:mod:`~sglang_gemma4.kernels.dense.four_bit_linear`). On a GPU, up to 32 rows of both
go through registers only (:mod:`~sglang_gemma4.kernels.dense.register_linear`).
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels import register_products
from sglang_gemma4.kernels.card import HOPPER, Card, card, multiprocessors, reason_against_card
from sglang_gemma4.kernels.dense import four_bit_linear, register_linear
from sglang_gemma4.kernels.dense.parts import Tile, gelu_tanh, parts_summed
from sglang_gemma4.kernels.dependent_launch import LINE, await_inputs, launch_options, prefetch, release_next
from sglang_gemma4.kernels.matrices import DTYPES
from sglang_gemma4.kernels.register_products import Warps
from sglang_gemma4.kernels.weights import Grouped, Scaled, Weight, as_type, dequantised, levels_of, reason_against_weight, scale_of

MOST_ROWS = 64
MOST_PARTS = 16
ACROSS_ROWS = 32
"""Most rows for ``Tile.across``; with more, Hopper's matrix instructions would read the weight from shared memory."""
MOST_BYTES_EARLY = 52e6
"""Largest weight, in bytes, with which the next kernel's programs start at once; with a larger one they start when it
has been read. A late start would slow 26B-A4B's layers, whose weights have up to 52 MB, by 2 to 3 % at 1 and 4 rows.
It speeds up E4B's by 1 % and 31B's by 3 %."""
MEASURED = {
    (2560, 10240, False): Tile(64, 128, 5, stages=3),
    (3072, 2560, False): Tile(64, 64, 4),
    (2560, 2048, False): Tile(64, 128, 4),
    (6144, 1536, True): Tile(64, 128, 1, stages=3),
    (15360, 3840, True): Tile(64, 128, 1, stages=3),
    (3840, 15360, False): Tile(64, 128, 4),
    (21504, 5376, True): Tile(64, 128, 1),
    (5376, 21504, False): Tile(64, 128, 3),
}
"""Tiles by (outputs, width, gated) that beat :func:`tile_for`'s rule in layers of E4B, E2B, 12B and 31B on an H200, by
1 to 6 % of a layer (``runs/2026-11-26-dense-layers``, ``runs/2026-11-30-12b-h200-steps``)."""


def tile_for(outputs: int, width: int, sms: int, gated: bool = False) -> Tile:
    """About one program per SM, each with at least four steps of the width.

    In layers of 26B-A4B at 1 and 4 rows it is within the spread of the fastest of about ten for each GEMM
    (``runs/2026-11-23-26b-layer-chain``).

    Args:
        outputs: columns of the result; with ``gated``, of the activation.
    """
    block = 64 if outputs > 512 else 16
    if gated:  # no parts if narrower blocks fill the GPU as well
        block = next((block for block in (64, 32) if triton.cdiv(outputs, block) >= 3 * sms / 4), 16)
    depth = 128 if width % 128 == 0 and not (gated and block == 64) else 64
    parts = max(1, min(round(sms / triton.cdiv(outputs, block)), triton.cdiv(width, depth) // 4, MOST_PARTS))
    return Tile(block, depth, parts)


def measured_tile(outputs: int, width: int, sms: int, gated: bool, of: Card) -> Tile:
    """From :data:`MEASURED` on a GPU with Hopper's shared memory, else :func:`tile_for`'s, which fits smaller ones too."""
    found = MEASURED.get((outputs, width, gated)) if of.shared >= HOPPER.shared else None
    return found or tile_for(outputs, width, sms, gated)


def fp8_tile_for(outputs: int, width: int, rows: int, sms: int, gated: bool = False, blocks: bool = False) -> Tile:
    """The tile for an fp8 weight: two programs per SM, since each has half the bytes in flight.

    With more rows blocks are wider, so that the rows are read less often. With ``blocks`` a step has one scale. For
    more rows than this kernel takes, SGLang's GEMM is faster (``fp8_rows``).
    """
    block = 32 if rows <= 8 else 64
    depth = 256 if width % 256 == 0 and block == 32 and not gated and not blocks else 128
    parts = max(1, min(round(2 * sms / triton.cdiv(outputs, block)), triton.cdiv(width, depth) // 4, MOST_PARTS))
    return Tile(block, depth, parts, across=rows <= ACROSS_ROWS)


def four_bit_tile_for(outputs: int, width: int, rows: int, sms: int, gated: bool = False) -> Tile:
    """The tile for a 4-bit weight: steps of 256 inputs, of which a thread loads 16 bytes.

    For four GEMMs of 26B-A4B on an H200, at 4 and 32 rows, it is within 4 % of the fastest tile tried. Blocks of 64
    were not tried for ``o`` at 4 rows (``runs/2026-11-26-26b-h200-int4``).
    """
    block = 32 if gated else 64
    depth = 256 if width >= 512 else 128
    parts = max(1, min(round(2 * sms / triton.cdiv(outputs, block)), triton.cdiv(width, depth) // 2, MOST_PARTS))
    return Tile(block, depth, parts, stages=3)


def few_row_linear_reference(x: torch.Tensor, weight: Weight, *, gated: bool = False) -> torch.Tensor:
    """What :func:`few_row_linear` computes. Gate and up are rounded to ``x``'s dtype, like a GEMM's output in memory."""
    product = (x.float() @ dequantised(weight).T).to(x.dtype)
    if not gated:
        return product
    gate, up = product.float().chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(x.dtype)


@triton.jit(do_not_specialize=["rows"])
def _few_row_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, WIDTH]
    weight_ptr,  # [outputs, WIDTH]; gated: [2 * outputs, WIDTH], gate first
    scale_ptr,  # of each of its rows, or of blocks of them and of the width, float32, or None
    scale_stride,
    scale_step,  # from one block of the width to the next, or None
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
    ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,  # rows of the weight, and columns, that share a scale; 0: a row has its own
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
    # The product's dimensions: outputs by rows; across: rows by outputs.
    outer = output[None, :] if ACROSS else output[:, None]
    real_output = outer < outputs
    inner = row[:, None] if ACROSS else row[None, :]
    real_row = inner < rows
    x_pointers = x_ptr + inner.to(tl.int64) * x_stride
    along_x = column[None, :] if ACROSS else column[:, None]
    x_pointers += along_x
    weight_pointers = weight_ptr + outer.to(tl.int64) * weight_stride
    along_weight = column[:, None] if ACROSS else column[None, :]
    weight_pointers += along_weight
    up_offset = tl.cast(outputs, tl.int64) * weight_stride
    if BLOCK > 0:
        scale_pointers = scale_ptr + outer // BLOCK * scale_stride
        if GATED:
            up_scale_pointers = scale_ptr + (outer + outputs) // BLOCK * scale_stride
    elif scale_ptr is not None:
        scale_pointers = scale_ptr + outer * scale_stride
        scale = tl.load(scale_pointers, mask=real_output, other=0.0)
        if GATED:
            up_scale = tl.load(scale_pointers + outputs * scale_stride, mask=real_output, other=0.0)
    if PDL:
        for offset in tl.static_range(0, AHEAD, LINE):
            first = tl.minimum(begin + offset, WIDTH - 1)
            line = weight_ptr + tl.minimum(output, outputs - 1).to(tl.int64) * weight_stride + first
            prefetch(line)
            if GATED:
                prefetch(line + up_offset)
    await_inputs(PDL)
    total = tl.zeros([ROWS, OUTPUTS] if ACROSS else [OUTPUTS, ROWS], tl.float32)
    up_total = tl.zeros_like(total)
    for offset in range(begin, end, DEPTH):
        if WIDTH % DEPTH == 0:
            states = tl.load(x_pointers + offset, mask=real_row, other=0.0)
            weights = tl.load(weight_pointers + offset, mask=real_output, other=0.0, eviction_policy="evict_first")
        else:
            inside = offset + along_weight < WIDTH
            states = tl.load(x_pointers + offset, mask=real_row & (offset + along_x < WIDTH), other=0.0)
            weights = tl.load(weight_pointers + offset, mask=real_output & inside, other=0.0, eviction_policy="evict_first")
        weights = as_type(weights, states.dtype)
        if BLOCK > 0:
            scale = tl.load(scale_pointers + offset // BLOCK * scale_step, mask=real_output, other=0.0)
            if ACROSS:
                total += tl.dot(states, weights, input_precision=PRECISION) * scale
            else:
                total += tl.dot(weights, states, input_precision=PRECISION) * scale
        elif ACROSS:
            total = tl.dot(states, weights, total, input_precision=PRECISION)
        else:
            total = tl.dot(weights, states, total, input_precision=PRECISION)
        if GATED:
            if WIDTH % DEPTH == 0:
                ups = tl.load(weight_pointers + up_offset + offset, mask=real_output, other=0.0, eviction_policy="evict_first")
            else:
                inside_up = real_output & (offset + along_weight < WIDTH)
                ups = tl.load(weight_pointers + up_offset + offset, mask=inside_up, other=0.0, eviction_policy="evict_first")
            ups = as_type(ups, states.dtype)
            if BLOCK > 0:
                up_scale = tl.load(up_scale_pointers + offset // BLOCK * scale_step, mask=real_output, other=0.0)
                if ACROSS:
                    up_total += tl.dot(states, ups, input_precision=PRECISION) * up_scale
                else:
                    up_total += tl.dot(ups, states, input_precision=PRECISION) * up_scale
            elif ACROSS:
                up_total = tl.dot(states, ups, up_total, input_precision=PRECISION)
            else:
                up_total = tl.dot(ups, states, up_total, input_precision=PRECISION)
    release_next(PDL)
    place = inner.to(tl.int64) * outputs + outer
    real = real_row & real_output
    last = PARTS == 1
    if PARTS > 1:
        size = tl.cast(rows, tl.int64) * outputs
        total, up_total, last = parts_summed(total, up_total, place, real, size, parts_ptr, done_ptr, PARTS, GATED)
    if last:
        dtype = out_ptr.dtype.element_ty
        if BLOCK == 0 and scale_ptr is not None:
            total *= scale
            if GATED:
                up_total *= up_scale
        if GATED:
            total = gelu_tanh(total.to(dtype).to(tl.float32)) * up_total.to(dtype).to(tl.float32)
        tl.store(out_ptr + place, total.to(dtype), mask=real)


def reason_against(x: torch.Tensor, weight: Weight) -> str | None:
    """Why :func:`few_row_linear` does not take these, or None; the number of rows is not checked, since it differs from step to step."""
    if x.dtype not in DTYPES:
        return f"x is {x.dtype}; {', '.join(str(one) for one in DTYPES)} are supported"
    if reason := reason_against_weight(x, weight):
        return reason
    levels = levels_of(weight)
    if isinstance(weight, Grouped):
        problem = f"the weight's shape is {tuple(weight.shape)}; it must be [outputs, width]"
        return problem if levels.dim() != 2 else reason_against_card(x.device)
    if levels.dim() != 2 or levels.stride(1) != 1:
        return f"the weight's shape is {tuple(levels.shape)} with strides {tuple(levels.stride())}; it must be [outputs, width] by rows"
    if levels.shape[1] % 16 or levels.stride(0) % 8:
        return f"the weight's width is {levels.shape[1]}; it must be a multiple of 16"
    return reason_against_card(x.device)


def counters(outputs: int, device: torch.device) -> torch.Tensor:
    """Zeroed counters of finished parts for the calls with one weight: int32, one for each block of ``outputs`` columns."""
    return torch.zeros(triton.cdiv(outputs, 16), dtype=torch.int32, device=device)


def few_row_linear(
    x: torch.Tensor, weight: Weight, done: torch.Tensor, *, gated: bool = False, tile: Tile | None = None, warps: Warps | None = None
) -> torch.Tensor:
    """``x @ weight.T``, or ``gelu_tanh(x @ gate.T) * (x @ up.T)``. The host does not wait for the device.

    Args:
        x: ``[rows, width]``, up to :data:`MOST_ROWS` rows, the width contiguous; float32, bfloat16 or float16.
        weight: ``[outputs, width]`` of the same dtype, fp8 or 4-bit; ``gated``: ``[2 * outputs, width]``, the gate's
            rows first.
        done: from :func:`counters`, for this weight alone: two calls that may run at the same time must not share it.
        tile: how a program works; None: by shape, rows and GPU.
        warps: use :mod:`register_linear` with these for an fp8 or 4-bit weight; None: by shape, if the weight
            qualifies and ``tile`` is None.

    Returns:
        ``[rows, outputs]`` of ``x``'s dtype.

    Raises:
        ValueError: a shape, dtype or number of rows that it does not take.
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
    in_block = weight.block if isinstance(weight, Scaled) else 0
    if warps is None and tile is None and register_products.takes(x, weight, rows):
        warps = register_linear.warps_for(outputs, width, rows, 8 if isinstance(weight, Grouped) else 4, multiprocessors(x.device), gated)
    if warps is not None:
        if isinstance(weight, torch.Tensor) or rows > register_products.MOST_ROWS:
            most = f"up to {register_products.MOST_ROWS} rows of fp8 and 4-bit weights are supported"
            raise ValueError(f"few_row_linear: {rows} rows of {type(weight).__name__} by warps; {most}")
        register_linear.launch(x, weight, out, gated, warps)
        return out
    if tile is None:
        sms = multiprocessors(x.device, elsewhere=8)
        if isinstance(weight, Grouped):
            tile = four_bit_tile_for(outputs, width, rows, sms, gated)
        elif isinstance(weight, Scaled):
            tile = fp8_tile_for(outputs, width, rows, sms, gated, bool(in_block))
        else:
            tile = measured_tile(outputs, width, sms, gated, card(x.device))
    if in_block and in_block % tile.depth:
        raise ValueError(f"few_row_linear: steps of {tile.depth} columns do not divide blocks of {in_block} that share a scale")
    blocks = triton.cdiv(outputs, tile.outputs)
    if tile.parts > 1 and (done.dtype != torch.int32 or done.numel() < blocks):
        raise ValueError(f"few_row_linear: {done.numel()} counters of {done.dtype}; expected {blocks} of int32, see counters()")
    if isinstance(weight, Grouped):
        if tile.depth % weight.group:
            raise ValueError(
                f"few_row_linear: steps of {tile.depth} columns are no multiple of groups of {weight.group} that share a scale"
            )
        four_bit_linear.launch(x, weight, done, out, gated, tile)
        return out
    halves, levels = 2 if gated else 1, levels_of(weight)
    parts = torch.empty((tile.parts, halves, rows, outputs) if tile.parts > 1 else 1, dtype=torch.float32, device=x.device)
    _few_row_linear_kernel[(blocks, tile.parts)](
        x, levels, *scale_of(weight), *(() if in_block else (None,)), out, parts, done, rows, outputs, x.stride(0), levels.stride(0),
        WIDTH=width, ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=tile.outputs, DEPTH=tile.depth, PARTS=tile.parts, GATED=gated,
        ACROSS=tile.across, BLOCK=in_block,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=tile.warps, num_stages=tile.stages,
        AHEAD=min(tile.stages * tile.depth, triton.cdiv(width, tile.parts)), LINE=LINE // levels.element_size(),
        **launch_options(x.device, levels.nbytes > MOST_BYTES_EARLY if tile.late is None else tile.late),
    )  # fmt: skip
    return out
