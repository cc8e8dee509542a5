"""Quantises keys and values of new tokens and writes them with their scales into the KV pool, in one launch.

Slot 0 of the pool is for padding tokens. Like SGLang's own write on a GPU, the launch leaves it unchanged.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.kv_cache.formats import BY_DTYPE, HUGE, TINY, quantise_reference
from sglang_gemma4.kernels.matrices import DTYPES

LEAST, MOST = tl.constexpr(TINY), tl.constexpr(HUGE)


@triton.jit
def largest_of(values):  # type: ignore[no-untyped-def]
    """The largest finite magnitude in each row of float32 ``values``, and the rows with 0 for what is no number."""
    values = tl.where(values == values, values, 0.0)
    values = tl.minimum(tl.maximum(values, -MOST), MOST)
    return tl.max(tl.abs(values), 1), values


@triton.jit
def levels_of(values, top, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of ``values`` that ``top`` is the largest magnitude of, in levels of the format of ``dtype``; and what a level is worth."""
    largest: tl.constexpr = 127.0 if dtype == tl.int8 else 448.0
    kept = top > LEAST
    levels = values * tl.where(kept, largest / tl.where(kept, top, 1.0), 0.0)[:, None]
    if dtype == tl.int8:
        levels = tl.floor(levels + 0.5)
    levels = tl.minimum(tl.maximum(levels, -largest), largest)
    return levels.to(dtype), tl.where(kept, top / largest, 0.0)


@triton.jit(do_not_specialize=["tokens", "cache_slots"])
def _store_kernel(  # type: ignore[no-untyped-def]
    k_ptr,
    v_ptr,
    k_cache_ptr,  # [slots, KV heads, dim]
    v_cache_ptr,
    k_scale_ptr,  # [slots, KV heads], adjacent
    v_scale_ptr,
    slots_ptr,  # [tokens]
    tokens,
    cache_slots,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_slot_stride,
    k_cache_head_stride,
    v_slot_stride,
    v_cache_head_stride,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    ROWS: tl.constexpr,  # heads of a program
):
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token, head = number // KV_HEADS, number % KV_HEADS
    real = token < tokens
    slot = tl.load(slots_ptr + token, mask=real, other=0).to(tl.int64)
    real &= (slot > 0) & (slot < cache_slots)
    dims = tl.arange(0, DIM)[None, :]
    keys = tl.load(k_ptr + (token * k_token_stride + head * k_head_stride)[:, None] + dims, mask=real[:, None], other=0.0).to(tl.float32)
    top, keys = largest_of(keys)
    levels, scale = levels_of(keys, top, k_cache_ptr.dtype.element_ty)
    tl.store(k_cache_ptr + (slot * k_slot_stride + head * k_cache_head_stride)[:, None] + dims, levels, mask=real[:, None])
    tl.store(k_scale_ptr + slot * KV_HEADS + head, scale, mask=real)
    dims = tl.arange(0, V_DIM)[None, :]
    values = tl.load(v_ptr + (token * v_token_stride + head * v_head_stride)[:, None] + dims, mask=real[:, None], other=0.0).to(tl.float32)
    top, values = largest_of(values)
    levels, scale = levels_of(values, top, v_cache_ptr.dtype.element_ty)
    tl.store(v_cache_ptr + (slot * v_slot_stride + head * v_cache_head_stride)[:, None] + dims, levels, mask=real[:, None])
    tl.store(v_scale_ptr + slot * KV_HEADS + head, scale, mask=real)


