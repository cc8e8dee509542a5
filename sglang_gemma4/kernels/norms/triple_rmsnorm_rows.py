"""The kernel of :mod:`sglang_gemma4.kernels.norms.triple_rmsnorm` for many rows: the same steps, a sum's terms added in another order.

A row is a tuple of tiles (:mod:`sglang_gemma4.kernels.norms.row_parts`).
"""

import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs
from sglang_gemma4.kernels.norms.row_parts import inverse_rms, load_parts, no_parts, store_part, with_part


@triton.jit(do_not_specialize=["rows"])
def triple_rmsnorm_rows_kernel(  # type: ignore[no-untyped-def]
    h_ptr,
    residual_ptr,  # read and written
    post_weight_ptr,
    dense_weight_ptr,
    router_weight_ptr,
    expert_weight_ptr,
    out_ptr,  # [1 or 3, rows, width]
    h_stride,
    residual_stride,
    out_stride,  # between outputs
    width,
    post_eps,
    dense_eps,
    router_eps,
    expert_eps,
    rows,
    TRIPLE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    STAGES: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    WHOLE: tl.constexpr,  # noqa: N803
    HELD: tl.constexpr,  # noqa: N803 - the weights, in registers
    PDL: tl.constexpr,  # noqa: N803
):
    dtype: tl.constexpr = h_ptr.dtype.element_ty
    if HELD:
        post_weight = load_parts(post_weight_ptr, width, BLOCK, PARTS, WHOLE)
        dense_weight = load_parts(dense_weight_ptr, width, BLOCK, PARTS, WHOLE)
        if TRIPLE:
            router_weight = load_parts(router_weight_ptr, width, BLOCK, PARTS, WHOLE)
            expert_weight = load_parts(expert_weight_ptr, width, BLOCK, PARTS, WHOLE)
    await_inputs(PDL)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for row in tl.range(first, tl.minimum(first + ROWS, rows), num_stages=STAGES):
        place = residual_ptr + row * residual_stride
        h = load_parts(h_ptr + row * h_stride, width, BLOCK, PARTS, WHOLE)
        old = load_parts(place, width, BLOCK, PARTS, WHOLE)
        if not HELD:
            post_weight = load_parts(post_weight_ptr, width, BLOCK, PARTS, WHOLE)
        scale = inverse_rms(h, width, post_eps)
        added, written = no_parts(), no_parts()
        for part in tl.static_range(PARTS):
            normed = h[part].to(tl.float32) * scale * post_weight[part].to(tl.float32)
            one = normed.to(dtype).to(tl.float32) + old[part].to(tl.float32)
            added = with_part(added, one)
            written = with_part(written, one.to(dtype))
            store_part(place, written[part], width, part, BLOCK, PARTS, WHOLE)
        if not HELD:
            dense_weight = load_parts(dense_weight_ptr, width, BLOCK, PARTS, WHOLE)
        scale = inverse_rms(added, width, dense_eps)
        out = out_ptr + row * width
        for part in tl.static_range(PARTS):
            dense = added[part] * scale * dense_weight[part].to(tl.float32)
            store_part(out, dense.to(dtype), width, part, BLOCK, PARTS, WHOLE)
        if TRIPLE:
            if not HELD:
                router_weight = load_parts(router_weight_ptr, width, BLOCK, PARTS, WHOLE)
                expert_weight = load_parts(expert_weight_ptr, width, BLOCK, PARTS, WHOLE)
            router_scale, expert_scale = inverse_rms(written, width, router_eps), inverse_rms(written, width, expert_eps)
            for part in tl.static_range(PARTS):
                rounded = written[part].to(tl.float32)
                router = rounded * router_scale * router_weight[part].to(tl.float32)
                expert = rounded * expert_scale * expert_weight[part].to(tl.float32)
                store_part(out + out_stride, router.to(dtype), width, part, BLOCK, PARTS, WHOLE)
                store_part(out + 2 * out_stride, expert.to(dtype), width, part, BLOCK, PARTS, WHOLE)
