"""RMSNorm of each query, key and value head and the rotation of queries and keys, in one launch from the QKV product.

The results are new contiguous tensors, so that nothing after it has to copy strided slices. As in separate kernels, the norm's output is
rounded to the model's dtype before it is rotated. The rotation is NeoX's: element ``i`` of a head's first half with element ``i`` of its
second. Partial rotation needs nothing of its own: where a full layer does not rotate, the cache holds cosine 1 and sine 0.

Where it is asked to, the launch also writes each token's key and value rows into the KV pool, beside those it returns. Slot 0 is the
pool's place for padding tokens: like SGLang's own write on a card it leaves it as it is, however many tokens name it.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.norms.qkv_norm_rope_tokens import TokenTiles, qkv_norm_rope_tokens_kernel
from sglang_gemma4.kernels.norms.triple_rmsnorm import DTYPES

HEADS_OF_SMALL_STEPS = 4096
"""Up to so many heads in all, a program takes one: a decode step needs more programs, a prefill wider ones."""
MANY_TOKENS = 1024
"""From so many tokens on, :func:`tiles_for`: 7 to 29 % faster at 1,024 and 8,192 of 26B-A4B's sizes (``runs/2026-11-23-row-tiles``)."""


def tiles_for(dim: int) -> TokenTiles:
    """For heads of ``dim``, with many tokens."""
    return TokenTiles(tokens=1, warps=8 if dim <= 256 else 4)