def store_reference(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scales: torch.Tensor,
    v_scales: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """What :func:`store` writes; fp8 caches stored as bytes (uint8) are passed as views of their element type."""
    written = (slots > 0) & (slots < k_cache.shape[0])
    places = slots[written].long()
    for rows, cache, scales in ((k, k_cache, k_scales), (v, v_cache, v_scales)):
        levels, found = quantise_reference(rows[written], cache.dtype)
        # fp8 tensors cannot be indexed into; their bytes can.
        cache.view(torch.int8)[places] = levels.view(torch.int8)
        scales[places] = found


def store(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scales: torch.Tensor,
    v_scales: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write the keys and values of new tokens; the host does not wait for the device.

    Args:
        k: ``[tokens, KV heads, dim]`` and ``v`` ``[tokens, KV heads, value dim]``, float32, bfloat16 or float16.
        k_cache: ``[slots, KV heads, dim]`` and ``v_cache`` ``[slots, KV heads, value dim]``, of a format's dtype. The last dimension of all
            four is contiguous and a power of two.
        k_scales: ``[slots, KV heads]`` float32, contiguous; ``v_scales`` alike.
        slots: ``[tokens]`` int, each token's slot. Slot 0, negative ones and those past the end are not written.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = reason_against(k, v, k_cache, v_cache, k_scales, v_scales, slots)
    if reason:
        raise ValueError(reason)
    tokens, kv_heads, dim = k.shape
    if tokens == 0:
        return
    rows = 1 if tokens * kv_heads <= 4096 else 4
    _store_kernel[(triton.cdiv(tokens * kv_heads, rows),)](
        k, v, k_cache, v_cache, k_scales, v_scales, slots, tokens, k_cache.shape[0], k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        k_cache.stride(0), k_cache.stride(1), v_cache.stride(0), v_cache.stride(1),
        KV_HEADS=kv_heads, DIM=dim, V_DIM=v.shape[2], ROWS=rows, num_warps=max(1, min(8, rows * dim // 256)),
    )  # fmt: skip


def reason_against(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scales: torch.Tensor,
    v_scales: torch.Tensor,
    slots: torch.Tensor,
) -> str | None:
    """Why :func:`store` does not take these, or None."""
    for name, rows, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if rows.dtype not in DTYPES or rows.dtype != k.dtype:
            return f"{name} is {rows.dtype}; float32, bfloat16 or float16, the same for both, is supported"
        if cache.dtype not in BY_DTYPE or cache.dtype != k_cache.dtype:
            return f"{name}_cache is {cache.dtype}; one of {', '.join(map(str, BY_DTYPE))}, the same for both, is supported"
        if rows.dim() != 3 or cache.dim() != 3 or rows.shape[1:] != cache.shape[1:] or rows.stride(2) != 1 or cache.stride(2) != 1:
            return f"{name} is {tuple(rows.shape)} with strides {rows.stride()}, {name}_cache {tuple(cache.shape)}: heads do not fit"
        if rows.shape[2] & (rows.shape[2] - 1):
            return f"{name}'s head dimension is {rows.shape[2]}; a power of two is supported"
    if v.shape[:2] != k.shape[:2] or slots.shape != k.shape[:1] or slots.dtype not in (torch.int32, torch.int64):
        return f"k is {tuple(k.shape)}, v {tuple(v.shape)}, slots {tuple(slots.shape)} {slots.dtype}; one integer slot a token is supported"
    if not slots.is_contiguous():
        return f"slots have stride {slots.stride(0)}; adjacent ones are supported"
    return reason_against_scales(k_cache, k_scales, v_scales)


def reason_against_scales(cache: torch.Tensor, k_scales: torch.Tensor | None, v_scales: torch.Tensor | None) -> str | None:
    """Why these are not the scales of ``cache`` ``[slots, KV heads, dim]``, or None."""
    for name, scales in (("k_scales", k_scales), ("v_scales", v_scales)):
        if scales is None:
            return f"{name} are missing; float32 {tuple(cache.shape[:2])} are needed"
        if scales.dtype != torch.float32 or scales.shape != cache.shape[:2] or not scales.is_contiguous():
            return f"{name} are {tuple(scales.shape)} {scales.dtype}; contiguous float32 {tuple(cache.shape[:2])} are supported"
    return None
