"""Two kernels, for decode steps and for prefills: the same steps, only the order of a sum's terms differs.

In a decode step a program takes up to four heads of any type (query, key, value), so that enough programs fill the
GPU. That costs 28 instructions per element, which would bound a prefill. There a program takes whole tokens, with all
heads of a type in one tile. Many elements then share their addresses and weights, and no lane has to check its head's
type. All loads of a token are in flight before the first is used.
"""

import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs
from sglang_gemma4.kernels.kv_cache.store import largest_of, levels_of


@triton.jit(do_not_specialize=["tokens", "cache_slots"])
def _qkv_norm_rope_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr,
    positions_ptr,
    cos_sin_ptr,  # [positions, dim]: cosines, then sines
    q_weight_ptr,
    k_weight_ptr,
    out_ptr,  # [tokens, heads, dim], [tokens, KV heads, dim], [tokens, KV heads, dim], one after the other
    tokens,
    token_stride,
    cos_sin_stride,
    eps,
    k_cache_ptr,  # [slots, KV heads, dim], and v_cache_ptr; None where nothing is written
    v_cache_ptr,
    slots_ptr,  # [tokens]
    cache_slots,
    k_slot_stride,
    k_head_stride,
    v_slot_stride,
    v_head_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,  # of the head dimension
    ROWS: tl.constexpr,  # heads of a program
    WRITES: tl.constexpr,  # keys and values, into the pool
    PDL: tl.constexpr,
    k_scale_ptr=None,  # [slots, KV heads] float32, adjacent, of a pool that keeps levels; and v_scale_ptr
    v_scale_ptr=None,
):
    columns = tl.arange(0, HALF)[None, :]
    q_first, q_second = tl.load(q_weight_ptr + columns).to(tl.float32), tl.load(q_weight_ptr + HALF + columns).to(tl.float32)
    if KV_HEADS > 0:
        k_first, k_second = tl.load(k_weight_ptr + columns).to(tl.float32), tl.load(k_weight_ptr + HALF + columns).to(tl.float32)
    await_inputs(PDL)
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token, head = number // (HEADS + 2 * KV_HEADS), number % (HEADS + 2 * KV_HEADS)
    position = tl.load(positions_ptr + token, mask=token < tokens, other=0).to(tl.int64)
    if WRITES:
        slot = tl.load(slots_ptr + token, mask=token < tokens, other=0).to(tl.int64)
    real = (token < tokens)[:, None]
    is_q, is_v = head < HEADS, head >= HEADS + KV_HEADS
    start = qkv_ptr + (token * token_stride + head * (2 * HALF))[:, None] + columns
    first = tl.load(start, mask=real, other=0.0).to(tl.float32)
    second = tl.load(start + HALF, mask=real, other=0.0).to(tl.float32)
    turns = real & (head < HEADS + KV_HEADS)[:, None]
    angle = cos_sin_ptr + (position * cos_sin_stride)[:, None] + columns
    cos = tl.load(angle, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(angle + HALF, mask=turns, other=0.0).to(tl.float32)
    if KV_HEADS > 0:
        one = tl.where(is_v[:, None], 1.0, tl.where(is_q[:, None], q_first, k_first))
        two = tl.where(is_v[:, None], 1.0, tl.where(is_q[:, None], q_second, k_second))
    else:
        one, two = q_first, q_second
    scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
    first = (first * scale * one).to(qkv_ptr.dtype.element_ty).to(tl.float32)
    second = (second * scale * two).to(qkv_ptr.dtype.element_ty).to(tl.float32)
    q_row, kv_row = token * HEADS + head, token * KV_HEADS + head - HEADS
    row = tl.where(is_q, q_row, tokens * HEADS + kv_row + tl.where(is_v, tokens * KV_HEADS - KV_HEADS, 0))
    out = out_ptr + (row * (2 * HALF))[:, None] + columns
    low = (first * cos - second * sin).to(qkv_ptr.dtype.element_ty)
    tl.store(out, low, mask=real)
    high = (first * sin + second * cos).to(qkv_ptr.dtype.element_ty)
    tl.store(out + HALF, high, mask=real)
    if WRITES:
        # Any number of padding tokens name slot 0, which stays as it is, as with SGLang's write.
        kept = real & ((slot > 0) & (slot < cache_slots))[:, None]
        keys, values = kept & ((head >= HEADS) & (head < HEADS + KV_HEADS))[:, None], kept & is_v[:, None]
        k_row = k_cache_ptr + (slot * k_slot_stride + (head - HEADS) * k_head_stride)[:, None] + columns
        v_row = v_cache_ptr + (slot * v_slot_stride + (head - HEADS - KV_HEADS) * v_head_stride)[:, None] + columns
        if k_scale_ptr is not None:
            kept_low, kept_high, worth = _levels_of_halves(low, high, k_cache_ptr.dtype.element_ty)
            at, one = slot * KV_HEADS + head - HEADS, slot > 0
            tl.store(k_scale_ptr + at, worth, mask=one & (slot < cache_slots) & (token < tokens) & ~is_q & ~is_v)
            tl.store(v_scale_ptr + at - KV_HEADS, worth, mask=one & (slot < cache_slots) & (token < tokens) & is_v)
        else:
            kept_low, kept_high = low, high
        tl.store(k_row, kept_low, mask=keys)
        tl.store(k_row + HALF, kept_high, mask=keys)
        tl.store(v_row, kept_low, mask=values)
        tl.store(v_row + HALF, kept_high, mask=values)


@triton.jit
def _levels_of_halves(low, high, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of some heads in levels of a KV cache's format, and what a level of each head is worth."""
    low_top, low = largest_of(low.to(tl.float32))
    high_top, high = largest_of(high.to(tl.float32))
    top = tl.maximum(low_top, high_top)
    low, worth = levels_of(low, top, dtype)
    high, _ = levels_of(high, top, dtype)
    return low, high, worth


@triton.jit
def _load_heads(start, HEADS: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of adjacent heads, ``[HEADS, HALF]`` each."""
    place = start + tl.arange(0, HEADS)[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    return tl.load(place), tl.load(place + HALF)


@triton.jit
def _store_heads(start, head_stride, first, second, HEADS: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    place = start + tl.arange(0, HEADS)[:, None].to(tl.int64) * head_stride + tl.arange(0, HALF)[None, :]
    tl.store(place, first)
    tl.store(place + HALF, second)


@triton.jit
def _norm_heads(first, second, eps, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    first, second = first.to(tl.float32), second.to(tl.float32)
    scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
    return first * scale, second * scale


@triton.jit
def _norm_and_turn_heads(first, second, one, two, angle, eps, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    dtype: tl.constexpr = first.dtype
    # Each head loads its angles, again and from the cache: loaded once, they would lie in other lanes than the heads, and all heads would
    # move through shared memory and back.
    turn = tl.broadcast_to(angle + tl.arange(0, HALF)[None, :], first.shape)
    cos, sin = tl.load(turn).to(tl.float32), tl.load(turn + HALF).to(tl.float32)
    first, second = _norm_heads(first, second, eps, HALF)
    first, second = (first * one).to(dtype).to(tl.float32), (second * two).to(dtype).to(tl.float32)
    return (first * cos - second * sin).to(dtype), (first * sin + second * cos).to(dtype)


@triton.jit(do_not_specialize=["tokens", "cache_slots"])
def qkv_norm_rope_tokens_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr,
    positions_ptr,
    cos_sin_ptr,  # [positions, dim]: cosines, then sines
    q_weight_ptr,
    k_weight_ptr,
    out_ptr,  # [tokens, heads, dim], [tokens, KV heads, dim], [tokens, KV heads, dim], one after the other
    tokens,
    token_stride,
    cos_sin_stride,
    eps,
    k_cache_ptr,  # [slots, KV heads, dim], and v_cache_ptr; None where nothing is written
    v_cache_ptr,
    slots_ptr,  # [tokens]
    cache_slots,
    k_slot_stride,
    k_head_stride,
    v_slot_stride,
    v_head_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,  # of the head dimension
    TOKENS: tl.constexpr,  # of a program
    WRITES: tl.constexpr,  # keys and values, into the pool
    PDL: tl.constexpr,
    k_scale_ptr=None,  # [slots, KV heads] float32, adjacent, of a pool that keeps levels; and v_scale_ptr
    v_scale_ptr=None,
):
    columns = tl.arange(0, HALF)[None, :]
    q_first, q_second = tl.load(q_weight_ptr + columns).to(tl.float32), tl.load(q_weight_ptr + HALF + columns).to(tl.float32)
    if KV_HEADS > 0:
        k_first, k_second = tl.load(k_weight_ptr + columns).to(tl.float32), tl.load(k_weight_ptr + HALF + columns).to(tl.float32)
    await_inputs(PDL)
    begin = tl.program_id(0).to(tl.int64) * TOKENS
    for token in tl.range(begin, tl.minimum(begin + TOKENS, tokens)):
        position = tl.load(positions_ptr + token).to(tl.int64)
        if WRITES:
            slot = tl.load(slots_ptr + token).to(tl.int64)
        start = qkv_ptr + token * token_stride
        q_low, q_high = _load_heads(start, HEADS, HALF)
        if KV_HEADS > 0:
            k_low, k_high = _load_heads(start + HEADS * 2 * HALF, KV_HEADS, HALF)
            v_low, v_high = _load_heads(start + (HEADS + KV_HEADS) * 2 * HALF, KV_HEADS, HALF)
        angle = cos_sin_ptr + position * cos_sin_stride
        q_low, q_high = _norm_and_turn_heads(q_low, q_high, q_first, q_second, angle, eps, HALF)
        _store_heads(out_ptr + token * (HEADS * 2 * HALF), 2 * HALF, q_low, q_high, HEADS, HALF)
        if KV_HEADS > 0:
            k_low, k_high = _norm_and_turn_heads(k_low, k_high, k_first, k_second, angle, eps, HALF)
            one, two = _norm_heads(v_low, v_high, eps, HALF)
            v_low, v_high = one.to(v_low.dtype), two.to(v_high.dtype)
            keys = out_ptr + (token * KV_HEADS + tokens * HEADS) * (2 * HALF)
            values = out_ptr + (token * KV_HEADS + tokens * (HEADS + KV_HEADS)) * (2 * HALF)
            _store_heads(keys, 2 * HALF, k_low, k_high, KV_HEADS, HALF)
            _store_heads(values, 2 * HALF, v_low, v_high, KV_HEADS, HALF)
            if WRITES:  # noqa: SIM102 - known when compiled
                # Any number of padding tokens name slot 0, which stays as it is, as with SGLang's write.
                if (slot > 0) & (slot < cache_slots):
                    if k_scale_ptr is not None:
                        at = slot * KV_HEADS + tl.arange(0, KV_HEADS)
                        one_low, one_high, worth = _levels_of_halves(k_low, k_high, k_cache_ptr.dtype.element_ty)
                        tl.store(k_scale_ptr + at, worth)
                        _store_heads(k_cache_ptr + slot * k_slot_stride, k_head_stride, one_low, one_high, KV_HEADS, HALF)
                        two_low, two_high, worth = _levels_of_halves(v_low, v_high, v_cache_ptr.dtype.element_ty)
                        tl.store(v_scale_ptr + at, worth)
                        _store_heads(v_cache_ptr + slot * v_slot_stride, v_head_stride, two_low, two_high, KV_HEADS, HALF)
                    else:
                        _store_heads(k_cache_ptr + slot * k_slot_stride, k_head_stride, k_low, k_high, KV_HEADS, HALF)
                        _store_heads(v_cache_ptr + slot * v_slot_stride, v_head_stride, v_low, v_high, KV_HEADS, HALF)
