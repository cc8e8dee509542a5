"""RMSNorm of each query, key and value head and RoPE of queries and keys, in one launch after the QKV GEMM.

The results are new contiguous tensors, so that nothing later has to copy strided slices. As in separate kernels, the
norm's output is rounded to the model's dtype before it is rotated. The rotation is NeoX's: element ``i`` of a head's
first half with element ``i`` of its second. Partial rotation needs no extra code: the cache holds cosine 1 and sine 0
where a full layer does not rotate.

On request, the launch also writes each token's key and value rows into the KV pool. Slot 0 of the pool is for padding
tokens: like SGLang's own write on a GPU, the launch leaves it unchanged, however many tokens name it.
"""

from typing import Any, NamedTuple

import torch
import triton

from sglang_gemma4.kernels.dependent_launch import launch_options
from sglang_gemma4.kernels.kv_cache.formats import BY_DTYPE
from sglang_gemma4.kernels.kv_cache.store import reason_against_scales
from sglang_gemma4.kernels.matrices import DTYPES
from sglang_gemma4.kernels.norms.qkv_norm_rope.kernels import _qkv_norm_rope_kernel, qkv_norm_rope_tokens_kernel

HEADS_OF_SMALL_STEPS = 4096
"""Most heads of a batch for which a program takes only one: a decode step needs many programs, a prefill wide ones."""
MANY_TOKENS = 1024
"""Tokens from which :func:`tiles_for` is used: 7 to 29 % faster at 26B-A4B's sizes (``runs/2026-11-23-row-tiles``)."""
MOST_OF_A_LANE = 192
"""Most elements of a token per lane; until they are computed with, two share a register."""


class TokenTiles(NamedTuple):
    """How the kernel for many tokens is laid out."""

    tokens: int
    """Tokens of a program, one after the other."""
    warps: int

    def fit(self, heads: int, kv_heads: int, dim: int) -> bool:
        """Whether this layout suits a layer: head counts are powers of two, and a token's heads fit the registers."""
        powers = not heads & (heads - 1) and not kv_heads & (kv_heads - 1)
        return powers and (heads + 2 * kv_heads) * dim <= MOST_OF_A_LANE * 32 * self.warps


