"""Attention of a few query tokens per request over a long paged KV cache: verify, draft and decode steps.

A program's tile has all query tokens of a request, times all query heads of one KV head, as its rows. It covers one
part of the request's keys; a second kernel joins the parts. So each key is read once for all of its queries, and a
small batch still fills the GPU. The device chooses how many parts a request is cut into, from its length and, if
parts are balanced, from all requests' keys. The host knows only the maximum.

Query tokens of a verify step see the cached keys (``kv_indices``) and each other's (``k_new``), the latter by the
tree mask or, without one, causally. Draft and decode steps have one query token, whose key is already cached.
"""

import functools
import math

import torch
import triton

from sglang_gemma4.kernels.attention.few_query_attention.kernels import _few_query_attention_kernel, _join_kernel
from sglang_gemma4.kernels.attention.limits import padded_rows, reason_against_few_query
from sglang_gemma4.kernels.attention.tiles import KeyTile, head_split, key_tile
from sglang_gemma4.kernels.card import card, multiprocessors
from sglang_gemma4.kernels.dependent_launch import launch_options
from sglang_gemma4.kernels.kv_cache.formats import cached_rows

MOST_PARTS = 64
LEAST_KEYS = 64
"""Fewest keys of a part, unless it is the only one: with fewer, the join costs more than it saves."""
MOST_KEYS = 2048
"""Most keys of a part while more parts are allowed: with longer ones the GPU would idle while the last one ends."""
PROGRAMS_PER_MULTIPROCESSOR = 2
"""Programs that fill a multiprocessor; ``MOST_PROGRAMS_PER_MULTIPROCESSOR`` bounds the memory of the parts."""
MOST_PROGRAMS_PER_MULTIPROCESSOR = 16
BEGINNING = 200
"""Fixed cost of a program (start, end, its share of the join), in keys that it could read in that time. With it,
:func:`parts_for` chooses between two and three parts as measured: 80 requests with two KV heads and 512 to 8,192 keys
(``runs/2026-11-26-attention-parts``)."""
TYPICAL_KEYS = 2048
"""Assumed keys of a request in a layer without a window; only the device knows the real number."""

LEAST_DIM_OF_WORDS = 64
"""Least head dimension for reading int8 values four at a time: a quarter of it is a GEMM's inner dimension (16 or more)."""

FINELY_CUT = 4
"""Parts per request from which on parts are not balanced. On an H200 balancing saves 40 % with 60 requests of very
different lengths (2 parts each), but costs 4 % with 8 of them (16 parts each); see ``runs/2026-11-26-26b-h200-gap``."""

_balanced = False


def want_balanced(wanted: bool) -> None:
    """Enable or disable balanced parts in this process: longer requests are cut into more parts of similar size."""
    global _balanced
    _balanced = wanted


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
    new_slots: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """What :func:`few_query_attention` computes, request by request in float32; same arguments, a new ``[tokens, heads, value dim]``."""
    heads, kv_heads = q.shape[1], k_buffer.shape[1]
    out = torch.empty(q.shape[0], heads, v_buffer.shape[2], dtype=torch.float32, device=q.device)
    for request in range(kv_indptr.numel() - 1):
        rows = slice(request * queries, (request + 1) * queries)
        slots = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request + 1])].long()
        keys, values = cached_rows(k_buffer, slots, k_scales), cached_rows(v_buffer, slots, v_scales)
        cached = keys.shape[0]
        seen = torch.ones(queries, cached, dtype=torch.bool, device=q.device)
        positions = torch.full((queries,), cached - 1, device=q.device)
        fresh = None
        if new_slots is not None:
            fresh = cached_rows(k_buffer, new_slots[rows], k_scales), cached_rows(v_buffer, new_slots[rows], v_scales)
        elif k_new is not None and v_new is not None:
            fresh = k_new[rows].float(), v_new[rows].float()
        if fresh is not None:
            keys, values = torch.cat([keys, fresh[0]]), torch.cat([values, fresh[1]])
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


