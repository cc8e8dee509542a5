"""Causal attention of prompts or chunks of them over a paged prefix and their own keys; images among them may attend both ways.

One program takes some tokens of a request and all query heads of one KV head as the rows of one tile, so that these heads share what is
read, and walks the keys once: first those of the prefix that the window leaves, then the tokens' own, in blocks loaded ahead. Only blocks
at the window's edge and on the diagonal are masked. The last tiles of a request see most keys and start first.

A CUDA graph is captured before its prompts are known: there a list of tiles on the device (:func:`list_tiles`) says what each program does.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.attention.limits import prefill_reason
from sglang_gemma4.kernels.attention.tiles import PromptTile, prompt_tile
from sglang_gemma4.kernels.card import card
from sglang_gemma4.kernels.kv_cache.formats import cached_rows

LOG2_E = tl.constexpr(1.4426950408889634)


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


@triton.jit
def _sweep(  # type: ignore[no-untyped-def]
    first,
    last,
    end,
    position,
    limit,
    query,
    k_ptr,
    v_ptr,
    indices_ptr,
    k_stride,
    v_stride,
    offset,
    top,
    total,
    out,
    scale,
    k_scales,  # of the row a head's key is in, or None; [rows, KV heads]
    v_scales,
    KV_HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    PAGED: tl.constexpr,  # rows of k and v by index, not in order
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Keys ``first`` to ``last``, of which those before ``end`` exist, into the running maximum, sum and output of every row.

    ``position`` of a row and ``limit``, the last key it may see, count from the same zero as the keys. Exponents are of two;
    ``scale`` has the logarithm in it.
    """
    dims, v_dims = tl.arange(0, DIM), tl.arange(0, V_DIM)
    for block in range(first, last, BLOCK):
        columns = block + tl.arange(0, BLOCK)
        rows = tl.load(indices_ptr + columns, mask=columns < end, other=0).to(tl.int64) if PAGED else columns.to(tl.int64)
        if MASKED:
            keys = tl.load(k_ptr + rows[None, :] * k_stride + dims[:, None], mask=(columns < end)[None, :], other=0.0)
        else:
            keys = tl.load(k_ptr + rows[None, :] * k_stride + dims[:, None])
        scores = tl.dot(query, keys.to(query.dtype), input_precision=PRECISION) * scale  # [rows, keys]
        if k_scales is not None:
            scores *= tl.load(k_scales + rows * KV_HEADS, mask=columns < end, other=0.0)[None, :]
        if MASKED:
            seen = (columns < end)[None, :] & (columns[None, :] + offset <= limit[:, None])
            if WINDOW >= 0:
                seen &= position[:, None] <= columns[None, :] + offset + WINDOW
            scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen nothing yet
        weights = tl.exp2(scores - safe[:, None])
        fade = tl.exp2(top - safe)
        if MASKED:
            values = tl.load(v_ptr + rows[:, None] * v_stride + v_dims[None, :], mask=(columns < end)[:, None], other=0.0)
        else:
            values = tl.load(v_ptr + rows[:, None] * v_stride + v_dims[None, :])
        shares = weights
        if v_scales is not None:
            shares = weights * tl.load(v_scales + rows * KV_HEADS, mask=columns < end, other=0.0)[None, :]
        out = tl.dot(shares.to(query.dtype), values.to(query.dtype), out * fade[:, None], input_precision=PRECISION)
        total = total * fade + tl.sum(weights, 1)
        top = new_top
    return top, total, out


