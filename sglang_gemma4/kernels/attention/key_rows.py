"""Cached and new keys and values of each request in adjacent rows, for attention kernels that do not read the KV pool by slot."""

import torch
import triton
import triton.language as tl

BLOCK = 16
ZEROS = 8 * BLOCK
"""Zero rows behind the last request's: more than a tile of keys of FlashAttention-4 at these head dimensions, which has up to 80."""
FEWEST_REQUESTS = 64


def key_rows_reference(
    k: torch.Tensor,
    v: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`key_rows` computes; same arguments and results, without rows that belong to no request."""
    keys, values = [], []
    for request in range(qo_indptr.numel() - 1):
        slots = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request + 1])].long()
        new = slice(int(qo_indptr[request]), int(qo_indptr[request + 1]))
        keys += [k_buffer[slots], k[new]]
        values += [v_buffer[slots], v[new]]
    return torch.cat(keys), torch.cat(values)


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
        dims = tl.arange(0, DIM)[None, :]
        old = tl.load(k_buffer_ptr + (slot * k_slot_stride + head * k_buffer_head_stride)[:, None] + dims, mask=cached, other=0.0)
        own = tl.load(k_ptr + (token * k_token_stride + head * k_head_stride)[:, None] + dims, mask=new, other=0.0)
        tl.store(k_out_ptr + place * DIM + dims, tl.where(cached, old, own), mask=real)
        dims = tl.arange(0, V_DIM)[None, :]
        old = tl.load(v_buffer_ptr + (slot * v_slot_stride + head * v_buffer_head_stride)[:, None] + dims, mask=cached, other=0.0)
        own = tl.load(v_ptr + (token * v_token_stride + head * v_head_stride)[:, None] + dims, mask=new, other=0.0)
        tl.store(v_out_ptr + place * V_DIM + dims, tl.where(cached, old, own), mask=real)


def padded(requests: int) -> int:
    """Requests that a program looks through, rounded up to few sizes: each is compiled when it first comes, while a request waits."""
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each request's cached keys in order, then its new ones; a request's rows begin at ``qo_indptr + kv_indptr``.

    The host does not wait for the device: there are as many rows as new tokens and entries of ``kv_indices``. The first
    :data:`ZEROS` behind the last request's are zero, what others hold is not said.

    Args:
        k: ``[tokens, KV heads, dim]`` and ``v`` ``[tokens, KV heads, value dim]``, the new tokens' own.
        k_buffer: ``[slots, KV heads, dim]``; ``v_buffer`` ``[slots, KV heads, value dim]``. All last dimensions are contiguous, and powers
            of two.
        qo_indptr: ``[requests + 1]`` int, where each request's new tokens begin.
        kv_indptr: ``[requests + 1]`` int, where each request's slots begin in ``kv_indices``.
        kv_indices: ``[cached keys]`` int, slots in order.
        out: None, or contiguous keys and values to write to, of as many rows as all requests' keys take at least.

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
        _key_rows_kernel[(rows // BLOCK + requests, kv_heads)](
            k, v, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, keys, values, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            k_buffer.stride(0), k_buffer.stride(1), v_buffer.stride(0), v_buffer.stride(1), rows, requests,
            KV_HEADS=kv_heads, DIM=dim, V_DIM=v_dim, BLOCK=BLOCK, REQUESTS=padded(requests), num_warps=4,
        )  # fmt: skip
    return keys, values
