"""Bounds checks of index tables before the kernels that read through them run. Independent of SGLang.

A :class:`Table` is one kernel argument together with the buffer it indexes; :func:`check` returns the first illegal
entry, or None.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

Group = Literal["full", "sliding"]
Unit = Literal["slot", "page"]
Kind = Literal["outside", "padding", "too long", "disorder", "request", "duplicate"]
"""What is wrong with an entry or a row.

outside: the index is negative or not below the buffer's size. padding: a reserved index, which no token owns, in a row of
real ones. too long: the kernel would read past the row's end. disorder: row offsets decrease or leave the table.
request: the row of the request table does not exist. duplicate: two tokens got the same slot.
"""


@dataclass(frozen=True)
class Table:
    """Indices as a kernel reads them, and the buffer they index.

    Attributes:
        name: the argument, as the backend calls it.
        group: the layers that use it.
        unit: what an index counts.
        indices: [rows, width], or [entries] with ``indptr``; any integer type.
        requests: [rows] row of each request in SGLang's request table.
        lowest: first index that a token can own; lower ones are padding.
        bound: number of units in the buffer.
        lengths: [rows] entries of each row that are read. Given with two-dimensional ``indices``.
        indptr: [rows + 1] offsets of the rows. Given with one-dimensional ``indices``.
        first: [rows] entries before this one are not read (they are before the sliding window).
        by_request: a request's row is ``indices[request]`` instead of its place in the batch.
        mapping: maps indices before they reach the buffer (full slots to sliding slots).
    """

    name: str
    group: Group
    unit: Unit
    indices: torch.Tensor
    requests: torch.Tensor
    lowest: int
    bound: int
    lengths: torch.Tensor | None = None
    indptr: torch.Tensor | None = None
    first: torch.Tensor | None = None
    by_request: bool = False
    mapping: torch.Tensor | None = None


@dataclass(frozen=True)
class Violation:
    """The first illegal entry. ``row`` counts requests of the batch, ``request`` is the row in SGLang's request table.

    ``entry`` counts from the row's start. If a whole row is wrong (too long, disorder, request), ``index`` is the illegal
    length, offset or row, and ``lowest`` to ``bound`` is the legal range.
    """

    kind: Kind
    table: str
    group: Group
    unit: Unit
    row: int
    request: int
    entry: int
    index: int
    lowest: int
    bound: int


@dataclass(frozen=True)
class Extent:
    """Which entries of a table are read, on the host: one value for each row."""

    requests: list[int]
    starts: list[int]
    ends: list[int]
    first: list[int] = field(default_factory=list)


def check(tables: Sequence[Table]) -> Violation | None:
    """The first violation, by table, then whole rows before entries.

    Copies to the host twice: the lengths of all tables, then the result for their entries.
    """
    if not tables:
        return None
    read = extents(tables)
    for table, extent in zip(tables, read, strict=True):
        if violation := _misshapen(table, extent):
            return violation
    first_bad = torch.stack([_first_bad(table, extent) for table, extent in zip(tables, read, strict=True)]).tolist()
    for table, extent, position in zip(tables, read, first_bad, strict=True):
        if position >= 0:
            return _violation(table, extent, position)
    return None


def extents(tables: Sequence[Table]) -> list[Extent]:
    """The :class:`Extent` of each table, with one copy to the host."""
    parts: list[torch.Tensor] = []
    for table in tables:
        bounds = table.indptr if table.indptr is not None else table.lengths
        if bounds is None:
            raise ValueError(f"table {table.name} has neither indptr nor lengths; give one of them")
        parts += [table.requests, bounds] + ([] if table.first is None else [table.first])
    flat = torch.cat([part.reshape(-1).to(torch.int64) for part in parts]).tolist()
    sizes = iter(part.numel() for part in parts)
    taken = 0

    def take() -> list[int]:
        nonlocal taken
        size = next(sizes)
        taken += size
        return [int(value) for value in flat[taken - size : taken]]

    found = []
    for table in tables:
        requests, bounds = take(), take()
        first = [] if table.first is None else take()
        if table.indptr is None:
            found.append(Extent(requests, [0] * len(bounds), bounds, first))
        else:
            found.append(Extent(requests, bounds[:-1], bounds[1:], first))
    return found


def live_values(table: Table, extent: Extent) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The indices into the buffer, whether each is read, and its row: values, live, rows, of one shape.

    A two-dimensional table is cut at the longest row, a one-dimensional one at its last offset.
    """
    device = table.indices.device
    if table.indptr is not None:
        values = table.indices[: extent.ends[-1]]
        counts = torch.tensor([end - start for start, end in zip(extent.starts, extent.ends, strict=True)], device=device)
        rows = torch.repeat_interleave(torch.arange(len(counts), device=device), counts, output_size=extent.ends[-1])
        live = torch.ones_like(values, dtype=torch.bool)
    else:
        width = max(extent.ends)
        values = table.indices[:, :width]
        values = values[torch.tensor(extent.requests, device=device)] if table.by_request else values[: len(extent.ends)]
        columns = torch.arange(width, device=device)
        live = columns < torch.tensor(extent.ends, device=device)[:, None]
        if extent.first:
            live &= columns >= torch.tensor(extent.first, device=device)[:, None]
        rows = torch.arange(len(extent.ends), device=device)[:, None].expand_as(values)
    if table.mapping is not None:
        values = table.mapping[values.long().clamp(0, len(table.mapping) - 1)]
    return values, live, rows


