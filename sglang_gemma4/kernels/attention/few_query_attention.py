"""Attention of a few query tokens per request over a long paged KV cache: verify, draft and decode steps.

One program takes all query tokens of a request and all query heads of one KV head as the rows of one tile, and a part of the keys; a
second kernel joins the parts. So each key is read once for all of its queries, and a small batch still fills the card. How many parts a
request is cut into follows from its length on the device; the host knows only their largest number.

Query tokens of a verify step see the keys in the cache (``kv_indices``) and each other's (``k_new``), these by the tree's mask or, without
one, causally. Draft and decode steps have one query token, whose own key is in the cache already.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.attention.attention_limits import few_query_reason, padded_rows
from sglang_gemma4.kernels.attention.attention_tiles import KeyTile, key_tile
from sglang_gemma4.kernels.attention.key_parts import LEAST_KEYS, MOST_KEYS, join_parts, multiprocessors, parts_for, parts_of
from sglang_gemma4.kernels.card import card
from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options


def few_query_attention_reference(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    scale: float,
    *,
    queries: int = 1,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    tree_mask_indptr: torch.Tensor | None = None,
    key_offsets: torch.Tensor | None = None,
    window: int = -1,
    soft_cap: float = 0.0,
) -> torch.Tensor:
    """What :func:`few_query_attention` computes, request by request in float32; same arguments, a new ``[tokens, heads, value dim]``."""
    heads, kv_heads = q.shape[1], k_buffer.shape[1]
    out = torch.empty(q.shape[0], heads, v_buffer.shape[2], dtype=torch.float32, device=q.device)
    for request in range(kv_indptr.numel() - 1):
        rows = slice(request * queries, (request + 1) * queries)
        slots = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request + 1])].long()
        keys, values = k_buffer[slots].float(), v_buffer[slots].float()
        cached = keys.shape[0]
        seen = torch.ones(queries, cached, dtype=torch.bool, device=q.device)
        positions = torch.full((queries,), cached - 1, device=q.device)
        if k_new is not None and v_new is not None:
            keys, values = torch.cat([keys, k_new[rows].float()]), torch.cat([values, v_new[rows].float()])
            positions = cached + torch.arange(queries, device=q.device)
            among = torch.tril(torch.ones(queries, queries, dtype=torch.bool, device=q.device))
            if tree_mask is not None and tree_mask_indptr is not None:
                before = int(key_offsets[request]) if key_offsets is not None else 0
                width = before + cached + queries
                start = int(tree_mask_indptr[request])
                among = tree_mask[start : start + queries * width].view(queries, width)[:, before + cached :].bool()
            seen = torch.cat([seen, among], dim=1)
        if window >= 0:
            seen = seen & (positions[:, None] <= torch.arange(keys.shape[0], device=q.device) + window)
        query = q[rows].float().view(queries, kv_heads, heads // kv_heads, -1)
        scores = torch.einsum("qhgd,khd->hgqk", query, keys) * scale
        if soft_cap > 0:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
        out[rows] = torch.einsum("hgqk,khd->qhgd", weights, values).reshape(queries, heads, -1)
    return out.to(q.dtype)


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query,
    k_pointers,
    v_pointers,
    seen,
    loaded,
    top,
    total,
    out,
    scale,
    SOFT_CAP: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """One block of keys into the running maximum, sum and output of every row."""
    keys = tl.load(k_pointers, mask=loaded[None, :], other=0.0)  # [dim, keys]
    scores = tl.dot(query, keys.to(query.dtype), input_precision=PRECISION) * scale
    if SOFT_CAP > 0:
        scores = SOFT_CAP * (2 * tl.sigmoid(2 * scores / SOFT_CAP) - 1)  # tanh
    scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen nothing yet
    weights = tl.exp(scores - safe[:, None])
    fade = tl.exp(top - safe)
    values = tl.load(v_pointers, mask=loaded[:, None], other=0.0)  # [keys, value dim]
    out = out * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
    return new_top, total * fade + tl.sum(weights, 1), out


@triton.jit(do_not_specialize=["wanted", "most"])
def _few_query_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_buffer_ptr,
    v_buffer_ptr,
    k_new_ptr,
    v_new_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    tree_mask_ptr,
    tree_mask_indptr_ptr,
    key_offsets_ptr,
    part_out_ptr,  # [requests, KV heads, parts, rows, value dim] float32
    part_lse_ptr,  # [requests, KV heads, parts, rows] float32
    scale,
    wanted,
    most,  # parts there is room for
    q_token_stride,
    q_head_stride,
    k_slot_stride,
    k_head_stride,
    v_slot_stride,
    v_head_stride,
    k_new_token_stride,
    k_new_head_stride,
    v_new_token_stride,
    v_new_head_stride,
    KV_HEADS: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803 - query heads of a KV head
    QUERIES: tl.constexpr,  # noqa: N803
    NEW: tl.constexpr,  # noqa: N803 - the query tokens' own keys are in k_new
    TREE: tl.constexpr,  # noqa: N803
    HAS_OFFSETS: tl.constexpr,  # noqa: N803
    WINDOW: tl.constexpr,  # noqa: N803
    SOFT_CAP: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    V_DIM: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803 - QUERIES * GROUP, padded
    BLOCK: tl.constexpr,  # noqa: N803 - keys
    BLOCK_NEW: tl.constexpr,  # noqa: N803
    LEAST: tl.constexpr,  # noqa: N803 - keys in a part
    MOST: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    PDL: tl.constexpr,  # noqa: N803
):
    await_inputs(PDL)
    # Heads first: programs side by side read adjacent keys, heads of the same slots.
    kv_head = (tl.program_id(0) % KV_HEADS).to(tl.int64)
    request = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    part = tl.program_id(1)
    start = tl.load(kv_indptr_ptr + request).to(tl.int64)
    length = (tl.load(kv_indptr_ptr + request + 1).to(tl.int64) - start).to(tl.int32)
    parts, keys_per_part = parts_of(length, wanted, most, LEAST, MOST)
    if part < parts:
        rows = tl.arange(0, ROWS)
        token, head = rows // GROUP, kv_head * GROUP + rows % GROUP
        real = rows < QUERIES * GROUP
        dims, v_dims = tl.arange(0, DIM), tl.arange(0, V_DIM)
        query = tl.load(
            q_ptr + (request * QUERIES + token)[:, None] * q_token_stride + head[:, None] * q_head_stride + dims[None, :],
            mask=real[:, None],
            other=0.0,
        )
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        out = tl.zeros([ROWS, V_DIM], tl.float32)
        position = length + token if NEW else length - 1 + tl.zeros([ROWS], tl.int32)

        first = part * keys_per_part
        last = tl.minimum(first + keys_per_part, length)
        if WINDOW >= 0:  # what the first query token does not see, none does
            first = tl.maximum(first, (length if NEW else length - 1) - WINDOW)
        for block in range(first, last, BLOCK):
            columns = block + tl.arange(0, BLOCK)
            loaded = columns < last
            slots = tl.load(kv_indices_ptr + start + columns, mask=loaded, other=0).to(tl.int64)
            seen = loaded[None, :] & real[:, None]
            if WINDOW >= 0:
                seen &= position[:, None] <= columns[None, :] + WINDOW
            top, total, out = _attend(
                query,
                k_buffer_ptr + slots[None, :] * k_slot_stride + kv_head * k_head_stride + dims[:, None],
                v_buffer_ptr + slots[:, None] * v_slot_stride + kv_head * v_head_stride + v_dims[None, :],
                seen, loaded, top, total, out, scale, SOFT_CAP, PRECISION,
            )  # fmt: skip
        if NEW and part == parts - 1:
            fresh = tl.arange(0, BLOCK_NEW)
            loaded = fresh < QUERIES
            seen = loaded[None, :] & real[:, None]
            if TREE:
                before = tl.load(key_offsets_ptr + request).to(tl.int64) if HAS_OFFSETS else 0
                width = before + length + QUERIES
                mask_start = tl.load(tree_mask_indptr_ptr + request).to(tl.int64) + before + length
                seen &= tl.load(tree_mask_ptr + mask_start + token[:, None] * width + fresh[None, :], mask=seen, other=0) != 0
            else:
                seen &= fresh[None, :] <= token[:, None]
            if WINDOW >= 0:
                seen &= token[:, None] <= fresh[None, :] + WINDOW
            tokens = request * QUERIES + fresh
            top, total, out = _attend(
                query,
                k_new_ptr + tokens[None, :] * k_new_token_stride + kv_head * k_new_head_stride + dims[:, None],
                v_new_ptr + tokens[:, None] * v_new_token_stride + kv_head * v_new_head_stride + v_dims[None, :],
                seen, loaded, top, total, out, scale, SOFT_CAP, PRECISION,
            )  # fmt: skip
        divisor = tl.where(total > 0, total, 1.0)
        out = out / divisor[:, None]
        place = (request * KV_HEADS + kv_head) * most * (QUERIES * GROUP) + rows + part * (QUERIES * GROUP)
        tl.store(part_out_ptr + place[:, None] * V_DIM + v_dims[None, :], out, mask=real[:, None])
        tl.store(part_lse_ptr + place, tl.where(total > 0, top + tl.log(divisor), float("-inf")), mask=real)


def few_query_attention(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    scale: float,
    *,
    out: torch.Tensor,
    queries: int = 1,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    tree_mask_indptr: torch.Tensor | None = None,
    key_offsets: torch.Tensor | None = None,
    window: int = -1,
    soft_cap: float = 0.0,
    parts: int | None = None,
    tile: KeyTile | None = None,
) -> torch.Tensor:
    """Attention of ``queries`` tokens per request; written to ``out`` and returned. The host does not wait for the device.

    Args:
        q: ``[requests * queries, heads, dim]``, float32, bfloat16 or float16.
        k_buffer: ``[slots, KV heads, dim]``; ``v_buffer`` ``[slots, KV heads, value dim]``. Their last dimension is contiguous.
        kv_indptr: ``[requests + 1]`` int, where each request's slots begin in ``kv_indices``.
        kv_indices: ``[keys]`` int, slots of the cached keys in order; of a sliding layer, those of its last keys.
        scale: of the scores.
        out: ``[requests * queries, heads, value dim]``, contiguous.
        k_new: ``[requests * queries, KV heads, dim]``, the query tokens' own keys where the cached ones lack them; ``v_new`` alike.
        tree_mask: bool or uint8, of each request ``[queries, key offset + cached keys + queries]``; only its last columns are read. Without
            it a query token sees the new ones up to itself.
        tree_mask_indptr: ``[requests]`` int, where each request's mask begins.
        key_offsets: ``[requests]`` int, keys before the first in ``kv_indices`` that the mask counts too.
        window: a key is seen from positions up to ``window`` behind it; below 0: always.
        soft_cap: scores are ``soft_cap * tanh(scores / soft_cap)``; 0: as they are.
        parts: parts a request's keys are cut into if they suffice; None: by the card and the length.
        tile: None: :func:`~sglang_gemma4.kernels.attention.attention_tiles.key_tile` of the card.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = few_query_reason(q, k_buffer, v_buffer, out, queries, k_new, v_new)
    if reason:
        raise ValueError(reason)
    requests, heads, dim = q.shape[0] // queries, q.shape[1], q.shape[2]
    kv_heads, v_dim = k_buffer.shape[1], v_buffer.shape[2]
    if requests == 0:
        return out
    group = heads // kv_heads
    wanted, most = (parts, parts) if parts else parts_for(requests, kv_heads, multiprocessors(q.device))
    part_out = torch.empty((requests, kv_heads, most, queries * group, v_dim), dtype=torch.float32, device=q.device)
    part_lse = torch.empty(part_out.shape[:-1], dtype=torch.float32, device=q.device)
    k_fresh, v_fresh = (q, q) if k_new is None or v_new is None else (k_new, v_new)
    rows = padded_rows(queries * group)
    tile = tile or key_tile(rows, dim, v_dim, q.dtype, card(q.device))
    assert tile is not None  # else there was a reason against
    _few_query_attention_kernel[(kv_heads * requests, most)](
        q, k_buffer, v_buffer, k_fresh, v_fresh, kv_indptr, kv_indices,
        q if tree_mask is None else tree_mask,
        kv_indptr if tree_mask_indptr is None else tree_mask_indptr,
        kv_indptr if key_offsets is None else key_offsets,
        part_out, part_lse, scale, wanted, most,
        q.stride(0), q.stride(1), k_buffer.stride(0), k_buffer.stride(1), v_buffer.stride(0), v_buffer.stride(1),
        k_fresh.stride(0), k_fresh.stride(1), v_fresh.stride(0), v_fresh.stride(1),
        KV_HEADS=kv_heads, GROUP=group, QUERIES=queries, ROWS=max(rows, tile.rows), DIM=dim, V_DIM=v_dim,
        NEW=k_new is not None, TREE=tree_mask is not None, HAS_OFFSETS=key_offsets is not None, WINDOW=window, SOFT_CAP=soft_cap,
        BLOCK=tile.keys, BLOCK_NEW=max(16, triton.next_power_of_2(queries)), LEAST=LEAST_KEYS, MOST=MOST_KEYS,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch_options(q.device),
    )  # fmt: skip
    return join_parts(part_out, part_lse, kv_indptr, out, wanted)