@triton.jit
def _prefill_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    k_buffer_ptr,
    v_buffer_ptr,
    qo_indptr_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    reach_ptr,  # [tokens], read where REACH
    tiles_ptr,  # [programs, 2] request and tile, read where LISTED
    out_ptr,  # [tokens, heads, value dim]
    scale,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_slot_stride,
    k_buffer_head_stride,
    v_slot_stride,
    v_buffer_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head, a power of two
    WINDOW: tl.constexpr,
    REACH: tl.constexpr,  # tokens of an image see all of it
    LISTED: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    new_slots_ptr=None,  # [tokens]: where the new tokens' keys are in the buffers; else they are in k and v
    k_scale_ptr=None,  # [slots, KV heads] float32, adjacent, of a cache that has scales
    v_scale_ptr=None,
):
    kv_head = tl.program_id(1).to(tl.int64)
    request = tl.load(tiles_ptr + 2 * tl.program_id(0)).to(tl.int64) if LISTED else tl.program_id(2).to(tl.int64)
    begin = tl.load(qo_indptr_ptr + request).to(tl.int64)
    tokens = (tl.load(qo_indptr_ptr + request + 1).to(tl.int64) - begin).to(tl.int32)
    final = tl.cdiv(tokens, TOKENS) - 1
    tile = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1) if LISTED else final - tl.program_id(0)
    if tile >= 0:
        start = tl.load(kv_indptr_ptr + request).to(tl.int64)
        prefix = (tl.load(kv_indptr_ptr + request + 1).to(tl.int64) - start).to(tl.int32)
        rows = tl.arange(0, TOKENS * GROUP)
        token, head = tile * TOKENS + rows // GROUP, kv_head * GROUP + rows % GROUP
        real = token < tokens
        dims, v_dims = tl.arange(0, DIM), tl.arange(0, V_DIM)
        query = tl.load(
            q_ptr + (begin + token)[:, None] * q_token_stride + head[:, None] * q_head_stride + dims[None, :], mask=real[:, None], other=0.0
        )
        top = tl.full([TOKENS * GROUP], float("-inf"), tl.float32)
        total = tl.zeros([TOKENS * GROUP], tl.float32)
        out = tl.zeros([TOKENS * GROUP, V_DIM], tl.float32)
        lowest, highest = tile * TOKENS, tl.minimum(tile * TOKENS + TOKENS, tokens) - 1  # positions among the new tokens

        k_prefix, v_prefix = k_buffer_ptr + kv_head * k_buffer_head_stride, v_buffer_ptr + kv_head * v_buffer_head_stride
        k_new, v_new = k_ptr + begin * k_token_stride + kv_head * k_head_stride, v_ptr + begin * v_token_stride + kv_head * v_head_stride
        OWN: tl.constexpr = new_slots_ptr is not None  # noqa: N806 - a constant
        own_indices, k_own_stride, v_own_stride = kv_indices_ptr, k_token_stride, v_token_stride
        if OWN:
            k_new, v_new, k_own_stride, v_own_stride = k_prefix, v_prefix, k_slot_stride, v_slot_stride
            own_indices = new_slots_ptr + begin
        k_scales = None if k_scale_ptr is None else k_scale_ptr + kv_head
        v_scales = None if v_scale_ptr is None else v_scale_ptr + kv_head
        if WINDOW >= 0:
            edge = tl.maximum(0, prefix + lowest - WINDOW) // BLOCK * BLOCK  # the first key that any row sees is in this block
            inside = tl.cdiv(tl.maximum(0, prefix + highest - WINDOW), BLOCK) * BLOCK  # from here on every row sees every key
            inside = tl.minimum(tl.maximum(inside, edge), prefix // BLOCK * BLOCK)
            edge = tl.minimum(edge, inside)
        else:
            edge, inside = 0, 0
        whole = tl.maximum(prefix // BLOCK * BLOCK, inside)
        position = prefix + token
        if REACH:
            last = tl.load(reach_ptr + begin + token, mask=real, other=0).to(tl.int32)
            highest_key = tl.minimum(tl.maximum(tl.max(last), highest), tokens - 1)
            limit = prefix + tl.where(real, last, token)
        else:
            highest_key, limit = highest, position
        if WINDOW >= 0:
            top, total, out = _sweep(
                edge, inside, prefix, position, limit, query, k_prefix, v_prefix, kv_indices_ptr + start, k_slot_stride, v_slot_stride, 0,
                top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, True, True, DIM, V_DIM, BLOCK, PRECISION,
            )  # fmt: skip
        top, total, out = _sweep(
            inside, whole, prefix, position, limit, query, k_prefix, v_prefix, kv_indices_ptr + start, k_slot_stride, v_slot_stride, 0,
            top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, False, True, DIM, V_DIM, BLOCK, PRECISION,
        )  # fmt: skip
        top, total, out = _sweep(
            whole, prefix, prefix, position, limit, query, k_prefix, v_prefix, kv_indices_ptr + start, k_slot_stride, v_slot_stride, 0,
            top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, True, True, DIM, V_DIM, BLOCK, PRECISION,
        )  # fmt: skip

        if WINDOW >= 0:
            edge = tl.maximum(0, lowest - WINDOW) // BLOCK * BLOCK
            inside = tl.cdiv(tl.maximum(0, highest - WINDOW), BLOCK) * BLOCK
        else:
            edge, inside = 0, 0
        diagonal = lowest // BLOCK * BLOCK  # the first block that some row does not see whole
        inside = tl.minimum(tl.maximum(inside, edge), diagonal)
        edge = tl.minimum(edge, inside)
        if WINDOW >= 0:
            top, total, out = _sweep(
                edge, inside, tokens, position, limit, query, k_new, v_new, own_indices, k_own_stride, v_own_stride, prefix,
                top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, True, OWN, DIM, V_DIM, BLOCK, PRECISION,
            )  # fmt: skip
        top, total, out = _sweep(
            inside, diagonal, tokens, position, limit, query, k_new, v_new, own_indices, k_own_stride, v_own_stride, prefix,
            top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, False, OWN, DIM, V_DIM, BLOCK, PRECISION,
        )  # fmt: skip
        top, total, out = _sweep(
            diagonal, highest_key + 1, tokens, position, limit, query, k_new, v_new, own_indices, k_own_stride, v_own_stride, prefix,
            top, total, out, scale, k_scales, v_scales, KV_HEADS, WINDOW, True, OWN, DIM, V_DIM, BLOCK, PRECISION,
        )  # fmt: skip
        stored = out_ptr + ((begin + token) * (KV_HEADS * GROUP) + head)[:, None] * V_DIM + v_dims[None, :]
        tl.store(stored, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=real[:, None])


def tokens_of(tile: PromptTile, group: int) -> int:
    """Tokens of a program for ``group`` query heads of a KV head."""
    return max(1, max(16, tile.rows) // group)


def list_tiles(prefixes: Sequence[int], lengths: Sequence[int], tokens: int, room: int) -> list[int] | None:
    """What ``room`` programs compute: pairs of a request and a tile of ``tokens`` of its new tokens, one after the other.

    Tiles that see most keys come first. What is left of the room is the tile -1, nothing.

    Args:
        prefixes: cached keys of each request, ``lengths`` its new tokens.

    Returns:
        ``2 * room`` numbers; None where there are more tiles than room.
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
        k: ``[tokens, KV heads, dim]`` and ``v`` ``[tokens, KV heads, value dim]``, the new tokens' own.
        k_buffer: ``[slots, KV heads, dim]``; ``v_buffer`` ``[slots, KV heads, value dim]``. All last dimensions are contiguous. Of ``q``'s
            dtype, or of a quantised cache's (int8, fp8).
        qo_indptr: ``[requests + 1]`` int, where each request's tokens begin.
        kv_indptr: ``[requests + 1]`` int, where each request's slots begin in ``kv_indices``.
        kv_indices: ``[prefix keys]`` int, slots in order; of a sliding layer, those of the last keys before the new tokens.
        scale: of the scores.
        out: ``[tokens, heads, value dim]``, contiguous.
        longest: most new tokens of a request; the host knows it.
        window: a key is seen from positions up to ``window`` behind it; below 0: always.
        reach: None, or ``[tokens]`` int32: the last new token of its request, counted from 0, that each token sees; itself at least.
        tiles: None, or ``[programs, 2]`` int32 as of :func:`list_tiles`, on the device: what to compute; ``longest`` is not read then.
        new_slots: None, or ``[tokens]`` int: new tokens are read from the buffers at these slots, and ``k`` and ``v`` are the buffers; so a
            quantised cache's are read as every later step will read them.
        k_scales: ``[slots, KV heads]`` float32, contiguous, what a level of a slot's head is worth; ``v_scales`` alike. None: 1.
        tile: None: :func:`~sglang_gemma4.kernels.attention.tiles.prompt_tile` of the card.
        checked: the caller knows that :func:`~sglang_gemma4.kernels.attention.limits.prefill_reason` has nothing against this.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = None if checked else prefill_reason(q, k, v, k_buffer, v_buffer, out, k_scales, v_scales, levels=True)
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
    assert tile is not None  # else prefill_reason has said so
    tokens = tokens_of(tile, group)
    grid = (triton.cdiv(longest, tokens), kv_heads, qo_indptr.numel() - 1) if tiles is None else (tiles.shape[0], kv_heads, 1)
    _prefill_attention_kernel[grid](
        q, k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, q if reach is None else reach,
        qo_indptr if tiles is None else tiles, out, scale * LOG2_E.value,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_buffer.stride(0), k_buffer.stride(1),
        v_buffer.stride(0), v_buffer.stride(1),
        KV_HEADS=kv_heads, GROUP=group, WINDOW=window, REACH=reach is not None, LISTED=tiles is not None, DIM=q.shape[2],
        V_DIM=v.shape[2], TOKENS=tokens, BLOCK=tile.keys, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps, num_stages=tile.stages, **{name: tensor for name, tensor in beside.items() if tensor is not None},
    )  # fmt: skip
    return out
