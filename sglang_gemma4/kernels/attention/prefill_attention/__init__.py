"""Causal attention of prompts or chunks of them over a paged prefix and their own keys; images may attend both ways.

A program's tile has some tokens of a request, times all query heads of one KV head, as its rows; these heads share
what is read. It walks the keys once: first those of the prefix inside the window, then the tokens' own, in blocks
loaded ahead. Only blocks at the window's edge and on the diagonal are masked. The last tiles of a request see the
most keys and start first.

A CUDA graph is captured before its prompts are known. There a list of tiles on the device (:func:`list_tiles`) says
what each program does.
"""

from collections.abc import Sequence

import torch
import triton

from sglang_gemma4.kernels.attention.limits import reason_against_prefill
from sglang_gemma4.kernels.attention.prefill_attention.kernels import _prefill_attention_kernel
from sglang_gemma4.kernels.attention.tiles import PromptTile, prompt_tile
from sglang_gemma4.kernels.card import card
from sglang_gemma4.kernels.kv_cache.formats import cached_rows

LOG2_E = 1.4426950408889634


def prefill_attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    scale: float,
    *,
    window: int = -1,
    reach: torch.Tensor | None = None,
    new_slots: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """What :func:`prefill_attention` computes, request by request in float32; same arguments, a new ``[tokens, heads, value dim]``."""
    heads, kv_heads = q.shape[1], k.shape[1]
    out = torch.empty(q.shape[0], heads, v.shape[2], dtype=torch.float32, device=q.device)
    for request in range(qo_indptr.numel() - 1):
        rows = slice(int(qo_indptr[request]), int(qo_indptr[request + 1]))
        slots = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request + 1])].long()
        keys, values = cached_rows(k_buffer, slots, k_scales), cached_rows(v_buffer, slots, v_scales)
        own = None if new_slots is None else new_slots[rows]
        keys = torch.cat([keys, k[rows].float() if own is None else cached_rows(k_buffer, own, k_scales)])
        values = torch.cat([values, v[rows].float() if own is None else cached_rows(v_buffer, own, v_scales)])
        positions = slots.numel() + torch.arange(rows.stop - rows.start, device=q.device)[:, None]
        columns = torch.arange(keys.shape[0], device=q.device)[None, :]
        seen = columns <= (positions if reach is None else slots.numel() + reach[rows, None])
        if window >= 0:
            seen = seen & (positions <= columns + window)
        query = q[rows].float().view(-1, kv_heads, heads // kv_heads, q.shape[2])
        scores = torch.einsum("qhgd,khd->hgqk", query, keys) * scale
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
        out[rows] = torch.einsum("hgqk,khd->qhgd", weights, values).reshape(-1, heads, values.shape[2])
    return out.to(q.dtype)


def tokens_of(tile: PromptTile, group: int) -> int:
    """Tokens of a program for ``group`` query heads per KV head."""
    return max(1, max(16, tile.rows) // group)


def list_tiles(prefixes: Sequence[int], lengths: Sequence[int], tokens: int, room: int) -> list[int] | None:
    """Work of ``room`` programs: pairs of a request and a tile of ``tokens`` of its new tokens, in one flat list.

    Tiles that see the most keys come first. Programs without work get tile -1.

    Args:
        prefixes: cached keys of each request; ``lengths`` its new tokens.

    Returns:
        ``2 * room`` integers; None if there are more tiles than ``room``.
    """
    found = [
        (prefix + tokens * tile, request, tile)
        for request, (prefix, length) in enumerate(zip(prefixes, lengths, strict=True))
        for tile in range(-(-length // tokens))
    ]
    if len(found) > room:
        return None
    pairs = [number for _, request, tile in sorted(found, reverse=True) for number in (request, tile)]
    return pairs + [0, -1] * (room - len(found))


def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    scale: float,
    *,
    out: torch.Tensor,
    longest: int,
    window: int = -1,
    reach: torch.Tensor | None = None,
    tiles: torch.Tensor | None = None,
    new_slots: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    tile: PromptTile | None = None,
    checked: bool = False,
) -> torch.Tensor:
    """Causal attention of new tokens over their request's prefix and each other; written to ``out`` and returned.

    Args:
        q: ``[tokens, heads, dim]``, float32, bfloat16 or float16.
        k: ``[tokens, KV heads, dim]`` and ``v`` ``[tokens, KV heads, value dim]``, of the new tokens.
        k_buffer: ``[slots, KV heads, dim]``; ``v_buffer`` ``[slots, KV heads, value dim]``. All last dimensions are
            contiguous; the dtype is ``q``'s or a quantised cache's (int8, fp8).
        qo_indptr: ``[requests + 1]`` int, where each request's tokens begin.
        kv_indptr: ``[requests + 1]`` int, where each request's slots begin in ``kv_indices``.
        kv_indices: ``[prefix keys]`` int, slots in order; for a sliding layer, those of the last keys before the new
            tokens.
        scale: multiplies the scores.
        out: ``[tokens, heads, value dim]``, contiguous.
        longest: most new tokens of a request, which the host knows.
        window: a token sees keys up to ``window`` positions before it; below 0: all.
        reach: None, or ``[tokens]`` int32: the last new token of its request, counted from 0, that each token sees;
            itself at least.
        tiles: None, or ``[programs, 2]`` int32 on the device, from :func:`list_tiles`: what to compute; ``longest``
            then only has to be 1 or more.
        new_slots: None, or ``[tokens]`` int: new tokens are read from the buffers at these slots, and ``k`` and ``v``
            are the buffers. So those of a quantised cache are read as in every later step.
        k_scales: ``[slots, KV heads]`` float32, contiguous, scale of each slot's heads; ``v_scales`` alike. None: 1.
        tile: None: chosen by :func:`~sglang_gemma4.kernels.attention.tiles.prompt_tile`.
        checked: the caller has checked :func:`~sglang_gemma4.kernels.attention.limits.reason_against_prefill`.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = None if checked else reason_against_prefill(q, k, v, k_buffer, v_buffer, out, k_scales, v_scales, levels=True)
    if reason is None and (new_slots is not None) != (k is k_buffer and v is v_buffer):
        reason = "new_slots are given with the buffers as k and v, and only then"
    if reason is None and new_slots is not None and (new_slots.shape != q.shape[:1] or not new_slots.is_contiguous()):
        reason = f"new_slots are {tuple(new_slots.shape)}; one for each of {q.shape[0]} tokens is supported"
    if reason:
        raise ValueError(reason)
    heads, kv_heads = q.shape[1], k.shape[1]
    if q.shape[0] == 0 or longest < 1:
        return out
    if reach is not None and (reach.dtype != torch.int32 or reach.shape[0] < q.shape[0] or not reach.is_contiguous()):
        raise ValueError(f"reach is {reach.dtype} of shape {tuple(reach.shape)}; contiguous int32 for {q.shape[0]} tokens is supported")
    if tiles is not None and (tiles.dtype != torch.int32 or tiles.dim() != 2 or tiles.shape[1] != 2 or not tiles.is_contiguous()):
        raise ValueError(f"tiles are {tiles.dtype} of shape {tuple(tiles.shape)}; contiguous int32 of two columns is supported")
    group = heads // kv_heads
    tile = tile or prompt_tile(group, q.shape[2], v.shape[2], q.dtype, card(q.device), k_buffer.dtype)
    beside = {"new_slots_ptr": new_slots, "k_scale_ptr": k_scales, "v_scale_ptr": v_scales}
    assert tile is not None  # reason_against_prefill checks it
    tokens = tokens_of(tile, group)
    grid = (triton.cdiv(longest, tokens), kv_heads, qo_indptr.numel() - 1) if tiles is None else (tiles.shape[0], kv_heads, 1)
    _prefill_attention_kernel[grid](
        q, k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, q if reach is None else reach,
        qo_indptr if tiles is None else tiles, out, scale * LOG2_E,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_buffer.stride(0), k_buffer.stride(1),
        v_buffer.stride(0), v_buffer.stride(1),
        KV_HEADS=kv_heads, GROUP=group, WINDOW=window, REACH=reach is not None, LISTED=tiles is not None, DIM=q.shape[2],
        V_DIM=v.shape[2], TOKENS=tokens, BLOCK=tile.keys, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps, num_stages=tile.stages, **{name: tensor for name, tensor in beside.items() if tensor is not None},
    )  # fmt: skip
    return out
