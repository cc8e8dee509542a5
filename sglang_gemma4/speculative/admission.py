"""How many prompt tokens go beside a batch of running requests: by measured times of steps.

Three kinds of steps are timed, as their results arrive or by the card (:mod:`step_clock`): plain ones by running requests, prefills alone
by tokens, and joined ones by rows, those of prompts and of running requests together: what a card computes depends on their sum, and below
some number it is the host's launches that take the time. By the host's clock a result is read after the next step was launched; where that
took longer than the card's step, as an eager prefill's launches do, the result is late, and its step's extra time belongs to the next one
(8,192 tokens had seemed to take 31 ms on an H200, less than their products can: ``runs/2026-11-25-26b-h200-beside-vllm``). There follow

- the rows of a step with which prompts get on fastest, or nearly so, while a running request's gap between two tokens stays within
  ``gap``, plain steps or seconds, with ``auto`` more of these where many wait for a few (give or take :data:`TOLERANCE`), or within what
  is not much longer than the shortest joined step (:data:`FREE`): where launches alone exceed the bound, fewer tokens would only delay
  first tokens. The plain step is that of all requests, those that wait among them: it is what a running request waits for once they have
  joined, and a few running ones are not to hold up a queue;
- whether joined steps are worth it: not where a prefill and a plain step in turn take less time, nor where a larger prefill in turn, which
  the bound allows and no graph limits, brings more prompt tokens a second (a gap of 6 steps and 8,000 tokens a prompt, say). Such a
  prefill is as large as the bound allows;
- whether a few waiting tokens are worth a joined step yet, or are gathered with others for up to ``gap.steps - 1`` plain steps. They
  are worth one when the waiting requests' empty places have cost as much as what the step takes longer than a plain one.

What was never timed is tried: joined steps of three sizes, prefills in turn, and a plain step now and then where only joined ones ran.
Pure Python: tokens, counts and seconds in, tokens out. Nothing here waits for a device or reads a clock.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from enum import Enum

from sglang_gemma4.speculative.beside_bounds import Gap
from sglang_gemma4.speculative.size_times import Times

LEAST = 64
"""Prompt tokens of a step."""
TRIED = (1024, 2048, 512)
"""Rows of the first joined steps."""
FREE = 1.3
"""A joined step may take this many times the shortest one, whatever the bound."""
FEW = 0.75
"""A plain step by the shortest joined one, until plain ones are timed."""
GROWTH = 0.3
"""Power of the requests with which a plain step's time grows beyond those timed: 26B-A4B's doubles from 8 to 80
(``runs/2026-11-23-26b-steps-and-floor``)."""
TOLERANCE = 1.1
"""A joined step of the best rate may take this many times the bound: times vary by as much from pass to pass. On an H200 2,048 rows take 41
to 45 ms and two plain steps of 64 requests 44 to 46; where their estimates were 47 and 46, steps had 1,536 rows, a third fewer prompt
tokens a second (the log of ``runs/2026-11-25-26b-h200-beside-vllm``)."""
ATTEMPTS = 12
"""Times that a size is asked for as a trial before it is left out: steps with images, and those that are cut short, are not timed."""
ROOM = 512
"""Prompt tokens that the largest graph leaves room for beside the running requests, or steps go beyond it: the 512 rows of 31B's would
leave 64 beside 112 requests."""
AGAIN = 600
"""Joined steps after which a size that none had is timed anew, if what is known of smaller ones is within the bound: a size whose first
steps waited for a compiler is not left out for long, and trials stay a hundredth of the steps."""
NEARLY = 0.9
"""Of the rows that bring nearly as many prompt tokens a second as the best ones, the most are taken: a queue then takes fewer steps, each
of which reads the weights for the few requests that run already, and the times of two sizes are rarely of as many running requests. On an
H200 80 chats of 1,000 tokens had steps of 1,536 rows, timed as 32.7 ms beside 16 requests, for 46.7 of 2,048 rows beside 66
(the log of ``runs/2026-11-26-26b-h200-peer``)."""
WORTH = 1.05
"""A larger prefill in turn brings at least so many times the prompt tokens a second of a joined step: it makes gaps longer."""
TINY = 0.25
"""Waiting tokens up to this part of what may go beside are gathered."""
LOOK_EVERY = 24
"""Joined steps after which a plain one is timed, where none of as many requests is known."""


@functools.cache
def ladder(most: int) -> list[int]:
    """Rows of steps that are considered: two an octave, up to twice ``most``."""
    sizes = [LEAST]
    while sizes[-1] < 2 * most:
        sizes += [sizes[-1] * 3 // 2, sizes[-1] * 2]
    return sizes


def in_a_graph(tokens: int, rows: int, sizes: Sequence[int]) -> int:
    """``tokens`` of prompts or as many as fit into the largest of ``sizes`` beside ``rows`` rows: without a graph a step of 2,060
    rows took 74 ms, with one 2,044 took 40 (``runs/2026-11-25-26b-whole-graphs``)."""
    room = sizes[-1] - rows if sizes else 0
    return min(tokens, room) if room >= ROOM else tokens


class Way(Enum):
    """How prompts and a decode step of running requests go: in one forward, or one after the other, as a trial or because it is faster."""

    BESIDE = 1
    TRIED_IN_TURN = 2
    IN_TURN = 3


class Admission:
    """Decides for one scheduler.

    Args:
        gap: between two tokens of a running request, at most.
        read_late: whether times are those at which results are read.
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
        """A result arrived at ``now`` seconds; results come in launch order.

        Args:
            tokens: of prompts in its step.
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
        """Seconds by which the result of the plain step ``before``, of so many requests and seconds, was read late."""
        if before is None or not self._read_late:
            return 0.0
        usual = self.plain.at(before[0])
        return 0.0 if usual is None else max(before[1] - usual, 0.0)

    def pause(self) -> None:
        """Nothing runs: the time until the next result is no step's."""
        self._last = self._before = None

    def tokens(self, running: int, each: int, waiting: int, most: int, sizes: Sequence[int] = (), joining: int = 0) -> int:
        """How many of ``waiting`` prompt tokens may go beside ``running`` requests of ``each`` rows in one step, at most ``most``.

        Args:
            sizes: rows that are not padded, ascending; others are padded to the next of them, and none has more than the last where the
                running requests leave room for prompts.
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
        """Seconds of a step with a prompt at most, by the plain step of all requests; None until a joined step was timed."""
        points = self.joined.points()
        if not points:
            return None
        queued = min(1.0 + joining / max(running, 1), self.gap.queued)
        return max(self.gap.steps * (self.plain.at(running + joining) or FEW * points[0][1]), self.gap.seconds * queued)

    def _of_rows(self, rows: int, sizes: Sequence[int] = ()) -> float:
        """Seconds of a joined step; an estimate where no such size was timed, infinite where none was."""
        seconds = self.joined.at(next((size for size in sizes if size >= rows), rows))
        return float("inf") if seconds is None else seconds

    def looks(self, running: int) -> bool:
        """Whether a plain step goes first because only joined ones ran for long, and none of about as many requests was timed."""
        return self._since_plain >= LOOK_EVERY and not self.plain.known(running, self._step)

    def way(self, running: int, each: int, tokens: int, most: int = 0, joining: int = 0) -> Way:
        """How ``tokens`` of prompts go with ``running`` requests.

        The first ones of a size go beside; as soon as such steps are timed, some follow each other, so that both are.

        Args:
            tokens: what would go beside.
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
        """Prompt tokens of a prefill that goes in turn, at most ``most``: as many as the bound allows, at least ``tokens``.

        What is larger than all that was timed is taken to need as long for each token, which is more than it will: it reads weights once.

        Args:
            tokens: what would go beside, in more time.
            joining: requests that wait.
        """
        plain, bound = self.plain.at(running), self._bound(running, joining)
        if plain is None or bound is None:
            return tokens
        bound = max(bound, self._of_rows(running * each + tokens))
        larger = [size for size in (*ladder(most), most) if tokens < size <= most]
        return max((size for size in larger if plain + (self.alone.at(size) or bound) <= bound), default=tokens)

    def holds(self, running: int, each: int, requests: int, waiting: int, most: int, now: float) -> bool:
        """Whether ``requests`` that wait with so many prompt tokens are left waiting for one more plain step; asked once a step."""
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
        kinds = {"plain steps by requests": self.plain, "prefills by tokens": self.alone, "joined steps by rows": self.joined}
        told = (f"{name}: " + ", ".join(f"{size:.0f}: {1000 * took:.1f}" for size, took in times.points()) for name, times in kinds.items())
        return f"ms of {'; '.join(told)}"

    def _let_go(self) -> bool:
        self._held_since = None
        return False
