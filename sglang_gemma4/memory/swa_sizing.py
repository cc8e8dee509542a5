"""Sizes of the full and the sliding pool from what requests hold, instead of a constant ratio.

A running request of length L holds L tokens of the full pool and at most ``per_request`` tokens of the sliding pool:

    per_request = windows · window + eviction interval + draft tokens + allocation + 2 · page

- windows: 1 where ``own_window`` takes the prompt's window out of the radix tree for the running request, else 2. The
  tree then keeps the prompt's last window locked in addition to the request's own. Both are complete once a window of
  tokens has been decoded.
- window: what SGLang keeps, in whole pages: one token fewer than the config's ``sliding_window`` (1,023 on 26B-A4B).
- eviction interval: SGLang frees keys behind the window in batches (``SGLANG_SWA_EVICTION_INTERVAL``, 128), at the end
  of a step, up to a step's draft tokens late.
- allocation: slots that a decode step allocates in advance (allocation_sizing.py), in whole pages.

An idle session of length L, one whose requests have ended and whose prefix is in the radix cache, holds L full tokens
and one window. It is a hit only while it has both, so both pools should evict it at the same time. Idle bytes are
therefore split as window · (bytes of a sliding token) to L · (bytes of a full token). Idle tokens count as free, so
running requests may take all of them.

R running requests and S idle sessions then need

    sliding(R, S) = R · per_request + S · window + prefill chunks in flight · chunk + page

R is ``max_running_requests`` if the operator (or speculation) set it, but at most as many as fit with
:data:`REFERENCE` tokens each; S is what fits beside them. If the chunks would take more than half of a small pool,
they get half (``Sizes.chunks_cut``): a prompt of a whole chunk may then wait until a running request ends.

**Never worse than SGLang's ratio.** Requests shorter than the window take all their tokens of both pools, so the sizes
above alone would run fewer of them than SGLang's 0.8. Therefore the full pool is never smaller than by SGLang's ratio
with the same bytes. The sliding pool is not smaller than the lesser of two sizes: SGLang's, and what
``max_running_requests`` requests and the chunks in flight take at most: more cannot run. So for every length
min(limit, requests that fit) is at least SGLang's. The gain comes from bytes that SGLang keeps for KV that is never
read (a draft's, shared layers'), from a limit on running requests, and from holding one window instead of two. Without
a limit, on a model where SGLang wastes no bytes, the split is SGLang's.

There are two exceptions. Under this rule a small pool may not hold one request of :data:`LONG` tokens. It then keeps
the full tokens that the sizes above give it, up to that length: a refused prompt is worse than a few short requests
that wait. And an operator who says how long requests are (``SGLANG_GEMMA4_REQUEST_TOKENS``) gets the sizes for that
length.
"""

from dataclasses import dataclass

REFERENCE = 8192
"""Tokens of a request (prompt and answer) for which the pools are sized, unless SGLANG_GEMMA4_REQUEST_TOKENS is set."""

LONG = 32_768
"""Tokens of a request that short ones must not crowd out of the full pool."""

STOCK_RATIO = 0.8
"""SGLang's default sliding tokens per full token (arg_groups/fields/schedule.py:150)."""


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
    windows: int  # most windows that a running request holds: 1 or 2
    radix_cache: bool

    @property
    def per_request(self) -> int:
        """Sliding tokens that a running request holds at most."""
        return self.windows * self.cached + self.eviction_interval + self.draft_tokens + self.allocation + 2 * self.page

    @property
    def cached(self) -> int:
        """Sliding tokens that an idle session holds: its last window in whole pages."""
        return _up(self.window, self.page)

    def chunks(self, most: int | None = None) -> int:
        """Sliding tokens for the prefill chunks in flight, at most ``most``, and a page."""
        wanted = self.chunks_in_flight * self.chunk
        return (wanted if most is None else min(wanted, most)) + self.page

    def held(self, length: int) -> int:
        """Sliding tokens that a running request of ``length`` tokens holds at most."""
        return min(_up(length, self.page), self.per_request)

    def sliding(self, running: int, idle: int = 0, most_chunks: int | None = None, length: int = REFERENCE) -> int:
        """Sliding tokens for ``running`` requests and ``idle`` sessions of ``length`` tokens, and chunks in flight."""
        return running * self.held(length) + idle * min(_up(length, self.page), self.cached) + self.chunks(most_chunks)


