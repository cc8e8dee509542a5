"""All that a decoder layer computes between attention and FFN, in one launch: residual and inputs of dense FFN, router and experts.

``residual = rmsnorm(h, post_attention) + residual``, then one norm of the residual for each branch. As in SGLang's
separate kernels, the first norm's output and the residual are rounded to the model's dtype. The dense branch's norm
sees the residual before it is rounded.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.matrices import reason_against_rows
from sglang_gemma4.kernels.norms.row_parts import RowTiles, inverse_rms, load_parts, no_parts, store_part, with_part

LONGEST_ROW = 16384
MANY_ROWS = 1024
"""Rows from which :data:`TILES` are used: 8 to 18 % faster at 26B-A4B's width (``runs/2026-11-23-row-tiles``)."""
TILES = RowTiles(rows=1, block=1024, warps=4)


def triple_rmsnorm_reference(
    h: torch.Tensor,
    residual: torch.Tensor,
    post_weight: torch.Tensor,
    dense_weight: torch.Tensor,
    router_weight: torch.Tensor | None = None,
    expert_weight: torch.Tensor | None = None,
    *,
    post_eps: float = 1e-6,
    dense_eps: float = 1e-6,
    router_eps: float = 1e-6,
    expert_eps: float = 1e-6,
) -> tuple[torch.Tensor, ...]:
    """What :func:`triple_rmsnorm` computes; same arguments and results, but ``residual`` is left as it is."""
    dtype = h.dtype

    def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.float()
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()).to(dtype)

    added = norm(h, post_weight, post_eps).float() + residual.float()
    written = added.to(dtype)
    out = (norm(added, dense_weight, dense_eps), written)
    if router_weight is None or expert_weight is None:
        return out
    return (*out, norm(written, router_weight, router_eps), norm(written, expert_weight, expert_eps))


@triton.jit
def _triple_rmsnorm_kernel(  # type: ignore[no-untyped-def]
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
    TRIPLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    real = columns < width
    # All loads come before the first sum: the compiler moves none across its barrier, and weights come from memory.
    post_weight = tl.load(post_weight_ptr + columns, mask=real, other=0.0)
    dense_weight = tl.load(dense_weight_ptr + columns, mask=real, other=0.0)
    if TRIPLE:
        router_weight = tl.load(router_weight_ptr + columns, mask=real, other=0.0)
        expert_weight = tl.load(expert_weight_ptr + columns, mask=real, other=0.0)
    await_inputs(PDL)
    h = tl.load(h_ptr + row * h_stride + columns, mask=real, other=0.0).to(tl.float32)
    place = residual_ptr + row * residual_stride + columns
    old = tl.load(place, mask=real, other=0.0).to(tl.float32)
    normed = h * tl.rsqrt(tl.sum(h * h, 0) / width + post_eps) * post_weight.to(tl.float32)
    added = normed.to(h_ptr.dtype.element_ty).to(tl.float32) + old
    written = added.to(h_ptr.dtype.element_ty)
    tl.store(place, written, mask=real)
    dense = added * tl.rsqrt(tl.sum(added * added, 0) / width + dense_eps) * dense_weight.to(tl.float32)
    out = out_ptr + row * width + columns
    tl.store(out, dense.to(h_ptr.dtype.element_ty), mask=real)
    if TRIPLE:
        rounded = written.to(tl.float32)
        mean = tl.sum(rounded * rounded, 0) / width
        router = rounded * tl.rsqrt(mean + router_eps) * router_weight.to(tl.float32)
        expert = rounded * tl.rsqrt(mean + expert_eps) * expert_weight.to(tl.float32)
        tl.store(out + out_stride, router.to(h_ptr.dtype.element_ty), mask=real)
        tl.store(out + 2 * out_stride, expert.to(h_ptr.dtype.element_ty), mask=real)


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
    TRIPLE: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    WHOLE: tl.constexpr,
    HELD: tl.constexpr,  # the weights, in registers
    PDL: tl.constexpr,
):
    """For many rows, as :mod:`~sglang_gemma4.kernels.norms.row_parts` lays them out; only the order of a sum's terms differs."""
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


def triple_rmsnorm(
    h: torch.Tensor,
    residual: torch.Tensor,
    post_weight: torch.Tensor,
    dense_weight: torch.Tensor,
    router_weight: torch.Tensor | None = None,
    expert_weight: torch.Tensor | None = None,
    *,
    post_eps: float = 1e-6,
    dense_eps: float = 1e-6,
    router_eps: float = 1e-6,
    expert_eps: float = 1e-6,
    tiles: RowTiles | None = None,
) -> tuple[torch.Tensor, ...]:
    """Dense FFN's input and residual, with the last two weights also router's and experts' input; each ``[rows, width]``.

    Args:
        h: ``[rows, width]``, the attention's output; its rows need not be adjacent. float32, bfloat16 or float16.
        residual: ``[rows, width]``, the residual before the attention, of ``h``'s dtype. Overwritten with the new one
            and returned.
        post_weight: ``[width]``, for ``h``'s norm; ``dense_weight`` for the dense FFN's input norm. Any float dtype.
        router_weight: ``[width]``, for the router's input norm, its scale folded in; ``expert_weight`` for the
            experts' input norm.
        tiles: use the many-rows kernel with these; None: with :data:`TILES`, from :data:`MANY_ROWS` rows on.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    weights = {"post": post_weight, "dense": dense_weight, "router": router_weight, "expert": expert_weight}
    reason = reason_against(h, residual, weights)
    if reason:
        raise ValueError(reason)
    rows, width = h.shape
    triple = router_weight is not None
    out = torch.empty((3 if triple else 1, rows, width), dtype=h.dtype, device=h.device)
    if rows:
        given = (
            h, residual, post_weight, dense_weight, router_weight if triple else dense_weight, expert_weight if triple else dense_weight,
            out, h.stride(0), residual.stride(0), out.stride(0), width, post_eps, dense_eps, router_eps, expert_eps,
        )  # fmt: skip
        if tiles is None and rows >= MANY_ROWS and TILES.fits(width):
            tiles = TILES
        if tiles is not None:
            programs = (triton.cdiv(rows, tiles.rows),)
            triple_rmsnorm_rows_kernel[programs](*given, rows, TRIPLE=triple, **tiles.options(width), **launch_options(h.device))
        else:
            block = triton.next_power_of_2(width)
            _triple_rmsnorm_kernel[(rows,)](*given, TRIPLE=triple, BLOCK=block, num_warps=warps_for(block), **launch_options(h.device))
    return (out[0], residual, *out[1:].unbind(0))


def warps_for(block: int) -> int:
    """Warps of a program that holds a row of ``block`` elements: 16 elements a thread."""
    return max(1, min(16, block // 512))


def reason_against(h: torch.Tensor, residual: torch.Tensor, weights: dict[str, torch.Tensor | None]) -> str | None:
    """Why the kernel does not take these tensors, or None. ``weights`` by name, for the message."""
    if reason := reason_against_rows(h=h, residual=residual):
        return reason
    if residual.shape != h.shape or not 1 <= h.shape[1] <= LONGEST_ROW:
        return f"residual is {tuple(residual.shape)}, h is {tuple(h.shape)}; one shape with a width up to {LONGEST_ROW} is supported"
    for name, weight in weights.items():
        if weight is not None and (weight.shape != (h.shape[1],) or not weight.is_contiguous()):
            return f"the {name} weight is {tuple(weight.shape)}; a contiguous ({h.shape[1]},) is supported"
    if (weights.get("router") is None) != (weights.get("expert") is None):
        return "of the router's and the experts' weight one is given; both or none are supported"
    return None
