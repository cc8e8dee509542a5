"""Which tensors the attention kernels accept, on which GPUs."""

import torch
import triton

from sglang_gemma4.kernels.attention.tiles import head_split, key_tile, prompt_tile
from sglang_gemma4.kernels.card import card
from sglang_gemma4.kernels.kv_cache.store import reason_against_scales
from sglang_gemma4.kernels.matrices import DTYPES

MOST_ROWS = 128
"""Most rows of a tile in a verify, draft or decode step: query tokens times query heads per KV head."""
MOST_GROUP = 64
"""Most query heads per KV head in a prefill."""
QUANTISED = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
"""Element types of a quantised KV cache."""


def reason_against_few_query(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    queries: int,
    k_new: torch.Tensor | None,
    v_new: torch.Tensor | None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    *,
    levels: bool = False,
) -> str | None:
    """Why ``few_query_attention`` does not take these arguments, or None; ``levels``: the KV cache may be quantised."""
    others = {"k_buffer": k_buffer, "v_buffer": v_buffer, "k_new": k_new, "v_new": v_new, "out": out}
    if reason := _elements(q, others, levels) or _scales(k_buffer, v_buffer, k_scales, v_scales):
        return reason
    if queries < 1 or q.shape[0] % queries:
        return f"{q.shape[0]} query tokens are no multiple of {queries} per request"
    heads, kv_heads = q.shape[1], k_buffer.shape[1]
    if heads % kv_heads:
        return f"{heads} query heads are no multiple of {kv_heads} KV heads"
    group = heads // kv_heads // head_split(queries, heads // kv_heads, q.shape[2])
    if queries * group > MOST_ROWS:
        return f"{queries} query tokens of {group} heads are {queries * group} rows; up to {MOST_ROWS} are supported"
    if reason := _head_dims(q, (k_buffer, k_new), (v_buffer, v_new), out):
        return reason
    fits = key_tile(padded_rows(queries * group), q.shape[2], v_buffer.shape[2], q.dtype, card(q.device), k_buffer.dtype) is not None
    return None if fits else _too_large(q, f"{queries} query tokens of {group} heads")


def padded_rows(rows: int) -> int:
    """``rows`` (query tokens times heads per KV head) padded to a power of two that matrix instructions take."""
    padded: int = triton.next_power_of_2(rows)
    return max(16, padded)


def reason_against_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    *,
    levels: bool = False,
) -> str | None:
    """Why ``prefill_attention`` does not take these arguments, or None.

    ``k`` and ``v`` are the buffers if new tokens are read from them. ``levels``: the KV cache may be quantised.
    """
    others = {"k_buffer": k_buffer, "v_buffer": v_buffer, "out": out} | ({} if k is k_buffer else {"k": k, "v": v})
    if reason := _elements(q, others, levels):
        return reason
    if reason := _scales(k_buffer, v_buffer, k_scales, v_scales):
        return reason
    heads, kv_heads = q.shape[1], k.shape[1]
    group = heads // kv_heads
    if heads % kv_heads or group & (group - 1) or group > MOST_GROUP:
        return f"{heads} query heads over {kv_heads} KV heads; 1, 2, 4 ... {MOST_GROUP} query heads a KV head are supported"
    if reason := _head_dims(q, (k, k_buffer), (v, v_buffer), out):
        return reason
    fits = prompt_tile(group, q.shape[2], v.shape[2], q.dtype, card(q.device), k_buffer.dtype) is not None
    return None if fits else _too_large(q, f"{group} query heads a KV head")


def _too_large(q: torch.Tensor, rows: str) -> str:
    shared = card(q.device).shared
    return f"no tile for {rows} of {q.shape[2]} in {q.dtype} fits the {shared:,} bytes of shared memory that a program may have"


def _elements(q: torch.Tensor, others: dict[str, torch.Tensor | None], levels: bool) -> str | None:
    """Why dtypes, numbers of dimensions or strides do not fit, or None."""
    if q.dtype not in DTYPES:
        return f"q is {q.dtype}; float32, bfloat16 and float16 are supported"
    for name, tensor in (("q", q), *others.items()):
        if tensor is None:
            continue
        quantised = levels and name in ("k_buffer", "v_buffer") and tensor.dtype in QUANTISED
        if tensor.dtype != q.dtype and not quantised:
            return f"{name} is {tensor.dtype}, q is {q.dtype}; a quantised KV cache is not taken{' in these elements' if levels else ''}"
        if tensor.dim() != 3 or tensor.stride(-1) != 1:
            return f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}; 3 dimensions, the last contiguous, are supported"
    return None


def _scales(k_buffer: torch.Tensor, v_buffer: torch.Tensor, k_scales: torch.Tensor | None, v_scales: torch.Tensor | None) -> str | None:
    """Why the cache's element types and scales do not belong together, or None."""
    if k_buffer.dtype != v_buffer.dtype:
        return f"k_buffer is {k_buffer.dtype}, v_buffer {v_buffer.dtype}; one element type for both is supported"
    if k_scales is None and v_scales is None and k_buffer.dtype != torch.int8:
        return None
    return reason_against_scales(k_buffer, k_scales, v_scales)


def _head_dims(
    q: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor | None], values: tuple[torch.Tensor, torch.Tensor | None], out: torch.Tensor
) -> str | None:
    """Why head dimensions or the output's shape do not fit, or None."""
    k_dims, v_dims = ([each.shape[2] for each in given if each is not None] for given in (keys, values))
    dim, v_dim = q.shape[2], v_dims[0]
    if set(k_dims) != {dim} or set(v_dims) != {v_dim}:
        return f"head dimensions of q {dim}, K {k_dims} and V {v_dims} disagree"
    if any(each & (each - 1) or not 16 <= each <= 512 for each in (dim, v_dim)):
        return f"head dimensions {dim} and {v_dim}: powers of two from 16 to 512 are supported"
    if not out.is_contiguous() or out.shape != (q.shape[0], q.shape[1], v_dim):
        return f"out is {tuple(out.shape)}; contiguous {(q.shape[0], q.shape[1], v_dim)} is supported"
    return None
