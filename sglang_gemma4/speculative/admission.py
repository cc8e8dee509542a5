"""Choose how many prompt tokens run in a mixed batch with the running requests, from measured step times.

Three types of step are timed, by the GPU's clock or as their results arrive (:mod:`step_clock`): plain steps by
number of requests, prefills alone by tokens, and mixed batches by rows. The rows of a mixed batch are those of
prompts and of running requests together. What a GPU computes depends on their sum; below some number of rows the
host's launches take the time.

By the host's clock a result is read after the next step was launched. Where that launch took longer than the GPU's
step, as for an eager prefill, the result is read late, and the extra time belongs to the next step. Without that
correction 8,192 tokens seemed to take an H200 less time than their GEMMs can
(``runs/2026-11-25-26b-h200-beside-vllm``).

From these times follow:

- The rows of a mixed batch: those with the highest prompt throughput, or nearly so, within a limit. The limit is
  ``gap``, in plain steps or seconds, give or take :data:`TOLERANCE`; where many requests wait for a few running ones,
  ``gap.queued`` raises its seconds. If the shortest mixed batch times :data:`FREE` is longer than the limit, that
  counts instead: where launches alone exceed the limit, fewer tokens would only delay first tokens. The plain step is
  that of running and waiting requests together: a running request waits for it once the others have joined, and a few
  running requests must not hold up a queue.
- Whether a mixed batch is worth running. It is not where a prefill and a plain step, one after the other, take less
  time. Nor is it where alternating with a larger prefill, which the limit allows and no graph bounds, brings more
  prompt tokens a second (a gap of 6 steps and 8,000 tokens a prompt, say). Such a prefill is as large as the limit
  allows.
- Whether a few waiting tokens are worth a mixed batch yet, or are gathered with others for up to ``gap.steps - 1``
  plain steps. They are worth one when the waiting requests' empty places have cost as much as the mixed batch takes
  longer than a plain step.

What was never timed is tried: mixed batches of three sizes, alternating prefills, and a plain step now and then where
only mixed batches ran. Pure Python: tokens, counts and seconds in, tokens out. Nothing here waits for a device or
reads a clock.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from enum import Enum

from sglang_gemma4.speculative.beside_bounds import Gap
from sglang_gemma4.speculative.size_times import Times

LEAST = 64
"""Fewest prompt tokens of a mixed batch."""
TRIED = (1024, 2048, 512)
"""Rows of the first mixed batches, which are trials."""
FREE = 1.3
"""A mixed batch may take this many times the shortest one, whatever the limit."""
FEW = 0.75
"""Assumed time of a plain step, as a fraction of the shortest mixed batch, until plain steps are timed."""
GROWTH = 0.3
"""Exponent with which a plain step's time grows with the number of requests beyond those timed: 26B-A4B's doubles
from 8 to 80 (``runs/2026-11-23-26b-steps-and-floor``)."""
TOLERANCE = 1.1
"""The mixed batch of the best rate may take this many times the limit, because times vary by as much from pass to
pass. With a strict limit, steps on an H200 had a third fewer prompt tokens a second (the log of
``runs/2026-11-25-26b-h200-beside-vllm``)."""
ATTEMPTS = 12
"""Trials of a size before it is left out: steps with images, and steps that are cut short, are not timed."""
ROOM = 512
"""Rows for prompts that the largest graph must have beside those of running requests; else steps may exceed it. The
512 rows of 31B's would leave 64 beside 112 requests."""
AGAIN = 600
"""Mixed batches after which an unused size is timed again, if the time of smaller sizes is within the limit. A size
whose first steps waited for a compiler is thus not left out for long, and trials stay at 1 % of the steps."""
NEARLY = 0.9
"""Among row counts with at least this share of the best prompt throughput, the largest is taken. A queue then takes
fewer steps, each of which reads the weights for the few running requests; and the times of two sizes are rarely of
as many running requests. Without this, 80 chats on an H200 had steps of 1,536 rows, timed beside fewer requests
than steps of 2,048 (the log of ``runs/2026-11-26-26b-h200-peer``)."""
WORTH = 1.05
"""A larger alternating prefill must bring at least this many times the prompt tokens a second of a mixed batch,
because it lengthens inter-token latency."""
TINY = 0.25
"""Waiting tokens up to this fraction of what a mixed batch may take are gathered."""
LOOK_EVERY = 24
"""Mixed batches after which a plain step is timed, if none of as many requests is known."""


