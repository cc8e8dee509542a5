"""Bounds checks of index tables, made before the kernels that read through them run. Independent of SGLang.

A :class:`Table` is one kernel argument together with the buffer it indexes; :func:`check` returns the first illegal
entry, or None.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
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
    """Which entries of a table are read: host lists with one value for each row.

    A row's entries are ``starts`` to ``ends`` of the flat list, or of the row itself. Those before ``first``, counted
    from ``starts``, are not read.
    """

    requests: list[int]
    starts: list[int]
    ends: list[int]
    first: list[int]

    @classmethod
    def of(cls, table: Table) -> "Extent":
        """The extent of a table; copies its lengths or offsets to the host."""
        offsets = table.indptr if table.indptr is not None else table.lengths
        if offsets is None:
            raise ValueError(f"table {table.name} has neither indptr nor lengths; give one of them")
        ends = offsets.tolist()
        starts, ends = (ends[:-1], ends[1:]) if table.indptr is not None else ([0] * len(ends), ends)
        return cls(table.requests.tolist(), starts, ends, [0] * len(ends) if table.first is None else table.first.tolist())


def check(tables: Iterable[Table]) -> Violation | None:
    """The first violation, table by table, whole rows before single entries. Synchronises with the device several times per table."""
    for table in tables:
        extent = Extent.of(table)
        if violation := _bad_row(table, extent) or _bad_entry(table, extent):
            return violation
    return None


def live_values(table: Table, extent: Extent) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices into the buffer [rows, longest row], and a mask of those that are read."""
    requests, starts, ends, first = (torch.tensor(each, device=table.indices.device)[:, None] for each in astuple(extent))
    entry = torch.arange(int((ends - starts).max()), device=table.indices.device)
    if table.indptr is not None:
        values = table.indices[(starts + entry).clamp(max=len(table.indices) - 1)]
    else:
        values = table.indices[requests[:, 0] if table.by_request else slice(len(ends)), : len(entry)]
    if table.mapping is not None:
        values = table.mapping[values.long().clamp(0, len(table.mapping) - 1)]
    return values, (entry >= first) & (entry < ends - starts)


def check_allocation(slots: torch.Tensor, group: Group, page_size: int, bound: int) -> Violation | None:
    """Check the slots [tokens] of an allocation: inside the buffer, not reserved, no duplicates. Copies them to the host.

    ``entry`` of the violation is the token's place in ``slots``; it has no row and no request (-1).
    """
    seen: set[int] = set()
    for place, slot in enumerate(slots.tolist()):
        if slot in seen or not page_size <= slot < bound:
            kind: Kind = "duplicate" if slot in seen else _kind(slot, page_size)
            return Violation(kind, "allocated slots", group, "slot", -1, -1, place, slot, page_size, bound)
        seen.add(slot)
    return None


def _bad_row(table: Table, extent: Extent) -> Violation | None:
    """The first row that cannot be read at all, or None."""

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


def _bad_entry(table: Table, extent: Extent) -> Violation | None:
    """The first illegal entry of rows that can be read."""
    if extent.starts == extent.ends:
        return None
    values, live = live_values(table, extent)
    # Dummy batches and rows of SGLang (warm-up, padding) have only padding indices; these are wrong only among real slots.
    owned = ((values != 0) & live).any(1, keepdim=True)
    bad = (live & ((values < 0) | (values >= table.bound) | ((values < table.lowest) & owned))).nonzero()
    if not len(bad):
        return None
    row, entry = bad[0].tolist()
    index, request = int(values[row, entry]), extent.requests[row]
    kind = _kind(index, table.lowest)
    return Violation(kind, table.name, table.group, table.unit, row, request, entry, index, table.lowest, table.bound)


def _kind(index: int, lowest: int) -> Kind:
    return "padding" if 0 <= index < lowest else "outside"
