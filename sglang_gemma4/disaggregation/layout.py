"""The plan in bytes: where a rank pair's pieces lie in each buffer on both sides. NIXL takes strided runs, Mooncake address lists."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sglang_gemma4.disaggregation import plan
from sglang_gemma4.disaggregation.plan import PlanError, Share

MOST_PIECES = 2**31 - 1
"""Upper limit of prepared pieces: the transfer library indexes them by int32."""


@dataclass(frozen=True)
class Buffers:
    """A group's KV buffers on one rank (K, V and their scales): address, bytes per page and, if known, total bytes of each."""

    addresses: Sequence[int]
    page_bytes: Sequence[int]
    lengths: Sequence[int] = ()

    @property
    def pages(self) -> int:
        """Pages that every buffer holds; 0 if ``lengths`` is empty."""
        return min((length // page for length, page in zip(self.lengths, self.page_bytes, strict=True)), default=0) if self.lengths else 0


@dataclass(frozen=True)
class Piece:
    """The pieces of one buffer: address of the first and stride in bytes to the next on both sides, and bytes per piece."""

    source: int
    target: int
    length: int
    source_step: int
    target_step: int


@dataclass(frozen=True)
class Layout:
    """The pieces of one group that a prefill rank writes into a decode rank's buffers: ``per_page`` pieces per page and buffer."""

    name: str
    part: Share
    buffers: int
    per_page: int
    pieces: tuple[Piece, ...] = field(repr=False)

    def __str__(self) -> str:
        part = self.part
        moved = f"{part.heads} of {part.source_heads} heads from {part.source} to {part.target} of {part.target_heads}"
        return f"{self.name} layers: {moved}, {len(self.pieces)} of {self.buffers} buffers"

    def runs(self, pages: int, device: int, *, target: bool) -> list[tuple[int, int, int, int, int]]:
        """(address, bytes, device, step, count) of each buffer's pieces on one side, where each buffer holds ``pages`` pages.

        Raises:
            PlanError: there are more than ``MOST_PIECES`` pieces.
        """
        count = pages * self.per_page
        if count * len(self.pieces) > MOST_PIECES:
            raise PlanError(
                f"{self.name} layers: {count * len(self.pieces)} pieces of KV; {MOST_PIECES} can be named. Use a larger --page-size"
            )
        return [
            (piece.target if target else piece.source, piece.length, device, piece.target_step if target else piece.source_step, count)
            for piece in self.pieces
        ]

    def select(self, page_indices: Any, pages: int) -> Any:
        """Indices of these pages' pieces in ``runs``: int32 ``[buffers * len(page_indices) * per_page]``, buffer by buffer."""
        index = self._within(page_indices)
        start: Any = np.arange(len(self.pieces), dtype=np.int64) * (pages * self.per_page)
        return (start[:, None] + index[None, :]).ravel().astype(np.int32)

    def blocks(self, source_pages: Any, target_pages: Any) -> list[tuple[Any, Any, Any]]:
        """(source addresses, target addresses, bytes) for each buffer, with pieces merged that are adjacent on both sides."""
        here, there = self._within(source_pages), self._within(target_pages)
        if not len(here):
            return []
        found = []
        for piece in self.pieces:
            source, target = piece.source + here * piece.source_step, piece.target + there * piece.target_step
            joined = (np.diff(source) == piece.length) & (np.diff(target) == piece.length)
            first = np.flatnonzero(np.concatenate(([True], ~joined)))
            counts = np.diff(np.append(first, len(source)))
            found.append((source[first], target[first], counts * piece.length))
        return found

    def _within(self, page_indices: Any) -> Any:
        """Indices of these pages' pieces within one buffer, int64."""
        pages = np.asarray(page_indices, dtype=np.int64)
        return (pages[:, None] * self.per_page + np.arange(self.per_page)[None, :]).ravel()


@dataclass(frozen=True)
class Link:
    """A pair of ranks: tensor-parallel sizes of both servers, and the rank in each."""

    prefill: int
    decode: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"prefill rank {self.source} of {self.prefill} to decode rank {self.target} of {self.decode}"


def lay_out(name: str, heads: int, page_size: int, link: Link, here: Buffers, there: Buffers) -> Layout:
    """Lay out where a prefill rank's heads of a group go in a decode rank's buffers.

    Args:
        heads: KV heads of this group that the prefill rank holds.
        here, there: the prefill rank's buffers, and the decode rank's as it registered them.

    Raises:
        PlanError: the two ranks do not hold the same layers, heads and dtype.
    """
    counts = len(here.addresses), len(there.addresses)
    if counts[0] != counts[1] or counts[1] != len(there.page_bytes):
        raise PlanError(
            f"{name} layers: the prefill server has {counts[0]} KV buffers, the decode server {counts[1]}; serve the same model "
            "with the same --kv-cache-dtype"
        )
    parts = {_part(name, heads, page_size, link, ours, theirs) for ours, theirs in zip(here.page_bytes, there.page_bytes, strict=True)}
    if len(parts) != 1:
        raise PlanError(f"{name} layers: {len(parts)} numbers of heads in one group of buffers, where one is expected")
    part = parts.pop()
    per_page = 1 if part.whole else page_size
    pieces = []
    for entry in part.entries(counts[0]):
        head = here.page_bytes[entry] // (page_size * heads)
        pieces.append(
            Piece(
                here.addresses[entry] + part.source * head,
                there.addresses[entry] + part.target * head,
                part.heads * head * (page_size // per_page),
                here.page_bytes[entry] // per_page,
                there.page_bytes[entry] // per_page,
            )
        )
    return Layout(name, part, counts[0], per_page, tuple(pieces))


def _part(name: str, heads: int, page_size: int, link: Link, ours: int, theirs: int) -> Share:
    head, rest = divmod(ours, page_size * heads)
    if rest:
        raise PlanError(f"{name} layers: a page of {ours} bytes does not hold {heads} heads at page size {page_size}")
    try:
        total = plan.total_heads(link.prefill, heads, link.decode, plan.heads_in(theirs, page_size, head))
        part = plan.share(total, link.prefill, link.decode, link.source, link.target)
    except PlanError as error:
        raise PlanError(f"{name} layers, {link}: {error}") from error
    if part is None:
        raise PlanError(f"{link}: these ranks are not connected")
    return part
