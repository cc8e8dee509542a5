"""Sizes of the full and the sliding pool from what a running request holds, instead of a constant ratio.

A running request of length L holds L tokens of the full pool and at most ``per_request`` of the sliding pool:

    per_request = window · (2 with the radix cache, else 1) + eviction interval + draft tokens + allocation + 2 · page

- window: the keys that its next token sees, in whole pages. With the radix cache its prompt's last window stays locked in the tree in
  addition to its own; both are full when a window of tokens was decoded. ``SGLANG_OPT_RELEASE_PREFILL_SWA`` releases the lock only then
  (schedule_batch.py:4103; under speculation it counts steps, not tokens), so it does not lower this peak.
- eviction interval: SGLang frees keys behind the window in batches (``SGLANG_SWA_EVICTION_INTERVAL``, 128), at the end of a step, up to
  a step's draft tokens late.
- allocation: slots that a decode step allocates in advance (allocation_sizing.py), in whole pages.

The sliding pool for R running requests is then

    sliding(R) = R · per_request · (1 + radix share) + prefill chunks in flight · chunk + page

and the full pool gets all other bytes. R is ``max_running_requests`` if the operator (or speculation) set it, but at most the number of
requests that both pools hold at :data:`REFERENCE` tokens each (:func:`balance`), so that a high limit cannot starve the full pool.

With R within the balance the sliding pool never stops an admission, because every running request may hold its worst case and a chunk
more. Beyond it, requests shorter than the reference are limited by the sliding pool at R · per_request, longer ones by the full pool. If
the chunks would take more than half of a small pool, they get half (``Sizes.chunks_cut``): a prompt of a whole chunk may then wait until a
running request ends.
"""

from dataclasses import dataclass

RADIX_SHARE = 0.25
"""Extra share for prefixes of finished requests: without its window a cached prefix is no hit."""

REFERENCE = 8192
"""Length of requests, in tokens, at which both pools run out together if no limit on running requests is given."""


@dataclass(frozen=True)
class Demand:
    """What requests need of the sliding pool, in tokens."""

    window: int
    page: int
    eviction_interval: int
    draft_tokens: int  # 0 without speculation
    allocation: int  # slots reserved by a decode step
    chunk: int  # tokens of a prefill chunk
    chunks_in_flight: int  # 2 with the overlap scheduler
    radix_cache: bool

    @property
    def per_request(self) -> int:
        """Sliding tokens that a running request holds at most."""
        windows = _up(self.window, self.page) * (2 if self.radix_cache else 1)
        return windows + self.eviction_interval + self.draft_tokens + self.allocation + 2 * self.page

    def sliding(self, running: int, most_chunks: int | None = None) -> int:
        """Sliding tokens for ``running`` requests, a radix share and the prefill chunks in flight, at most ``most_chunks`` tokens."""
        chunks = self.chunks_in_flight * self.chunk
        return int(running * self.per_request * (1 + RADIX_SHARE)) + min(chunks, chunks if most_chunks is None else most_chunks) + self.page


@dataclass(frozen=True)
class Sizes:
    """Page-aligned tokens of both pools, the number of running requests assumed, and whether the share for chunks was cut."""

    full: int
    sliding: int
    running: int
    chunks_cut: bool = False


def balance(demand: Demand, budget: int, full_cell: float, sliding_cell: float) -> int:
    """Running requests at which both pools run out together if each is :data:`REFERENCE` tokens long; at least 1.

    Args:
        budget: bytes for both pools.
        full_cell: bytes of a token in the full pool; ``sliding_cell``: in the sliding pool.
    """
    fixed = demand.sliding(0, _most_chunks(budget, full_cell, sliding_cell)) * sliding_cell
    each = max(REFERENCE, demand.window) * full_cell + demand.per_request * (1 + RADIX_SHARE) * sliding_cell
    return max(1, int((budget - fixed) // each))


def solve(demand: Demand, budget: int, full_cell: float, sliding_cell: float, limit: int | None) -> Sizes:
    """Pool sizes for ``budget`` bytes; ``limit`` is the most requests that may run, or None.

    Raises:
        ValueError: the budget does not hold a window and a page in both pools.
    """
    fit = balance(demand, budget, full_cell, sliding_cell)
    running = fit if limit is None else max(1, min(limit, fit))
    most_chunks = _most_chunks(budget, full_cell, sliding_cell)
    sliding = _up(demand.sliding(running, most_chunks), demand.page)
    full = _down(int((budget - sliding * sliding_cell) // full_cell), demand.page)
    if sliding > full:  # a sliding token without a full token is useless
        sliding = full = _down(int(budget // (full_cell + sliding_cell)), demand.page)
    if sliding <= demand.window + demand.page:
        raise ValueError(
            f"{budget / 2**30:.3f} GiB for KV hold {sliding} tokens in the sliding and in the full pool; one request needs more than its "
            f"window of {demand.window} and a page of {demand.page}; raise --mem-fraction-static"
        )
    return Sizes(full, sliding, running, demand.chunks_in_flight * demand.chunk > most_chunks)


def _most_chunks(budget: int, full_cell: float, sliding_cell: float) -> int:
    """Half of the tokens that two pools of one size would have."""
    return int(budget / (full_cell + sliding_cell) / 2)


def _up(tokens: int, page: int) -> int:
    return -(-tokens // page) * page


def _down(tokens: int, page: int) -> int:
    return tokens // page * page
