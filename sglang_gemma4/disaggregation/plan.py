"""Which prefill rank sends which KV heads of which layers to which decode rank, for any two tensor-parallel sizes.

Gemma 4 has two groups of layers, sliding and full. Their KV heads differ in number and size, so each group is split separately.
This module computes with integers only. All it knows of SGLang is which ranks talk to each other (``paired``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Index = TypeVar("Index")


class PlanError(ValueError):
    """KV cannot be sent between two servers; the message has both values and the remedy."""


@dataclass(frozen=True)
class Group:
    """Full or sliding layers that own their KV: ``heads`` KV heads in the model, ``head_bytes`` per head and token in K (V is as large).

    ``window``: tokens that a later token still attends to; None for all. ``scale_bytes``: bytes of a quantised cache's scale per head and
    token, which is in a separate buffer and goes where its head goes; 0 for a cache without scales.
    """

    name: str
    layers: int
    heads: int
    head_bytes: int
    window: int | None = None
    scale_bytes: int = 0

    @property
    def sizes(self) -> list[int]:
        """Bytes per head and token in each buffer of a rank: K of each layer, K's scales if any, then V and V's scales."""
        half = [self.head_bytes] * self.layers + ([self.scale_bytes] * self.layers if self.scale_bytes else [])
        return half * 2

    @property
    def entries(self) -> int:
        """Number of buffers of a rank."""
        return len(self.sizes)


@dataclass(frozen=True)
class Share:
    """The heads of a group that one prefill rank sends to one decode rank: ``heads`` heads from index ``source``, to index ``target``.

    ``source`` is an index into the prefill rank's ``source_heads`` heads, ``target`` into the decode rank's ``target_heads``.
    ``replicas`` prefill ranks connected to this decode rank hold these heads and divide the buffers; this one is number ``replica``.
    """

    source: int
    target: int
    heads: int
    source_heads: int
    target_heads: int
    replica: int = 0
    replicas: int = 1

    @property
    def whole(self) -> bool:
        """Whether these are all heads on both sides: then a page is one piece, otherwise each of its tokens is."""
        return self.heads == self.source_heads == self.target_heads

    def entries(self, count: int) -> range:
        """Indices of the buffers that this rank sends, of ``count``."""
        return range(self.replica, count, self.replicas)


def held(heads: int, size: int, rank: int) -> range:
    """Heads that a rank of ``size`` holds: an equal part, or one head that consecutive ranks replicate.

    Raises:
        PlanError: the heads do not divide over the ranks.
    """
    if heads < 1 or size < 1 or (heads % size and size % heads):
        raise PlanError(f"{heads} KV heads do not divide over {size} tensor-parallel ranks; one must be a multiple of the other")
    if not 0 <= rank < size:
        raise PlanError(f"rank {rank} of {size} tensor-parallel ranks: there are ranks 0 to {size - 1}")
    if heads >= size:
        return range(rank * (heads // size), (rank + 1) * (heads // size))
    return range(rank // (size // heads), rank // (size // heads) + 1)


def paired(prefill: int, decode: int, rank: int) -> range:
    """Prefill ranks that decode rank ``rank`` is connected to (SGLang's ``_resolve_rank_mapping``).

    Raises:
        PlanError: neither size is a multiple of the other.
    """
    if prefill < 1 or decode < 1 or (prefill % decode and decode % prefill):
        raise PlanError(f"tensor-parallel sizes {prefill} (prefill) and {decode} (decode): one must be a multiple of the other")
    if decode >= prefill:
        return range(rank // (decode // prefill), rank // (decode // prefill) + 1)
    return range(rank * (prefill // decode), (rank + 1) * (prefill // decode))


def share(heads: int, prefill: int, decode: int, source: int, target: int) -> Share | None:
    """What prefill rank ``source`` of ``prefill`` sends to decode rank ``target`` of ``decode``; None for ranks that are not connected.

    Raises:
        PlanError: sizes or heads do not divide.
    """
    connected = paired(prefill, decode, target)
    if source not in connected:
        return None
    here, there = held(heads, prefill, source), held(heads, decode, target)
    common = range(max(here.start, there.start), min(here.stop, there.stop))
    if not common:
        raise PlanError(f"prefill rank {source} of {prefill} holds none of the heads of decode rank {target} of {decode}")
    alike = [rank for rank in connected if held(heads, prefill, rank) == here]
    return Share(common.start - here.start, common.start - there.start, len(common), len(here), len(there), alike.index(source), len(alike))


def total_heads(prefill: int, source_heads: int, decode: int, target_heads: int) -> int:
    """KV heads of a model if a prefill rank holds ``source_heads`` of them and a decode rank ``target_heads``.

    If both hold one, every number up to the smaller size moves the same bytes, and the largest is returned.

    Raises:
        PlanError: no number of heads gives both.
    """
    found = source_heads * prefill if source_heads > 1 else target_heads * decode if target_heads > 1 else min(prefill, decode)
    if (source_heads, target_heads) != (max(1, found // prefill), max(1, found // decode)):
        raise PlanError(
            f"a prefill rank of {prefill} holds {source_heads} KV heads of a layer and a decode rank of {decode} holds {target_heads}: "
            "no model has both; both servers must serve the same model with the same --kv-cache-dtype"
        )
    return found


def heads_in(item_bytes: int, page_size: int, head_bytes: int) -> int:
    """Heads in a page of ``item_bytes`` of one buffer.

    Raises:
        PlanError: the page does not hold whole heads.
    """
    heads, rest = divmod(item_bytes, page_size * head_bytes)
    if rest or not heads:
        raise PlanError(
            f"a page of {item_bytes} bytes does not hold whole heads of {head_bytes} bytes at page size {page_size}; both servers must "
            "have the same --page-size and --kv-cache-dtype"
        )
    return heads


def newest(source: Sequence[Index], target: Sequence[Index], what: str) -> Sequence[Index]:
    """Source pages for ``target``. Both end at the same token, so pages that the decode server already has are cut from the front.

    Raises:
        PlanError: the decode server asks for more pages than there are.
    """
    if len(target) > len(source):
        raise PlanError(f"{what}: the decode server asks for {len(target)} pages, the prefill server has {len(source)}")
    return source[len(source) - len(target) :]


def pages(tokens: int, prefix: int, page_size: int, window: int | None) -> range:
    """Positions of a request's pages that are sent: after the decode server's prefix and within the last token's window.

    Args:
        prefix: tokens that the decode server has in its cache.
    """
    first = prefix if window is None else max(prefix, tokens - window)
    return range(min(first, tokens) // page_size, -(-tokens // page_size))


def link_bytes(
    groups: Sequence[Group], prefill: int, decode: int, tokens: int, page_size: int = 1, prefix: int = 0
) -> dict[tuple[int, int], int]:
    """Bytes that each prefill rank sends to each decode rank for one request, connected ranks only."""
    links: dict[tuple[int, int], int] = {}
    for target in range(decode):
        for source in paired(prefill, decode, target):
            sent = 0
            for group in groups:
                part = share(group.heads, prefill, decode, source, target)
                assert part is not None  # the loop is over connected ranks
                held_tokens = len(pages(tokens, prefix, page_size, group.window)) * page_size
                sent += held_tokens * part.heads * sum(group.sizes[entry] for entry in part.entries(group.entries))
            links[source, target] = sent
    return links


def least_bytes(groups: Sequence[Group], decode: int, tokens: int, page_size: int = 1, prefix: int = 0) -> int:
    """Least bytes for these pages: what the decode ranks hold of them, since no rank reads another's memory."""
    count = {group.name: len(pages(tokens, prefix, page_size, group.window)) * page_size for group in groups}
    return decode * sum(count[group.name] * len(held(group.heads, decode, 0)) * sum(group.sizes) for group in groups)


def repeated_bytes(groups: Sequence[Group], prefill: int, decode: int, tokens: int, page_size: int = 1, prefix: int = 0) -> int:
    """Bytes beyond ``least_bytes`` if each prefill rank sent all heads that it shares with a decode rank, as SGLang 0.5.23 does."""
    extra = 0
    for target in range(decode):
        for source in paired(prefill, decode, target):
            for group in groups:
                part = share(group.heads, prefill, decode, source, target)
                assert part is not None
                kept = len(pages(tokens, prefix, page_size, group.window)) * page_size * part.heads
                extra += kept * (sum(group.sizes) - sum(group.sizes[entry] for entry in part.entries(group.entries)))
    return extra