def check_allocation(slots: torch.Tensor, group: Group, page_size: int, bound: int) -> Violation | None:
    """Check slots [tokens] of an allocation: inside the buffer, not reserved, no duplicates. One copy to the host.

    ``entry`` of the violation is the token's place in ``slots``; it has no row and no request (-1).
    """
    count = slots.numel()
    if count == 0:
        return None
    ordered, places = slots.long().sort(stable=True)
    wrong = (ordered < page_size) | (ordered >= bound)
    twice = torch.zeros_like(wrong)
    twice[1:] = ordered[1:] == ordered[:-1]
    past = torch.full_like(places, count)
    found = torch.stack([torch.where(wrong, places, past).min(), torch.where(twice, places, past).min()]).tolist()
    for kind, place in zip(("outside", "duplicate"), found, strict=True):
        if place < count:
            index = int(slots[place])
            if kind == "outside" and 0 <= index < page_size:
                kind = "padding"
            return Violation(kind, "allocated slots", group, "slot", -1, -1, int(place), index, page_size, bound)  # type: ignore[arg-type]
    return None


def _misshapen(table: Table, extent: Extent) -> Violation | None:
    """A row that cannot be read at all; checked on the host before its entries."""

    def wrong(kind: Kind, row: int, index: int, lowest: int, bound: int) -> Violation:
        return Violation(kind, table.name, table.group, table.unit, row, extent.requests[row], 0, index, lowest, bound)

    entries = table.indices.shape[-1]
    for row, (request, start, end) in enumerate(zip(extent.requests, extent.starts, extent.ends, strict=True)):
        if table.by_request and not 0 <= request < len(table.indices):
            return wrong("request", row, request, 0, len(table.indices))
        if table.indptr is not None and not 0 <= start <= end <= entries:
            return wrong("disorder", row, end, max(start, 0), entries + 1)
        if not 0 <= end <= entries:
            return wrong("too long", row, end, 0, entries + 1)
    return None


def _first_bad(table: Table, extent: Extent) -> torch.Tensor:
    """Flat position in ``live_values`` of the first illegal entry, -1 for none; a scalar on the table's device."""
    device = table.indices.device
    if max(extent.ends, default=0) == 0:
        return torch.tensor(-1, device=device)
    values, live, rows = live_values(table, extent)
    # Dummy batches and rows of SGLang (warm-up, padding) have only padding indices; these are wrong only among real slots.
    owned = torch.zeros(len(extent.ends), dtype=torch.int64, device=device)
    owned.index_add_(0, rows.flatten(), ((values != 0) & live).flatten().long())
    bad = (values < 0) | (values >= table.bound) | ((values < table.lowest) & (owned[rows] > 0))
    bad &= live
    count = bad.numel()
    place = torch.where(bad.flatten(), torch.arange(count, device=device), count).min()
    return torch.where(place < count, place, -1)


def _violation(table: Table, extent: Extent, position: int) -> Violation:
    values, _, rows = live_values(table, extent)
    index, row = int(values.flatten()[position]), int(rows.flatten()[position])
    entry = position - extent.starts[row] if table.indptr is not None else position % values.shape[1]
    kind: Kind = "padding" if 0 <= index < table.lowest else "outside"
    return Violation(kind, table.name, table.group, table.unit, row, extent.requests[row], entry, index, table.lowest, table.bound)
