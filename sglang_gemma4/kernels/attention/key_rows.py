"""Gather each request's cached and new keys and values into adjacent rows, for kernels that cannot read KV slots."""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.kv_cache.formats import cached_rows

BLOCK = 16
ZEROS = 8 * BLOCK
"""Zero rows after the last request: more than FlashAttention-4's key tile at these head dimensions (up to 80 keys)."""
FEWEST_REQUESTS = 64


def key_rows_reference(
    k: torch.Tensor,
    v: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    *,
    new_slots: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`key_rows` computes; same arguments and results, without rows that belong to no request."""
    keys, values = [], []
    for request in range(qo_indptr.numel() - 1):
        slots = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request + 1])].long()
        new = slice(int(qo_indptr[request]), int(qo_indptr[request + 1]))
        if new_slots is not None:
            slots = torch.cat([slots, new_slots[new].long()])
            keys.append(cached_rows(k_buffer, slots, k_scales).to(k.dtype))
            values.append(cached_rows(v_buffer, slots, v_scales).to(v.dtype))
            continue
        keys += [k_buffer[slots], k[new]]
        values += [v_buffer[slots], v[new]]
    return torch.cat(keys), torch.cat(values)


@triton.jit
def _values(pointers, scales, real, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of a quantised buffer as ``dtype``; ``scales`` are pointers to those of the rows, or None."""
    found = tl.load(pointers, mask=real[:, None], other=0.0)
    if scales is not None:
        found = found.to(tl.float32) * tl.load(scales, mask=real, other=0.0)[:, None]
    return found.to(dtype)


@triton.jit(do_not_specialize=["rows", "requests"])
def _key_rows_kernel(  # type: ignore[no-untyped-def]
    k_ptr,
    v_ptr,
    k_buffer_ptr,
    v_buffer_ptr,
    qo_indptr_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    k_out_ptr,  # [rows, KV heads, dim]
    v_out_ptr,  # [rows, KV heads, value dim]
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_slot_stride,
    k_buffer_head_stride,
    v_slot_stride,
    v_buffer_head_stride,
    rows,
    requests,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    REQUESTS: tl.constexpr,  # padded
    new_slots_ptr=None,  # [tokens]: the new tokens' own keys are in the buffers, at these slots
    k_scale_ptr=None,  # [slots, KV heads] float32, adjacent, of a quantised cache that has scales
    v_scale_ptr=None,
):
    # A request's blocks begin at its first row's block and one more for each request before it: enough for all of its rows, in order.
    # Blocks before the first request's, where that does not begin at row 0, are nobody's.
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    number = tl.arange(0, REQUESTS)
    exists = number < requests
    runs = tl.load(qo_indptr_ptr + number, mask=exists, other=0) + tl.load(kv_indptr_ptr + number, mask=exists, other=0)
    request = tl.maximum(tl.sum((exists & (runs // BLOCK + number <= block)).to(tl.int32), 0) - 1, 0)
    begin, start = tl.load(qo_indptr_ptr + request).to(tl.int64), tl.load(kv_indptr_ptr + request).to(tl.int64)
    tokens = tl.load(qo_indptr_ptr + request + 1).to(tl.int64) - begin
    prefix = tl.load(kv_indptr_ptr + request + 1).to(tl.int64) - start
    first = (block - ((begin + start) // BLOCK + request)) * BLOCK
    end = prefix + tokens
    if request == requests - 1:
        # Zeros behind the last request: a kernel whose tile reaches there multiplies them with weights of zero.
        end = tl.minimum(end + 8 * BLOCK, rows - begin - start)
    if (first >= 0) & (first < end):
        row = first + tl.arange(0, BLOCK)
        real = (row < end)[:, None]
        cached = (row < prefix)[:, None]
        new = ((row >= prefix) & (row < prefix + tokens))[:, None]
        slot = tl.load(kv_indices_ptr + start + row, mask=row < prefix, other=0).to(tl.int64)
        token = begin + tl.maximum(row - prefix, 0)
        place = ((begin + start + row) * KV_HEADS + head)[:, None]
        dims, v_dims = tl.arange(0, DIM)[None, :], tl.arange(0, V_DIM)[None, :]
        if new_slots_ptr is not None:
            own_slot = tl.load(new_slots_ptr + token, mask=(row >= prefix) & (row < prefix + tokens), other=0).to(tl.int64)
            slot = tl.where(row < prefix, slot, own_slot)
            there, scale = row < prefix + tokens, slot * KV_HEADS + head
            pointers = k_buffer_ptr + (slot * k_slot_stride + head * k_buffer_head_stride)[:, None] + dims
            scales = None if k_scale_ptr is None else k_scale_ptr + scale
            tl.store(k_out_ptr + place * DIM + dims, _values(pointers, scales, there, k_out_ptr.dtype.element_ty), mask=real)
            pointers = v_buffer_ptr + (slot * v_slot_stride + head * v_buffer_head_stride)[:, None] + v_dims
            scales = None if v_scale_ptr is None else v_scale_ptr + scale
            tl.store(v_out_ptr + place * V_DIM + v_dims, _values(pointers, scales, there, v_out_ptr.dtype.element_ty), mask=real)
        else:
            old = tl.load(k_buffer_ptr + (slot * k_slot_stride + head * k_buffer_head_stride)[:, None] + dims, mask=cached, other=0.0)
            own = tl.load(k_ptr + (token * k_token_stride + head * k_head_stride)[:, None] + dims, mask=new, other=0.0)
            tl.store(k_out_ptr + place * DIM + dims, tl.where(cached, old, own), mask=real)
            old = tl.load(v_buffer_ptr + (slot * v_slot_stride + head * v_buffer_head_stride)[:, None] + v_dims, mask=cached, other=0.0)
            own = tl.load(v_ptr + (token * v_token_stride + head * v_head_stride)[:, None] + v_dims, mask=new, other=0.0)
            tl.store(v_out_ptr + place * V_DIM + v_dims, tl.where(cached, old, own), mask=real)


def padded(requests: int) -> int:
    """``requests`` rounded up to one of few sizes: each size is compiled at its first use, while a request waits."""
    size = FEWEST_REQUESTS
    while size < requests:
        size *= 16
    return size


def key_rows(
    k: torch.Tensor,
    v: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    new_slots: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each request's cached keys and values in order, then its new ones; its rows begin at ``qo_indptr + kv_indptr``.

    The host does not wait for the device: there are as many rows as new tokens and entries of ``kv_indices``. The
    first :data:`ZEROS` rows after the last request are zero; the rest is undefined.

    Args:
        k: ``[tokens, KV heads, dim]`` and ``v`` ``[tokens, KV heads, value dim]``, of the new tokens.
        k_buffer: ``[slots, KV heads, dim]``; ``v_buffer`` ``[slots, KV heads, value dim]``. All last dimensions are
            contiguous, and powers of two.
        qo_indptr: ``[requests + 1]`` int, where each request's new tokens begin.
        kv_indptr: ``[requests + 1]`` int, where each request's slots begin in ``kv_indices``.
        kv_indices: ``[cached keys]`` int, slots in order.
        out: None, or contiguous keys and values to write to, with at least as many rows as all requests have keys.
        new_slots: ``[tokens]`` int, for a quantised cache: the new tokens' keys and values are read from the buffers
            at these slots too, and ``k`` and ``v`` give only shape and dtype.
        k_scales: ``[slots, KV heads]`` float32, contiguous, scale of each slot's heads; ``v_scales`` alike. None: 1.

    Returns:
        Contiguous ``[rows, KV heads, dim]`` and ``[rows, KV heads, value dim]``.
    """
    kv_heads, dim, v_dim = k.shape[1], k.shape[2], v.shape[2]
    if out is None:
        rows = k.shape[0] + kv_indices.numel()
        keys = torch.empty((rows, kv_heads, dim), dtype=k.dtype, device=k.device)
        values = torch.empty((rows, kv_heads, v_dim), dtype=v.dtype, device=v.device)
    else:
        keys, values = out
        rows = keys.shape[0]
    requests = qo_indptr.numel() - 1
    if rows and requests:
        beside = {"new_slots_ptr": new_slots, "k_scale_ptr": k_scales, "v_scale_ptr": v_scales}
        _key_rows_kernel[(rows // BLOCK + requests, kv_heads)](
            k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, keys, values, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            k_buffer.stride(0), k_buffer.stride(1), v_buffer.stride(0), v_buffer.stride(1), rows, requests,
            KV_HEADS=kv_heads, DIM=dim, V_DIM=v_dim, BLOCK=BLOCK, REQUESTS=padded(requests), num_warps=4,
            **{name: tensor for name, tensor in beside.items() if tensor is not None},
        )  # fmt: skip
    return keys, values
