"""The end of a decoder layer and the next layer's input norm, in one launch.

- :func:`dual_tail`: for an MoE layer, ``(rmsnorm(rmsnorm(dense) + rmsnorm(experts)) + residual) * scalar``. No step
  is rounded.
- :func:`tail`: for a dense layer, ``(rmsnorm(x) + residual) * scalar``, or without the scalar. ``rounded`` rounds to
  the model's dtype after the norm and after the sum, as separate kernels do; SGLang's fused kernel for layers without
  per-layer embeddings does not.

Both return the next layer's residual and, with ``next_weight``, its input norm, computed from the rounded residual.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.norms.row_parts import RowTiles, inverse_rms, load_parts, no_parts, store_part, with_part
from sglang_gemma4.kernels.norms.triple_rmsnorm import reason_against, warps_for

MANY_ROWS = 1024
"""Rows from which :data:`TILES` are used: 23 to 31 % faster at 26B-A4B's width (``runs/2026-11-23-row-tiles``)."""
TILES = RowTiles(rows=1, block=1024, warps=4)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def dual_tail_reference(
    dense: torch.Tensor,
    experts: torch.Tensor,
    residual: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scalar: torch.Tensor,
    eps: tuple[float, float, float],
    next_weight: torch.Tensor | None = None,
    next_eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What :func:`dual_tail` computes; same arguments and results."""
    combined = _norm(dense.float(), weights[0], eps[0]) + _norm(experts.float(), weights[1], eps[1])
    out = ((_norm(combined, weights[2], eps[2]) + residual.float()) * scalar.float()).to(dense.dtype)
    return out, None if next_weight is None else _norm(out.float(), next_weight, next_eps).to(dense.dtype)


def tail_reference(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scalar: torch.Tensor | None = None,
    next_weight: torch.Tensor | None = None,
    next_eps: float = 1e-6,
    rounded: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What :func:`tail` computes; same arguments and results."""

    def step(value: torch.Tensor) -> torch.Tensor:
        return value.to(x.dtype).float() if rounded else value

    out = step(step(_norm(x.float(), weight, eps)) + residual.float())
    out = (out if scalar is None else out * scalar.float()).to(x.dtype)
    return out, None if next_weight is None else _norm(out.float(), next_weight, next_eps).to(x.dtype)


@triton.jit
def _rms(x, width, eps):  # type: ignore[no-untyped-def]
    return tl.rsqrt(tl.sum(x * x, 0) / width + eps)


@triton.jit
def _tail_kernel(  # type: ignore[no-untyped-def]
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
    DUAL: tl.constexpr,
    HAS_SCALAR: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    ROUNDED: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    real = columns < width
    # All loads come before the first sum: the compiler moves none across its barrier, and weights come from memory.
    weight = tl.load(weight_ptr + columns, mask=real, other=0.0)
    if DUAL:
        experts_weight = tl.load(experts_weight_ptr + columns, mask=real, other=0.0)
        combined_weight = tl.load(combined_weight_ptr + columns, mask=real, other=0.0)
    if HAS_SCALAR:
        scalar = tl.load(scalar_ptr).to(tl.float32)
    if HAS_NEXT:
        next_weight = tl.load(next_weight_ptr + columns, mask=real, other=0.0)
    await_inputs(PDL)
    x = tl.load(x_ptr + row * x_stride + columns, mask=real, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * residual_stride + columns, mask=real, other=0.0).to(tl.float32)
    if DUAL:
        experts = tl.load(experts_ptr + row * experts_stride + columns, mask=real, other=0.0).to(tl.float32)
    value = x * _rms(x, width, eps) * weight.to(tl.float32)
    if DUAL:
        value += experts * _rms(experts, width, experts_eps) * experts_weight.to(tl.float32)
        value = value * _rms(value, width, combined_eps) * combined_weight.to(tl.float32)
    if ROUNDED:
        value = value.to(x_ptr.dtype.element_ty).to(tl.float32)
    value += residual
    if HAS_SCALAR:
        if ROUNDED:
            value = value.to(x_ptr.dtype.element_ty).to(tl.float32)
        value *= scalar
    written = value.to(x_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + columns, written, mask=real)
    if HAS_NEXT:
        value = written.to(tl.float32)
        value = value * _rms(value, width, next_eps) * next_weight.to(tl.float32)
        tl.store(next_ptr + row * width + columns, value.to(x_ptr.dtype.element_ty), mask=real)


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
    DUAL: tl.constexpr,
    HAS_SCALAR: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    WHOLE: tl.constexpr,
    HELD: tl.constexpr,  # the weights, in registers
    PDL: tl.constexpr,
):
    """For many rows, as :mod:`~sglang_gemma4.kernels.norms.row_parts` lays them out; only the order of a sum's terms differs."""
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


def dual_tail(
    dense: torch.Tensor,
    experts: torch.Tensor,
    residual: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scalar: torch.Tensor,
    eps: tuple[float, float, float],
    next_weight: torch.Tensor | None = None,
    next_eps: float = 1e-6,
    tiles: RowTiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An MoE layer's output and, with ``next_weight``, its norm; new ``[rows, width]`` tensors.

    Args:
        dense: ``[rows, width]``, the dense FFN's output; ``experts`` the experts'. float32, bfloat16 or float16.
        residual: ``[rows, width]``, of the same dtype.
        weights: ``[width]`` each, for the norms of the dense output, of the experts' and of their sum; ``eps`` alike.
        scalar: one element, the layer's scale.
        next_weight: ``[width]``, for the next layer's input norm, or None.
        tiles: use the many-rows kernel with these; None: with :data:`TILES`, from :data:`MANY_ROWS` rows on.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = reason_against(dense, experts, {"dense": weights[0], "experts": weights[1], "combined": weights[2], "next": next_weight})
    if reason:
        raise ValueError(reason)
    return _launch(dense, experts, residual, weights, scalar, eps, next_weight, next_eps, False, tiles)


def tail(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scalar: torch.Tensor | None = None,
    next_weight: torch.Tensor | None = None,
    next_eps: float = 1e-6,
    rounded: bool = False,
    tiles: RowTiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A dense layer's output and, with ``next_weight``, its norm; new ``[rows, width]`` tensors.

    Args:
        x: ``[rows, width]``, float32, bfloat16 or float16; ``residual`` of the same shape and dtype.
        weight: ``[width]``, for the norm of ``x``; ``next_weight`` for the next layer's input norm, or None.
        scalar: one element, or None for no scale.
        rounded: round to ``x``'s dtype after the norm and after the sum too.
        tiles: as in :func:`dual_tail`.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = reason_against(x, residual, {"norm's": weight, "next": next_weight})
    if reason:
        raise ValueError(reason)
    return _launch(x, None, residual, (weight, weight, weight), scalar, (eps, eps, eps), next_weight, next_eps, rounded, tiles)


def _launch(
    x: torch.Tensor,
    experts: torch.Tensor | None,
    residual: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scalar: torch.Tensor | None,
    eps: tuple[float, float, float],
    next_weight: torch.Tensor | None,
    next_eps: float,
    rounded: bool,
    tiles: RowTiles | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    reason = reason_against(x, residual, {})
    if reason is None and scalar is not None and scalar.numel() != 1:
        reason = f"the scalar has {scalar.numel()} elements; 1 is supported"
    if reason:
        raise ValueError(reason)
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    normed = None if next_weight is None else torch.empty_like(out)
    if rows:
        beside = x if experts is None else experts
        given = (
            x, beside, residual, *weights, weights[0] if scalar is None else scalar, weights[0] if next_weight is None else next_weight,
            out, out if normed is None else normed, x.stride(0), beside.stride(0), residual.stride(0), width, *eps, next_eps,
        )  # fmt: skip
        options = {"DUAL": experts is not None, "HAS_SCALAR": scalar is not None, "HAS_NEXT": next_weight is not None, "ROUNDED": rounded}
        options |= launch_options(x.device)
        if tiles is None and rows >= MANY_ROWS and TILES.fits(width):
            tiles = TILES
        if tiles is not None:
            tail_rows_kernel[(triton.cdiv(rows, tiles.rows),)](*given, rows, **options, **tiles.options(width))
        else:
            block = triton.next_power_of_2(width)
            _tail_kernel[(rows,)](*given, **options, BLOCK=block, num_warps=warps_for(block))
    return out, normed
