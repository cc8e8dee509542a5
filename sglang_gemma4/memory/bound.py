"""Which of the two KV pools holds requests back, for how long, and the sizes that would have held more of them.

The scheduler calls :func:`refused` when a pool has no room for the next request, and :func:`retracted` when running
requests are retracted. :func:`looked` samples the queue a few times a second, when SGLang reports its steps. At most
once a minute, and only when the answer has changed, the log names the pool and a better
``SGLANG_GEMMA4_REQUEST_TOKENS``.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from sglang_gemma4.memory.swa_sizing import REFERENCE, Demand, Stock, solve
from sglang_gemma4.patching import switches

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Seconds between two samples. Sampling sixty requests takes some tens of microseconds."""
REPORT_SECONDS = 60.0
STALE_SECONDS = 2.0
"""Most seconds that one sample accounts for: the server may have been idle before it."""
LEAST_SHARE = 0.05
"""Least share of the time that requests must have waited for a pool before the log says so."""
BETTER = 1.1
"""Least factor by which other sizes must hold more requests before the log names them."""


@dataclass
class Bound:
    """What held requests back in this scheduler process since it started."""

    waited: float = 0.0  # seconds in which any request waited, for whatever reason
    by_full: float = 0.0  # of them: the full pool had no room for the next request
    by_sliding: float = 0.0  # the sliding pool had none
    by_limit: float = 0.0  # --max-running-requests requests were running
    retracted_by_full: int = 0  # times that running requests were retracted because the full pool had no room for a decode step
    retracted_by_sliding: int = 0  # because the sliding pool had none
    finished: int = 0  # requests that were seen running and are no longer, retracted ones included
    finished_tokens: int = 0  # their prompt and answer tokens when they were last seen


BOUND = Bound()


@dataclass(frozen=True)
class Sized:
    """How this process's pools were sized: the arguments of ``swa_sizing.solve`` and the tokens of both pools."""

    demand: Demand
    budget: int
    full_cell: float
    sliding_cell: float
    limit: int | None
    stock: Stock | None
    full: int
    sliding: int
    length: int | None

    def held(self, length: int) -> int:
        """Number of requests of ``length`` tokens that fit both pools and the limit on running requests at once."""
        return self._held(self.full, self.sliding, length)

    def held_if_sized_for(self, length: int) -> int:
        """:meth:`held` of pools that are sized for requests of ``length`` tokens."""
        other = solve(self.demand, self.budget, self.full_cell, self.sliding_cell, self.limit, self.stock, length)
        return self._held(other.full, other.sliding, length)

    def _held(self, full: int, sliding: int, length: int) -> int:
        fit = min(full // max(1, length), sliding // max(1, self.demand.held(length)))
        return fit if self.limit is None else min(fit, self.limit)


@dataclass
class _State:
    sized: Sized | None = None
    looked: float = 0.0
    refused: str = ""  # the pool that had no room for a request since the last look
    running: dict[str, int] = field(default_factory=dict)  # tokens of each running request, by its id
    reported: float = 0.0
    at_report: Bound = field(default_factory=Bound)
    said: tuple[str, int] | None = None


_STATE = _State()


def sized(how: Sized) -> None:
    """Record how the pools of this process were sized."""
    _STATE.sized = how


def refused(pool: str) -> None:
    """Record that a request was not admitted because ``pool``, "full" or "sliding", has no room for it."""
    _STATE.refused = pool


def retracted(pool: str) -> None:
    """Record that running requests are retracted because ``pool`` has no room for a decode step."""
    if pool == "full":
        BOUND.retracted_by_full += 1
    else:
        BOUND.retracted_by_sliding += 1


def looked(waiting: int, running: dict[str, int], limit: int, now: float | None = None) -> str | None:
    """Take a sample. Returns the line for the log, or None if there is nothing new to say.

    Args:
        waiting: requests in the queue.
        running: tokens, prompt and answer so far, of each running request.
        limit: the most requests that may run.
        now: seconds of a clock that only goes forward.
    """
    now = time.monotonic() if now is None else now
    seconds = min(now - _STATE.looked, STALE_SECONDS) if _STATE.looked else 0.0
    _STATE.looked = now
    for request in _STATE.running.keys() - running.keys():
        BOUND.finished += 1
        BOUND.finished_tokens += _STATE.running[request]
    _STATE.running = running
    if waiting:
        BOUND.waited += seconds
        if _STATE.refused == "full":
            BOUND.by_full += seconds
        elif _STATE.refused == "sliding":
            BOUND.by_sliding += seconds
        elif len(running) >= limit:
            BOUND.by_limit += seconds
    _STATE.refused = ""
    if not _STATE.reported:
        _STATE.reported, _STATE.at_report = now, Bound(**vars(BOUND))
    if now - _STATE.reported < REPORT_SECONDS:
        return None
    before, passed = _STATE.at_report, now - _STATE.reported
    _STATE.reported, _STATE.at_report = now, Bound(**vars(BOUND))
    return _report(before, passed)


def _report(before: Bound, seconds: float) -> str | None:
    """The line about the time since ``before``, or None if it says nothing new."""
    since = Bound(**{name: value - getattr(before, name) for name, value in vars(BOUND).items()})
    retractions = since.retracted_by_full + since.retracted_by_sliding
    shares = {"full": since.by_full / seconds, "sliding": since.by_sliding / seconds}
    if max(shares.values()) < LEAST_SHARE and not retractions:
        return None
    by_full = (shares["full"], since.retracted_by_full) >= (shares["sliding"], since.retracted_by_sliding)
    pool = "full" if by_full else "sliding"
    length, advice = _length(since), 0
    said = (
        f"the {pool} KV pool holds requests back: in the last {seconds:.0f} s requests waited for the full pool {shares['full']:.0%} and "
        f"for the sliding pool {shares['sliding']:.0%} of the time ({since.by_limit / seconds:.0%} for the limit on running requests), "
        f"and were retracted {since.retracted_by_full} and {since.retracted_by_sliding} times"
    )
    if length:
        said += f"; they are {length} tokens long on average"
        advice, better = _advice(length)
        if advice:
            said += f", of which {better}; {switches.REQUEST_TOKENS}={advice} sizes the pools for them"
    if _STATE.said == (pool, advice):
        return None
    _STATE.said = pool, advice
    return said


def _length(since: Bound) -> int:
    """Average tokens of the requests that ended, or else of those that are running."""
    if since.finished:
        return since.finished_tokens // since.finished
    return sum(_STATE.running.values()) // len(_STATE.running) if _STATE.running else 0


def _advice(length: int) -> tuple[int, str]:
    """The length to size the pools for, and what that gains; 0 and "" if it would not help."""
    step = 100 if length < 10_000 else 1000
    length = max(step, -(-length // step) * step)
    how = _STATE.sized
    if how is None or length == (how.length or REFERENCE):
        return 0, ""
    now, then = how.held(length), how.held_if_sized_for(length)
    return (length, f"the pools hold {now} at once and could hold {then}") if then >= BETTER * max(1, now) else (0, "")


def sample(scheduler: Any) -> None:
    """Take a sample of SGLang's ``Scheduler`` if the last one is old enough, and log the line that it gives."""
    now = time.monotonic()
    if now - _STATE.looked < LOOK_SECONDS:
        return
    running = {one.rid: len(one.origin_input_ids) + len(one.output_ids) for one in scheduler.running_batch.reqs}
    said = looked(len(scheduler.waiting_queue), running, scheduler.max_running_requests, now)
    if said and scheduler.metrics_reporter.is_stats_logging_rank:
        logger.info("sglang-gemma4: %s", said)