def qkv_norm_rope_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    heads: int,
    kv_heads: int,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What :func:`qkv_norm_rope` computes; same arguments and results."""
    dim = q_weight.shape[0]
    states = qkv[:, : (heads + 2 * kv_heads) * dim].unflatten(-1, (-1, dim)).float()
    normed = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + eps)
    normed[:, :heads] *= q_weight.float()
    normed[:, heads : heads + kv_heads] *= k_weight.float()
    normed = normed.to(qkv.dtype)
    cos, sin = cos_sin[positions.long()].float().unsqueeze(1).chunk(2, dim=-1)
    first, second = normed[:, : heads + kv_heads].float().chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(qkv.dtype)
    return turned[:, :heads], turned[:, heads:], normed[:, heads + kv_heads :]


def write_reference(k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor) -> None:
    """What :func:`qkv_norm_rope` writes into the pool of the keys and values that it returns."""
    written = (slots > 0) & (slots < k_cache.shape[0])
    k_cache[slots[written].long()], v_cache[slots[written].long()] = k[written], v[written]


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
    HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803 - of the head dimension
    ROWS: tl.constexpr,  # noqa: N803 - heads of a program
    WRITES: tl.constexpr,  # noqa: N803 - keys and values, into the pool
    PDL: tl.constexpr,  # noqa: N803
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
        # Padding tokens name slot 0, any number of them: it keeps what it holds, as in SGLang's write.
        kept = real & ((slot > 0) & (slot < cache_slots))[:, None]
        keys, values = kept & ((head >= HEADS) & (head < HEADS + KV_HEADS))[:, None], kept & is_v[:, None]
        k_row = k_cache_ptr + (slot * k_slot_stride + (head - HEADS) * k_head_stride)[:, None] + columns
        v_row = v_cache_ptr + (slot * v_slot_stride + (head - HEADS - KV_HEADS) * v_head_stride)[:, None] + columns
        tl.store(k_row, low, mask=keys)
        tl.store(k_row + HALF, high, mask=keys)
        tl.store(v_row, low, mask=values)
        tl.store(v_row + HALF, high, mask=values)


def qkv_norm_rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    heads: int,
    kv_heads: int,
    eps: float = 1e-6,
    k_cache: torch.Tensor | None = None,
    v_cache: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    tiles: TokenTiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries ``[tokens, heads, dim]``, keys and values ``[tokens, KV heads, dim]``; new and contiguous.

    Args:
        qkv: ``[tokens, >= (heads + 2 * kv_heads) * dim]``, query heads, key heads, value heads; its rows need not be adjacent. With
            ``kv_heads`` 0 only the queries are read. float32, bfloat16 or float16.
        positions: ``[tokens]`` int.
        cos_sin: ``[positions, dim]``, cosines of the ``dim / 2`` angles, then their sines; any float dtype.
        q_weight: ``[dim]``, of the queries' norm; ``k_weight`` of the keys'. The values' norm has none.
        eps: of the three norms.
        k_cache: ``[slots, KV heads, dim]``, of ``qkv``'s dtype, where the keys are written too; heads need not be adjacent, nor slots.
            ``v_cache`` for the values. All three of these or none.
        slots: ``[tokens]`` int, where in them. What names slot 0, a negative one or one past the end is not written.
        tiles: of the kernel for many tokens. By default it is taken from :data:`MANY_TOKENS` on, with :func:`tiles_for`.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = reason_against(qkv, positions, cos_sin, q_weight, k_weight, heads, kv_heads)
    if reason is None and not (k_cache is None and v_cache is None and slots is None):
        reason = write_reason_against(qkv, q_weight.numel(), kv_heads, k_cache, v_cache, slots)
    if reason:
        raise ValueError(reason)
    tokens, dim, every = qkv.shape[0], q_weight.shape[0], heads + 2 * kv_heads
    out = torch.empty(tokens * every * dim, dtype=qkv.dtype, device=qkv.device)
    if tokens:
        given = (
            qkv,
            positions,
            cos_sin,
            q_weight,
            k_weight,
            out,
            tokens,
            qkv.stride(0),
            cos_sin.stride(0),
            eps,
            k_cache,
            v_cache,
            slots,
            *_layout(k_cache, v_cache),
        )
        options = {"HEADS": heads, "KV_HEADS": kv_heads, "HALF": dim // 2, "WRITES": slots is not None, **launch_options(qkv.device)}
        if tiles is None and tokens >= MANY_TOKENS and tiles_for(dim).fit(heads, kv_heads, dim):
            tiles = tiles_for(dim)
        if tiles is not None:
            programs = (triton.cdiv(tokens, tiles.tokens),)
            qkv_norm_rope_tokens_kernel[programs](*given, **options, TOKENS=tiles.tokens, num_warps=tiles.warps)
        else:
            rows = 1 if tokens * every <= HEADS_OF_SMALL_STEPS else 4
            warps = max(1, min(8, rows * dim // 256))
            _qkv_norm_rope_kernel[(triton.cdiv(tokens * every, rows),)](*given, **options, ROWS=rows, num_warps=warps)
    q, k, v = out.split([tokens * heads * dim, tokens * kv_heads * dim, tokens * kv_heads * dim])
    return q.view(tokens, heads, dim), k.view(tokens, kv_heads, dim), v.view(tokens, kv_heads, dim)


def _layout(k_cache: torch.Tensor | None, v_cache: torch.Tensor | None) -> tuple[int, ...]:
    """Slots, and the strides of slots and heads of both caches."""
    if k_cache is None or v_cache is None:
        return (0,) * 5
    return k_cache.shape[0], *k_cache.stride()[:2], *v_cache.stride()[:2]


def reason_against(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    heads: int,
    kv_heads: int,
) -> str | None:
    """Why the kernel does not take these tensors, or None."""
    if qkv.dtype not in DTYPES:
        return f"qkv is {qkv.dtype}; float32, bfloat16 and float16 are taken"
    dim = q_weight.numel()
    if dim & (dim - 1) or not 16 <= dim <= 1024 or k_weight.numel() != dim:
        return f"head dimensions {dim} and {k_weight.numel()}; one power of two from 16 to 1024 is taken"
    if heads < 1 or kv_heads < 0 or qkv.dim() != 2 or qkv.shape[1] < (heads + 2 * kv_heads) * dim or qkv.stride(1) != 1:
        return f"qkv is {tuple(qkv.shape)} with strides {qkv.stride()}; {heads} + 2 * {kv_heads} heads of {dim} are to be adjacent in it"
    if positions.shape != qkv.shape[:1] or positions.dtype not in (torch.int32, torch.int64):
        return f"positions are {tuple(positions.shape)} {positions.dtype}; one integer for each of {qkv.shape[0]} tokens is taken"
    if cos_sin.dim() != 2 or cos_sin.shape[1] != dim or cos_sin.stride(1) != 1 or not cos_sin.dtype.is_floating_point:
        return f"cos_sin is {tuple(cos_sin.shape)} {cos_sin.dtype}; [positions, {dim}] floats are taken"
    if not q_weight.is_contiguous() or not k_weight.is_contiguous() or not positions.is_contiguous():
        return "weights and positions are to be contiguous"
    return None


def write_reason_against(qkv: torch.Tensor, dim: int, kv_heads: int, k_cache: Any, v_cache: Any, slots: Any) -> str | None:
    """Why the kernel does not write into these, or None. ``qkv``, ``dim`` and ``kv_heads`` are what :func:`reason_against` took."""
    if k_cache is None or v_cache is None or slots is None:
        return "keys and values are written with k_cache, v_cache and slots, or not at all"
    if kv_heads < 1:
        return "there are no keys and values to write"
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dim() != 3 or cache.shape != (k_cache.shape[0], kv_heads, dim) or cache.stride(2) != 1:
            found = f"{tuple(cache.shape)} with strides {cache.stride()}"
            return f"{name} is {found}; {k_cache.shape[0]} slots of {kv_heads} heads of {dim} adjacent elements are taken"
        if cache.dtype != qkv.dtype:
            return f"{name} is {cache.dtype}, qkv {qkv.dtype}"
    if slots.shape != qkv.shape[:1] or slots.dtype not in (torch.int32, torch.int64) or not slots.is_contiguous():
        return f"slots are {tuple(slots.shape)} {slots.dtype}; one integer for each of {qkv.shape[0]} tokens, adjacent, is taken"
    return None