@dataclass(frozen=True)
class Stock:
    """The bytes of a token as SGLang's own configurator counts them. :func:`solve` gives no smaller sizes than these.

    ``full_cell`` and ``sliding_cell`` are the bytes of a token in all layers that it counts, a draft's included.
    """

    full_cell: float
    sliding_cell: float
    ratio: float = STOCK_RATIO

    def sizes(self, budget: int, page: int) -> tuple[int, int]:
        """Tokens of the full and the sliding pool for ``budget`` bytes (pool_configurator.py:801-925)."""
        tokens = int(budget // (self.full_cell + self.ratio * self.sliding_cell))
        full = _down(tokens, page)
        return full, _down(int(full * self.ratio), page)


@dataclass(frozen=True)
class Sizes:
    """Page-aligned tokens of both pools, the running requests and idle sessions they are for, and what decided them.

    ``floored``: the sliding pool has the tokens of SGLang's ratio, or of the limit on running requests, for short
    requests' sake. ``chunks_cut``: the share for prefill chunks was cut.
    """

    full: int
    sliding: int
    running: int
    idle: int = 0
    floored: bool = False
    chunks_cut: bool = False


def solve(
    demand: Demand,
    budget: int,
    full_cell: float,
    sliding_cell: float,
    limit: int | None,
    stock: Stock | None = None,
    length: int | None = None,
) -> Sizes:
    """Pool sizes for a budget.

    Args:
        budget: bytes for both pools.
        full_cell: bytes of a token in the full pool; ``sliding_cell``: in the sliding pool.
        limit: the most requests that may run, or None.
        stock: what the sizes must not fall below; None: no rule.
        length: tokens of a typical request if the operator gave them, which also lifts that rule; None:
        :data:`REFERENCE`.

    Raises:
        ValueError: the budget does not hold a window and a page in both pools.
    """
    tokens, page = length or REFERENCE, demand.page
    equal = _down(int(budget // (full_cell + sliding_cell)), page)  # a sliding token without a full token is useless
    most_chunks = equal // 2
    left = budget - demand.chunks(most_chunks) * sliding_cell
    each = tokens * full_cell + demand.held(tokens) * sliding_cell
    fit = max(1, int(left // each))
    running = fit if limit is None else max(1, min(limit, fit))
    session = tokens * full_cell + min(_up(tokens, page), demand.cached) * sliding_cell
    idle = max(0, int((left - running * each) // session)) if demand.radix_cache else 0
    by_window = _up(demand.sliding(running, idle, most_chunks, tokens), page)
    floor, most = 0, equal
    if stock is not None and length is None:
        stock_full, floor = stock.sizes(budget, page)
        if limit is not None:
            floor = min(floor, _up(limit * demand.per_request + demand.chunks(), page))
        most = min(most, _down(int((budget - stock_full * full_cell) // sliding_cell), page))
        floor = min(floor, max(by_window, _down(int((budget - _up(LONG, page) * full_cell) // sliding_cell), page)))
    sliding = min(max(by_window, floor), most)
    full = _down(int((budget - sliding * sliding_cell) // full_cell), page)
    if sliding <= demand.window + page:
        raise ValueError(
            f"{budget / 2**30:.3f} GiB for KV hold {sliding} tokens in the sliding and {full} in the full pool; one request needs more "
            f"than its window of {demand.window} and a page of {page} in both; raise --mem-fraction-static"
        )
    cut = demand.chunks_in_flight * demand.chunk > most_chunks
    return Sizes(full, sliding, running, idle, floored=by_window < sliding == floor, chunks_cut=cut)


def _up(tokens: int, page: int) -> int:
    return -(-tokens // page) * page


def _down(tokens: int, page: int) -> int:
    return tokens // page * page
