"""Page tables from token slots: each row is written over its full width, and nothing past it."""

import torch
import triton
import triton.language as tl

BLOCK_PAGES = 256
"""Pages that a program writes; a served model's rows have up to a few thousand."""


def page_rows_reference(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    cache_seqlens: torch.Tensor,
    width: int,
    page_size: int,
    full_to_swa: torch.Tensor | None = None,
) -> torch.Tensor:
    """What :func:`page_rows` writes, as a new ``[batch, width]`` int32 tensor; with ``full_to_swa`` the sliding pool's table."""
    context = req_to_token.shape[1]
    positions = torch.arange(width, device=req_to_token.device) * page_size  # [width], of each page's first token
    live = positions < cache_seqlens[:, None].clamp(max=context)  # [batch, width]
    slots = req_to_token[req_pool_indices.long()][:, positions.clamp(max=context - 1)].long()  # [batch, width]
    if full_to_swa is not None:
        slots = full_to_swa[slots.clamp(0, full_to_swa.numel() - 1)].long()
    return torch.where(live, slots.clamp(min=0) // page_size, 0).int()


@triton.jit
def _page_rows_kernel(  # type: ignore[no-untyped-def]
    req_to_token_ptr,
    req_pool_indices_ptr,
    cache_seqlens_ptr,
    full_to_swa_ptr,
    page_table_ptr,
    swa_page_table_ptr,
    width,
    context,
    full_to_swa_numel,
    req_to_token_stride,
    page_table_stride,
    swa_page_table_stride,
    PAGE_SIZE: tl.constexpr,
    HAS_SWA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    positions = columns * PAGE_SIZE
    stored = columns < width
    length = tl.minimum(tl.load(cache_seqlens_ptr + row).to(tl.int64), context)
    live = positions < length
    request = tl.load(req_pool_indices_ptr + row).to(tl.int64)
    slots = tl.load(req_to_token_ptr + request * req_to_token_stride + positions, mask=live, other=0).to(tl.int64)
    slots = tl.maximum(slots, 0)
    tl.store(page_table_ptr + row * page_table_stride + columns, (slots // PAGE_SIZE).to(tl.int32), mask=stored)
    if HAS_SWA:
        slots = tl.minimum(slots, full_to_swa_numel - 1)
        slots = tl.maximum(tl.load(full_to_swa_ptr + slots, mask=live, other=0).to(tl.int64), 0)
        tl.store(swa_page_table_ptr + row * swa_page_table_stride + columns, (slots // PAGE_SIZE).to(tl.int32), mask=stored)


def page_rows(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    cache_seqlens: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    swa_page_table: torch.Tensor | None = None,
    full_to_swa: torch.Tensor | None = None,
) -> None:
    """Write the pages of each sequence into its row, and page 0, the pools' padding, into the rest of the row.

    A sequence with more keys than its row or ``req_to_token`` holds is cut there. Slots below 0, which are not
    mapped, become page 0. The host does not wait for the device.

    Args:
        req_to_token: ``[requests, context]`` int, token slot of each position of each request.
        req_pool_indices: ``[batch]`` int, the request of each row.
        cache_seqlens: ``[batch]`` int, keys of each row in tokens, those of draft tokens included.
        page_table: ``[batch, width]`` int32, written in place; its columns are adjacent, its rows need not be.
        page_size: tokens per page.
        swa_page_table: as ``page_table``, for the sliding pool.
        full_to_swa: ``[slots]`` int, sliding slot of each full slot; with ``swa_page_table`` and only then.

    Raises:
        ValueError: arguments that do not fit each other, or a tensor the kernel cannot address.
    """
    batch, width = page_table.shape
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, it is {page_size}")
    if (swa_page_table is None) != (full_to_swa is None):
        raise ValueError("swa_page_table and full_to_swa go together: give both or neither")
    if swa_page_table is not None and swa_page_table.shape != page_table.shape:
        raise ValueError(f"the tables must have one shape, they have {tuple(page_table.shape)} and {tuple(swa_page_table.shape)}")
    if min(len(req_pool_indices), len(cache_seqlens)) < batch:
        raise ValueError(f"{batch} rows need as many requests and lengths, there are {len(req_pool_indices)} and {len(cache_seqlens)}")
    tensors = {"req_to_token": req_to_token, "page_table": page_table, "swa_page_table": swa_page_table}
    tensors |= {"req_pool_indices": req_pool_indices, "cache_seqlens": cache_seqlens, "full_to_swa": full_to_swa}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} must have adjacent elements along its last dimension, its strides are {tensor.stride()}")
    for name in ("page_table", "swa_page_table"):
        table = tensors[name]
        if table is not None and table.dtype != torch.int32:
            raise ValueError(f"{name} must be int32, it is {table.dtype}")
    if page_table.numel() == 0:
        return
    _page_rows_kernel[(batch, triton.cdiv(width, BLOCK_PAGES))](
        req_to_token, req_pool_indices, cache_seqlens, full_to_swa, page_table, swa_page_table, width, req_to_token.shape[1],
        0 if full_to_swa is None else full_to_swa.numel(), req_to_token.stride(0), page_table.stride(0),
        0 if swa_page_table is None else swa_page_table.stride(0),
        PAGE_SIZE=page_size, HAS_SWA=full_to_swa is not None, BLOCK=BLOCK_PAGES,
    )  # fmt: skip