@functools.cache
def ladder(most: int) -> list[int]:
    """Row counts that are considered: two per octave, up to twice ``most``."""
    sizes = [LEAST]
    while sizes[-1] < 2 * most:
        sizes += [sizes[-1] * 3 // 2, sizes[-1] * 2]
    return sizes


def in_a_graph(tokens: int, rows: int, sizes: Sequence[int]) -> int:
    """The smaller of ``tokens`` and what fits into the largest of ``sizes`` beside ``rows`` rows. Without a graph a
    mixed batch took nearly twice as long (``runs/2026-11-25-26b-whole-graphs``)."""
    room = sizes[-1] - rows if sizes else 0
    return min(tokens, room) if room >= ROOM else tokens


class Way(Enum):
    """How prompts and a decode step of running requests run: in one forward, or alternating, as a trial or because it
    is faster."""

    BESIDE = 1
    TRIED_IN_TURN = 2
    IN_TURN = 3


class Admission:
    """Decides for one scheduler.

    Args:
        gap: longest time between two tokens of a running request.
        read_late: whether step times are those at which the host reads results.
    """

    def __init__(self, gap: Gap, read_late: bool = True) -> None:
        self.gap = gap
        self._read_late = read_late
        self.plain, self.alone, self.joined = Times(octave=1, growth=GROWTH), Times(), Times(old=AGAIN)
        self._last: float | None = None
        self._held_since: float | None = None
        self._lost = 0.0
        self._before: tuple[int, float] | None = None
        self._since_plain = self._step = 0
        self._asked: Counter[int] = Counter()

    def arrived(self, tokens: int, running: int, rows: int, now: float) -> None:
        """Record a result that arrived at ``now`` seconds; results come in launch order.

        Args:
            tokens: prompt tokens of its step.
            running: requests that were decoded in it.
            rows: tokens that the model saw.
        """
        self._since_plain = self._since_plain + 1 if tokens and running else 0
        last, self._last = self._last, now
        if last is None:
            return
        seconds, before, self._before = now - last, self._before, None
        self._step += 1
        if tokens == 0 and running > 0:
            self._before = running, seconds
            self.plain.add(running, seconds, self._step)
        elif tokens > 0 and running == 0:
            self.alone.add(tokens, seconds + self._late(before), self._step)
        elif tokens > 0:
            self.joined.add(rows, seconds + self._late(before), self._step)
            self._asked.clear()

    def _late(self, before: tuple[int, float] | None) -> float:
        """Seconds by which the result of the plain step ``before`` (requests, seconds) was read late."""
        if before is None or not self._read_late:
            return 0.0
        usual = self.plain.at(before[0])
        return 0.0 if usual is None else max(before[1] - usual, 0.0)

    def pause(self) -> None:
        """Record that nothing runs: the time until the next result is not a step's."""
        self._last = self._before = None

    def tokens(self, running: int, each: int, waiting: int, most: int, sizes: Sequence[int] = (), joining: int = 0) -> int:
        """How many of ``waiting`` prompt tokens may run beside ``running`` requests of ``each`` rows in one step, at
        most ``most``.

        Args:
            sizes: rows that are not padded, ascending; other row counts are padded to the next of them. The last is
                the upper limit if the running requests leave enough of it for prompts.
            joining: requests that wait.
        """
        rows = running * each
        room = [size for size in (*sizes, *ladder(most), rows + most) if rows + min(LEAST, most) <= size <= rows + most]
        last = sizes[-1] if sizes else 0
        if last - rows >= min(ROOM, most):
            room = [size for size in room if size <= last]
        bound = self._bound(running, joining)
        for size in TRIED:
            unsure = not self.joined.known(size, self._step) or self.joined.doubtful(size, self._step)
            if size in room and size - rows <= waiting and unsure:
                least = self.joined.below(size)
                if (least is None or bound is None or least <= bound) and self._asked[size] < ATTEMPTS:
                    self._asked[size] += 1
                    return size - rows
        if bound is None:
            return min(most, max((last or TRIED[1]) - rows, ROOM))
        timed = {size: self._of_rows(size, sizes) for size in room if size in sizes or size > last or size == rows + most}
        bound = max(TOLERANCE * bound, FREE * min(timed.values()))
        rates = {size: (size - rows) / seconds for size, seconds in timed.items() if seconds <= bound}
        return max(size for size, rate in rates.items() if rate >= NEARLY * max(rates.values())) - rows

    def _bound(self, running: int, joining: int) -> float | None:
        """Longest time of a step with a prompt, in seconds, from the plain step of all requests; None until a mixed
        batch was timed."""
        points = self.joined.points()
        if not points:
            return None
        queued = min(1.0 + joining / max(running, 1), self.gap.queued)
        return max(self.gap.steps * (self.plain.at(running + joining) or FEW * points[0][1]), self.gap.seconds * queued)

    def _of_rows(self, rows: int, sizes: Sequence[int] = ()) -> float:
        """Seconds of a mixed batch: an estimate if that size was not timed, infinity if none was."""
        seconds = self.joined.at(next((size for size in sizes if size >= rows), rows))
        return float("inf") if seconds is None else seconds

    def looks(self, running: int) -> bool:
        """Whether a plain step runs first, because only mixed batches ran for long and no plain step of about as many
        requests is known."""
        return self._since_plain >= LOOK_EVERY and not self.plain.known(running, self._step)

    def way(self, running: int, each: int, tokens: int, most: int = 0, joining: int = 0) -> Way:
        """How ``tokens`` of prompts run with ``running`` requests.

        The first mixed batches of a size are always run. Once they are timed, some prefills alternate, so that both
        ways have times.

        Args:
            tokens: prompt tokens of the mixed batch.
            most: prompt tokens that wait and that one prefill may have.
            joining: requests that wait.
        """
        plain, rows, alone = self.plain.at(running), running * each + tokens, self.alone.at(tokens)
        if plain is None or not self.joined.known(rows, self._step):
            return Way.BESIDE
        if alone is None or not self.alone.known(tokens, self._step):
            return Way.TRIED_IN_TURN
        joined = self._of_rows(rows)
        if joined > plain + alone:
            return Way.IN_TURN
        larger = self.in_turn(running, each, tokens, most, joining)
        seconds = self.alone.at(larger)
        faster = seconds is not None and larger * joined > WORTH * tokens * (plain + seconds)
        return Way.IN_TURN if larger > tokens and faster else Way.BESIDE

    def in_turn(self, running: int, each: int, tokens: int, most: int, joining: int = 0) -> int:
        """Prompt tokens of an alternating prefill, at most ``most``: as many as the limit allows, at least
        ``tokens``.

        Sizes above all that were timed are assumed to take as long for each token. That is an upper bound, because
        weights are read once.

        Args:
            tokens: prompt tokens of the mixed batch.
            joining: requests that wait.
        """
        plain, bound = self.plain.at(running), self._bound(running, joining)
        if plain is None or bound is None:
            return tokens
        bound = max(bound, self._of_rows(running * each + tokens))
        larger = [size for size in (*ladder(most), most) if tokens < size <= most]
        return max((size for size in larger if plain + (self.alone.at(size) or bound) <= bound), default=tokens)

    def holds(self, running: int, each: int, requests: int, waiting: int, most: int, now: float) -> bool:
        """Whether ``requests`` that wait with ``waiting`` prompt tokens are held back for one more plain step; call
        once a step."""
        if requests == 0:
            return self._let_go()
        plain, joined = self.plain.at(running), self.joined.at(running * each + waiting)
        if plain is None or joined is None:
            return self._let_go()
        if self._held_since is None:
            self._held_since, self._lost = now, 0.0
        longest = (self.gap.steps - 1.0) * plain * 1.01
        if now - self._held_since + plain > longest or waiting > TINY * self.tokens(running, each, waiting, most):
            return self._let_go()
        self._lost += requests * plain / running
        return self._lost < joined - plain or self._let_go()

    def __str__(self) -> str:
        """Milliseconds, for the log."""
        kinds = {"plain steps by requests": self.plain, "prefills by tokens": self.alone, "mixed batches by rows": self.joined}
        told = (f"{name}: " + ", ".join(f"{size:.0f}: {1000 * took:.1f}" for size, took in times.points()) for name, times in kinds.items())
        return f"ms of {'; '.join(told)}"

    def _let_go(self) -> bool:
        self._held_since = None
        return False
