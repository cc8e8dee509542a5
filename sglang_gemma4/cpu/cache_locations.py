"""Bookkeeping of KV slots for speculative decoding: the torch forms of SGLang's small index kernels.

``req_to_token`` [rows, longest] holds the pool slot of each position of each request. Outputs are written in place.
"""

import ctypes

import torch


def _ranges(start: torch.Tensor, end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Concatenated ranges start..end: (which range, which position), both flat."""
    start = start.long()
    lengths = end.long() - start
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    return owner, torch.arange(len(owner)) - first[owner] + start[owner]


def write_slots(
    request_rows: torch.Tensor, req_to_token: torch.Tensor, start: torch.Tensor, end: torch.Tensor, slots: torch.Tensor, _width: int = 0
) -> None:
    """Put flat ``slots`` into positions start..end of each request's row. SGLang also passes the table's width."""
    owner, position = _ranges(start, end)
    req_to_token[request_rows.long()[owner], position] = slots[: len(owner)].to(req_to_token.dtype)


def read_slots(
    request_rows: torch.Tensor, req_to_token: torch.Tensor, start: torch.Tensor, end: torch.Tensor, slots: torch.Tensor, _width: int = 0
) -> None:
    """Concatenate positions start..end of each request's row at the front of flat ``slots``. SGLang also passes the table's width."""
    owner, position = _ranges(start, end)
    slots[: len(owner)] = req_to_token[request_rows.long()[owner], position].to(slots.dtype)


def bonus_tokens(accept_tokens: torch.Tensor, accept_lens: torch.Tensor, out: torch.Tensor, accept_stride: int) -> None:
    """The last accepted token of each request, from rows of ``accept_stride`` tokens; lengths count the bonus."""
    requests = accept_lens.numel()
    index = torch.arange(requests) * accept_stride + accept_lens.long() - 1
    out[:requests] = accept_tokens.reshape(-1)[index].to(out.dtype)


def accepted_slots(accept_index: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Compact the slots of accepted nodes (``accept_index`` not -1) to the front of ``out``."""
    chosen = accept_index.reshape(-1).long()
    chosen = chosen[chosen > -1]
    out[: len(chosen)] = slots[chosen].to(out.dtype)


def copy_rows(base_addresses: torch.Tensor, row_bytes: torch.Tensor, target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy rows ``source`` to rows ``target`` in every buffer; all rows are read before any is written.

    Args:
        base_addresses: [buffers] address of each KV buffer.
        row_bytes: [buffers] bytes of one slot.
    """
    if target.numel() == 0:
        return
    target, source = target.long(), source.long()
    rows = int(torch.maximum(target.max(), source.max())) + 1
    for address, stride in zip(base_addresses.tolist(), row_bytes.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address % (1 << 64))
        view = torch.frombuffer(memory, dtype=torch.uint8).view(rows, stride)
        view[target] = view[source]
