"""Slots and offsets of a Triton backend's decode or verify step, from its requests' lengths and rows, in one launch.

SGLang needs about twenty launches: sums of lengths, a gather of slots each for full and sliding layers with one
program per request, and the copies around them (``layers/attention/triton_backend.py``, ``_update_decode_kv_buffers``
and ``_update_target_verify_buffers``).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

BLOCK = 512
"""Slots that a program gathers at once."""
PROGRAMS = 256
"""Approximate programs per launch: with few requests, many programs gather each one's slots."""


@dataclass(frozen=True)
class Rail:
    """Slots of the cached keys for one type of layer: request ``r``'s are ``slots[indptr[r] : indptr[r + 1]]``.

    Attributes:
        indptr: ``[at least requests + 1]`` int32; the first entry is 0 and is not written.
        slots: flat, int64.
    """

    indptr: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True)
class Sliding:
    """Slots of sliding layers: each request's last ``window`` ones.

    Attributes:
        rail: the slots that are written.
        window: tokens before a query's own.
        mapping: maps a slot to its slot in the sliding pool; None if layers share one pool.
        first: ``[at least requests]`` int32, receives the position of each request's first token in the window; or
            None.
    """

    rail: Rail
    window: int
    mapping: torch.Tensor | None = None
    first: torch.Tensor | None = None


def step_metadata(
    lengths: torch.Tensor,
    rows: torch.Tensor,
    table: torch.Tensor,
    full: Rail,
    sliding: Sliding | None = None,
    query_indptr: torch.Tensor | None = None,
    queries: int = 0,
) -> None:
    """Write the slots of full and sliding layers.

    Args:
        lengths: ``[requests]`` cached tokens of each request, of any integer type.
        rows: ``[requests]`` each request's row of ``table``.
        table: ``[rows, tokens]`` int32 with contiguous rows, the slot of each token.
        full: slots to write for full layers.
        sliding: slots to write for sliding layers, or None.
        query_indptr: ``[at least requests + 1]``, receives multiples of ``queries``; the first entry is 0 and is not
            written. Or None.
        queries: tokens of each request in this step.

    Raises:
        ValueError: tensors that are not as described.
    """
    requests = lengths.numel()
    _check(lengths, rows, table, full, sliding, query_indptr)
    parts = min(64, max(4, PROGRAMS // max(requests, 1)))
    mapping, first = (sliding.mapping, sliding.first) if sliding else (None, None)
    _step_metadata_kernel[(requests, parts)](
        lengths,
        rows,
        table,
        table.stride(0),
        full.indptr,
        full.slots,
        sliding.rail.indptr if sliding else full.indptr,
        sliding.rail.slots if sliding else full.slots,
        mapping if mapping is not None else full.slots,
        first if first is not None else full.indptr,
        query_indptr if query_indptr is not None else full.indptr,
        requests,
        queries,
        WINDOW=sliding.window if sliding else 0,
        MAPPED=mapping is not None,
        FIRST=first is not None,
        QUERIES=query_indptr is not None,
        REQUESTS=triton.next_power_of_2(requests),
        BLOCK=BLOCK,
        num_warps=4,
    )


def _check(
    lengths: torch.Tensor,
    rows: torch.Tensor,
    table: torch.Tensor,
    full: Rail,
    sliding: Sliding | None,
    query_indptr: torch.Tensor | None,
) -> None:
    requests = lengths.numel()
    if requests < 1 or rows.numel() < requests or table.dim() != 2 or table.stride(1) != 1:
        raise ValueError(f"{requests} lengths, {rows.numel()} rows and a table of {tuple(table.shape)} with strides {table.stride()}")
    starts = [full.indptr, *([sliding.rail.indptr] if sliding else []), *([query_indptr] if query_indptr is not None else [])]
    if min(indptr.numel() for indptr in starts) <= requests:
        raise ValueError(f"{requests} requests need {requests + 1} starts; there are {[indptr.numel() for indptr in starts]}")
    if sliding is None:
        return
    if sliding.window < 1:
        raise ValueError(f"a window of {sliding.window} tokens; leave sliding layers out instead")
    if sliding.first is not None and sliding.first.numel() < requests:
        raise ValueError(f"{sliding.first.numel()} first tokens for {requests} requests")


@triton.jit(do_not_specialize=["requests", "queries"])
def _step_metadata_kernel(  # type: ignore[no-untyped-def]
    lengths_ptr,  # [requests]
    rows_ptr,  # [requests]
    table_ptr,  # [rows, tokens] int32
    table_stride,
    indptr_ptr,  # [requests + 1] int32
    slots_ptr,  # [cached tokens] int64
    window_indptr_ptr,
    window_slots_ptr,
    mapping_ptr,  # [slots] int64
    first_ptr,  # [requests] int32
    query_indptr_ptr,  # [requests + 1]
    requests,
    queries,
    WINDOW: tl.constexpr,  # 0: no sliding layers
    MAPPED: tl.constexpr,
    FIRST: tl.constexpr,
    QUERIES: tl.constexpr,
    REQUESTS: tl.constexpr,  # a power of two
    BLOCK: tl.constexpr,
):
    """Program ``(request, part)`` gathers every ``parts``-th block of a request's slots."""
    request, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    # Each program sums the lengths before its own: no launch has to do it first.
    lanes = tl.arange(0, REQUESTS)
    lengths = tl.load(lengths_ptr + lanes, mask=lanes < requests, other=0).to(tl.int32)
    before = tl.sum(tl.where(lanes < request, lengths, 0))
    length = tl.sum(tl.where(lanes == request, lengths, 0))
    row_ptr = table_ptr + tl.load(rows_ptr + request).to(tl.int64) * table_stride
    places = tl.arange(0, BLOCK)
    if part == 0:
        tl.store(indptr_ptr + request + 1, before + length)
        if QUERIES:
            tl.store(query_indptr_ptr + request + 1, (request + 1) * queries)
    for block in range(part, tl.cdiv(length, BLOCK), parts):
        place = block * BLOCK + places
        slot = tl.load(row_ptr + place, mask=place < length, other=0)
        tl.store(slots_ptr + before + place, slot.to(tl.int64), mask=place < length)
    if WINDOW > 0:
        window_before = tl.sum(tl.where(lanes < request, tl.minimum(lengths, WINDOW), 0))
        window = tl.minimum(length, WINDOW)
        if part == 0:
            tl.store(window_indptr_ptr + request + 1, window_before + window)
            if FIRST:
                tl.store(first_ptr + request, length - window)
        for block in range(part, tl.cdiv(window, BLOCK), parts):
            place = block * BLOCK + places
            slot = tl.load(row_ptr + length - window + place, mask=place < window, other=0).to(tl.int64)
            if MAPPED:
                # A slot below 0 is nobody's and stays what it is, as in SGLang's gather.
                slot = tl.where(slot < 0, slot, tl.load(mapping_ptr + slot, mask=(place < window) & (slot >= 0), other=0))
            tl.store(window_slots_ptr + window_before + place, slot, mask=place < window)
