"""The kernel of :mod:`sglang_gemma4.kernels.norms.layer_tail` for many rows: the same steps, a sum's terms added in another order.

A row is a tuple of tiles (:mod:`sglang_gemma4.kernels.norms.row_parts`).
"""

import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs
from sglang_gemma4.kernels.norms.row_parts import inverse_rms, load_parts, no_parts, store_part, with_part


@triton.jit(do_not_specialize=["rows"])
def tail_rows_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    experts_ptr,
    residual_ptr,
    weight_ptr,
    experts_weight_ptr,
    combined_weight_ptr,
    scalar_ptr,
    next_weight_ptr,
    out_ptr,
    next_ptr,
    x_stride,
    experts_stride,
    residual_stride,
    width,
    eps,
    experts_eps,
    combined_eps,
    next_eps,
    rows,
    DUAL: tl.constexpr,  # noqa: N803
    HAS_SCALAR: tl.constexpr,  # noqa: N803
    HAS_NEXT: tl.constexpr,  # noqa: N803
    ROUNDED: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    STAGES: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    WHOLE: tl.constexpr,  # noqa: N803
    HELD: tl.constexpr,  # noqa: N803 - the weights, in registers
    PDL: tl.constexpr,  # noqa: N803
):
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    if HELD:
        weight = load_parts(weight_ptr, width, BLOCK, PARTS, WHOLE)
        if DUAL:
            experts_weight = load_parts(experts_weight_ptr, width, BLOCK, PARTS, WHOLE)
            combined_weight = load_parts(combined_weight_ptr, width, BLOCK, PARTS, WHOLE)
        if HAS_NEXT:
            next_weight = load_parts(next_weight_ptr, width, BLOCK, PARTS, WHOLE)
    if HAS_SCALAR:
        scalar = tl.load(scalar_ptr).to(tl.float32)
    await_inputs(PDL)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for row in tl.range(first, tl.minimum(first + ROWS, rows), num_stages=STAGES):
        x = load_parts(x_ptr + row * x_stride, width, BLOCK, PARTS, WHOLE)
        if DUAL:
            experts = load_parts(experts_ptr + row * experts_stride, width, BLOCK, PARTS, WHOLE)
        residual = load_parts(residual_ptr + row * residual_stride, width, BLOCK, PARTS, WHOLE)
        if not HELD:
            weight = load_parts(weight_ptr, width, BLOCK, PARTS, WHOLE)
        scale = inverse_rms(x, width, eps)
        if DUAL:
            if not HELD:
                experts_weight = load_parts(experts_weight_ptr, width, BLOCK, PARTS, WHOLE)
            experts_scale = inverse_rms(experts, width, experts_eps)
        values = no_parts()
        for part in tl.static_range(PARTS):
            value = x[part].to(tl.float32) * scale * weight[part].to(tl.float32)
            if DUAL:
                value += experts[part].to(tl.float32) * experts_scale * experts_weight[part].to(tl.float32)
            values = with_part(values, value)
        if DUAL:
            if not HELD:
                combined_weight = load_parts(combined_weight_ptr, width, BLOCK, PARTS, WHOLE)
            scale = inverse_rms(values, width, combined_eps)
        written = no_parts()
        for part in tl.static_range(PARTS):
            value = values[part]
            if DUAL:
                value = value * scale * combined_weight[part].to(tl.float32)
            if ROUNDED:
                value = value.to(dtype).to(tl.float32)
            value += residual[part].to(tl.float32)
            if HAS_SCALAR:
                if ROUNDED:
                    value = value.to(dtype).to(tl.float32)
                value *= scalar
            written = with_part(written, value.to(dtype))
            store_part(out_ptr + row * width, written[part], width, part, BLOCK, PARTS, WHOLE)
        if HAS_NEXT:
            if not HELD:
                next_weight = load_parts(next_weight_ptr, width, BLOCK, PARTS, WHOLE)
            scale = inverse_rms(written, width, next_eps)
            for part in tl.static_range(PARTS):
                value = written[part].to(tl.float32) * scale * next_weight[part].to(tl.float32)
                store_part(next_ptr + row * width, value.to(dtype), width, part, BLOCK, PARTS, WHOLE)