@functools.cache
def parts_for(requests: int, kv_heads: int, multiprocessors: int, window: int = -1) -> tuple[int, int]:
    """Parts per request that finish soonest, and the most parts of a long request.

    The estimate assumes that all programs of a round begin and end together. The device decides between the two by
    a request's length. ``window``: a sliding layer's, which bounds a request's keys; below 0: none.
    """
    rows = max(1, requests * kv_heads)
    at_once = PROGRAMS_PER_MULTIPROCESSOR * multiprocessors
    keys = window + 1 if window >= 0 else TYPICAL_KEYS
    counts = range(1, max(1, min(MOST_PARTS, keys // LEAST_KEYS, max(1, MOST_PROGRAMS_PER_MULTIPROCESSOR * multiprocessors // rows))) + 1)
    wanted = min(counts, key=lambda parts: -(-rows * parts // at_once) * (BEGINNING + keys / parts))
    room = MOST_PROGRAMS_PER_MULTIPROCESSOR * multiprocessors / rows
    return wanted, min(MOST_PARTS, max(wanted, 2 ** int(math.log2(max(1.0, room)))))


def join_parts(
    part_out: torch.Tensor, part_lse: torch.Tensor, kv_indptr: torch.Tensor, out: torch.Tensor, wanted: int, most_keys: int = MOST_KEYS
) -> torch.Tensor:
    """Join the parts' outputs, weighted by their softmax sums, in ``out`` ``[tokens, heads, value dim]``, and return it.

    Args:
        part_out: ``[requests, KV heads, most parts, rows, value dim]`` float32; a row is a query token's query head.
        part_lse: ``[requests, KV heads, parts, rows]`` float32, the logarithm of each row's sum.
        kv_indptr: ``[requests + 1]`` int, where each request's slots begin.
        wanted: parts of a request that has enough keys; negative: of one of average length, longer ones get more.
        most_keys: most keys of a part while more parts are allowed.
    """
    requests, kv_heads, most, rows, v_dim = part_out.shape
    queries = out.shape[0] // requests
    _join_kernel[(out.shape[0], out.shape[1])](
        part_out, part_lse, kv_indptr, out, wanted, most,
        KV_HEADS=kv_heads, GROUP=rows // queries, QUERIES=queries, V_DIM=v_dim, LEAST=LEAST_KEYS, MOST=most_keys, BLOCK_PARTS=MOST_PARTS,
        num_warps=4, **launch_options(out.device),
    )  # fmt: skip
    return out


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
    new_slots: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    parts: int | None = None,
    balanced: bool | None = None,
    part_keys: int | None = None,
    tile: KeyTile | None = None,
    split: int | None = None,
    checked: bool = False,
) -> torch.Tensor:
    """Attention of ``queries`` tokens per request; written to ``out`` and returned. The host does not wait for the device.

    Args:
        q: ``[requests * queries, heads, dim]``, float32, bfloat16 or float16.
        k_buffer: ``[slots, KV heads, dim]``; ``v_buffer`` ``[slots, KV heads, value dim]``. Their last dimension is
            contiguous; their dtype is ``q``'s or a quantised cache's (int8, fp8).
        kv_indptr: ``[requests + 1]`` int, where each request's slots begin in ``kv_indices``.
        kv_indices: ``[keys]`` int, slots of the cached keys in order; for a sliding layer, those of its last keys.
        scale: multiplies the scores.
        out: ``[requests * queries, heads, value dim]``, contiguous.
        k_new: ``[requests * queries, KV heads, dim]``, the query tokens' own keys if they are not cached; ``v_new``
            alike.
        tree_mask: bool or uint8, per request ``[queries, key offset + cached keys + queries]``; only its last columns
            are read. None: query tokens see each other causally.
        tree_mask_indptr: ``[requests]`` int, where each request's mask begins.
        key_offsets: ``[requests]`` int, keys that the mask counts before the first one in ``kv_indices``.
        window: a query sees keys up to ``window`` positions before it; below 0: all.
        soft_cap: scores are ``soft_cap * tanh(scores / soft_cap)``; 0: as they are.
        new_slots: ``[requests * queries]`` int, instead of ``k_new`` and ``v_new``: the query tokens' own keys are
            read from the buffers at these slots. So those of a quantised cache are read as in every later step.
        k_scales: ``[slots, KV heads]`` float32, contiguous, scale of each slot's heads; ``v_scales`` alike. None: 1.
        parts: parts of a request that has enough keys; None: by the GPU and the length.
        balanced: without ``parts``, whether longer requests are cut into more parts, up to the maximum; None: as
            :func:`want_balanced` says, unless all are cut finely (:data:`FINELY_CUT`).
        part_keys: cut a request by its length alone, into parts of this many to twice as many keys; parts are longer
            only if there would be over :data:`MOST_PARTS`. A request's output then has the same bits in every batch.
        tile: None: chosen by :func:`~sglang_gemma4.kernels.attention.tiles.key_tile`.
        split: programs that share a KV head's query heads; None:
            :func:`~sglang_gemma4.kernels.attention.tiles.head_split`.
        checked: the caller has checked :func:`~sglang_gemma4.kernels.attention.limits.reason_against_few_query`.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = (
        None if checked else reason_against_few_query(q, k_buffer, v_buffer, out, queries, k_new, v_new, k_scales, v_scales, levels=True)
    )
    if reason is None and new_slots is not None and (k_new is not None or new_slots.shape != q.shape[:1] or not new_slots.is_contiguous()):
        reason = f"new_slots are {tuple(new_slots.shape)}; one for each of {q.shape[0]} query tokens, without k_new, is supported"
    if reason:
        raise ValueError(reason)
    requests, heads, dim = q.shape[0] // queries, q.shape[1], q.shape[2]
    kv_heads, v_dim = k_buffer.shape[1], v_buffer.shape[2]
    if requests == 0:
        return out
    split = head_split(queries, heads // kv_heads, dim) if split is None else split
    kv_heads, group = kv_heads * split, heads // kv_heads // split
    wanted, most = (parts, parts) if parts else parts_for(requests, kv_heads, multiprocessors(q.device), window)
    if part_keys is not None:
        wanted, most = 1, MOST_PARTS
    elif most > wanted and (_balanced and wanted < FINELY_CUT if balanced is None else balanced):
        wanted = -wanted  # passed as the sign: one more argument would invalidate every recorded list of kernels (start/lists)
    elif 0 <= window < MOST_KEYS:
        most = wanted  # programs of parts that no request has would cost 8 of 192 µs
    most_keys = part_keys or MOST_KEYS
    part_out = torch.empty((requests, kv_heads, most, queries * group, v_dim), dtype=torch.float32, device=q.device)
    part_lse = torch.empty(part_out.shape[:-1], dtype=torch.float32, device=q.device)
    kept = k_buffer.dtype
    if kept == torch.int8 and k_new is None and min(dim, v_dim) >= LEAST_DIM_OF_WORDS:
        k_buffer, v_buffer = k_buffer.view(torch.int32), v_buffer.view(torch.int32)
    k_fresh, v_fresh = (q, q) if k_new is None or v_new is None else (k_new, v_new)
    if new_slots is not None:
        k_fresh, v_fresh = k_buffer, v_buffer
    # Arguments that only some caches need are not passed for others, whose compiled kernel then stays valid.
    beside = {"new_slots_ptr": new_slots, "k_scale_ptr": k_scales, "v_scale_ptr": v_scales, "SPLIT": split if split > 1 else None}
    rows = padded_rows(queries * group)
    tile = tile or key_tile(rows, dim, v_dim, q.dtype, card(q.device), kept)
    assert tile is not None  # reason_against_few_query checks it
    _few_query_attention_kernel[(kv_heads * requests, most)](
        q, k_buffer, v_buffer, k_fresh, v_fresh, kv_indptr, kv_indices, q if tree_mask is None else tree_mask,
        kv_indptr if tree_mask_indptr is None else tree_mask_indptr, kv_indptr if key_offsets is None else key_offsets, part_out,
        part_lse, scale, wanted, most, q.stride(0), q.stride(1), k_buffer.stride(0), k_buffer.stride(1), v_buffer.stride(0),
        v_buffer.stride(1), k_fresh.stride(0), k_fresh.stride(1), v_fresh.stride(0), v_fresh.stride(1),
        KV_HEADS=kv_heads, GROUP=group, QUERIES=queries, ROWS=max(rows, tile.rows), DIM=dim, V_DIM=v_dim,
        NEW=k_new is not None or new_slots is not None,
        TREE=tree_mask is not None, HAS_OFFSETS=key_offsets is not None, WINDOW=window, SOFT_CAP=soft_cap, BLOCK=tile.keys,
        BLOCK_NEW=max(16, triton.next_power_of_2(queries)), LEAST=LEAST_KEYS, MOST=most_keys,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=tile.warps, num_stages=tile.stages,
        **launch_options(q.device), **{name: each for name, each in beside.items() if each is not None},
    )  # fmt: skip
    return join_parts(part_out, part_lse, kv_indptr, out, wanted, most_keys)