def tiles_for(dim: int) -> TokenTiles:
    """The layout for many tokens with heads of ``dim``."""
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
    """How :func:`qkv_norm_rope` writes the keys and values that it returns into the KV pool."""
    written = (slots > 0) & (slots < k_cache.shape[0])
    k_cache[slots[written].long()], v_cache[slots[written].long()] = k[written], v[written]


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
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries ``[tokens, heads, dim]``, keys and values ``[tokens, KV heads, dim]``; new and contiguous.

    Args:
        qkv: ``[tokens, >= (heads + 2 * kv_heads) * dim]``, query heads, key heads, value heads; its rows need not be
            adjacent. With ``kv_heads`` 0 only the queries are read. float32, bfloat16 or float16.
        positions: ``[tokens]`` int.
        cos_sin: ``[positions, dim]``, cosines of the ``dim / 2`` angles, then their sines; any float dtype.
        q_weight: ``[dim]``, for the queries' norm; ``k_weight`` for the keys'. The values' norm has none.
        eps: of the three norms.
        k_cache: ``[slots, KV heads, dim]``, of ``qkv``'s dtype, into which the keys are written; neither heads nor
            slots need be adjacent. ``v_cache`` for the values. Give both and ``slots``, or none.
        slots: ``[tokens]`` int, each token's slot. Slot 0, negative ones and those past the end are not written.
        tiles: use the many-tokens kernel with these; None: :func:`tiles_for`, from :data:`MANY_TOKENS` tokens on.
        k_scales: ``[slots, KV heads]`` float32, contiguous, receives the keys' scales; ``v_scales`` the values'.
            Given if the caches are quantised (``kv_cache.formats``). The returned keys and values are not rounded.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = reason_against(qkv, positions, cos_sin, q_weight, k_weight, heads, kv_heads)
    if reason is None and not (k_cache is None and v_cache is None and slots is None):
        reason = write_reason_against(qkv, q_weight.numel(), kv_heads, k_cache, v_cache, slots, k_scales, v_scales)
    if reason:
        raise ValueError(reason)
    tokens, dim, every = qkv.shape[0], q_weight.shape[0], heads + 2 * kv_heads
    out = torch.empty(tokens * every * dim, dtype=qkv.dtype, device=qkv.device)
    if tokens:
        given = (
            qkv, positions, cos_sin, q_weight, k_weight, out, tokens, qkv.stride(0), cos_sin.stride(0), eps,
            k_cache, v_cache, slots, *_layout(k_cache, v_cache),
        )  # fmt: skip
        options: dict[str, Any] = {} if k_scales is None else {"k_scale_ptr": k_scales, "v_scale_ptr": v_scales}
        options |= {"HEADS": heads, "KV_HEADS": kv_heads, "HALF": dim // 2, "WRITES": slots is not None, **launch_options(qkv.device)}
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
    """Number of slots, then the strides of slots and heads of both caches."""
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
        return f"qkv is {qkv.dtype}; float32, bfloat16 and float16 are supported"
    dim = q_weight.numel()
    if dim & (dim - 1) or not 16 <= dim <= 1024 or k_weight.numel() != dim:
        return f"head dimensions {dim} and {k_weight.numel()}; one power of two from 16 to 1024 is supported"
    if heads < 1 or kv_heads < 0 or qkv.dim() != 2 or qkv.shape[1] < (heads + 2 * kv_heads) * dim or qkv.stride(1) != 1:
        return f"qkv is {tuple(qkv.shape)} with strides {qkv.stride()}; {heads} + 2 * {kv_heads} heads of {dim} are to be adjacent in it"
    if positions.shape != qkv.shape[:1] or positions.dtype not in (torch.int32, torch.int64):
        return f"positions are {tuple(positions.shape)} {positions.dtype}; one integer for each of {qkv.shape[0]} tokens is supported"
    if cos_sin.dim() != 2 or cos_sin.shape[1] != dim or cos_sin.stride(1) != 1 or not cos_sin.dtype.is_floating_point:
        return f"cos_sin is {tuple(cos_sin.shape)} {cos_sin.dtype}; [positions, {dim}] floats are supported"
    if not q_weight.is_contiguous() or not k_weight.is_contiguous() or not positions.is_contiguous():
        return "weights and positions are to be contiguous"
    return None


def write_reason_against(
    qkv: torch.Tensor, dim: int, kv_heads: int, k_cache: Any, v_cache: Any, slots: Any, k_scales: Any = None, v_scales: Any = None
) -> str | None:
    """Why the kernel does not write into these, or None; :func:`reason_against` has accepted the first three."""
    if k_cache is None or v_cache is None or slots is None:
        return "keys and values are written with k_cache, v_cache and slots, or not at all"
    if kv_heads < 1:
        return "there are no keys and values to write"
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dim() != 3 or cache.shape != (k_cache.shape[0], kv_heads, dim) or cache.stride(2) != 1:
            found = f"{tuple(cache.shape)} with strides {cache.stride()}"
            return f"{name} is {found}; {k_cache.shape[0]} slots of {kv_heads} heads of {dim} adjacent elements are supported"
        quantised = k_scales is not None and cache.dtype in BY_DTYPE and cache.dtype == k_cache.dtype
        if cache.dtype != qkv.dtype and not quantised:
            return f"{name} is {cache.dtype}, qkv {qkv.dtype}"
    if slots.shape != qkv.shape[:1] or slots.dtype not in (torch.int32, torch.int64) or not slots.is_contiguous():
        return f"slots are {tuple(slots.shape)} {slots.dtype}; one integer for each of {qkv.shape[0]} tokens, adjacent, is supported"
    return reason_against_scales(k_cache, k_scales, v_scales) if k_cache.dtype in BY_DTYPE else None
