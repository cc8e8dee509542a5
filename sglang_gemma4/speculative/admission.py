"""How many prompt tokens go beside a batch of running requests: by measured times of steps.

Three kinds of steps are timed as their results arrive: plain ones (running requests alone), prefills alone, and joined ones. What a joined
step takes longer than a plain one is its ``extra``, by prompt tokens. From that follow

- the most tokens with which a running request's gap between two tokens stays within ``gap`` plain steps;
- the fewest with which prompts get on at :data:`SHARE` of the rate of prefills in turn with decode steps. They win where both cannot be
  had: a bound on gaps that a small batch cannot keep would only delay first tokens;
- whether a few waiting tokens are worth a joined step yet, or are gathered with others for up to ``gap - 1`` plain steps. They are worth
  one when the waiting requests' empty places have cost as much as the step's extra time.

Pure Python: tokens, counts and seconds in, tokens out. Nothing here waits for a device or reads a clock.
"""

from collections import deque
from itertools import pairwise
from statistics import median

START = 512
"""Prompt tokens of joined steps until enough of them are timed."""
LEAST = 64
SHARE = 0.5
SAMPLES, ENOUGH = 9, 3
"""Times whose median is used, and from how many on: the first ones may have waited for a compiler."""
TINY = 0.25
"""Waiting tokens up to this part of what may go beside are gathered."""


class Times:
    """Median times by size, where sizes of one power of two are taken together; between them linear."""

    def __init__(self) -> None:
        self._found: dict[int, deque[tuple[int, float]]] = {}
        self._points: list[tuple[float, float]] = []

    def add(self, size: int, seconds: float) -> None:
        """Record a time."""
        self._found.setdefault(size.bit_length(), deque(maxlen=SAMPLES)).append((size, seconds))
        self._points = []

    def points(self) -> list[tuple[float, float]]:
        """Sizes and times in order; a larger size never has a shorter time."""
        found = self._points
        if found:
            return found
        for _, pairs in sorted(self._found.items()):
            if len(pairs) >= ENOUGH:
                size, seconds = (float(median(values)) for values in zip(*pairs, strict=True))
                found.append((size, max(seconds, found[-1][1] if found else 0.0)))
        return found

    def at(self, size: float) -> float | None:
        """The time of a size, None where nothing is known; outside of what was measured it grows with the size."""
        points = self.points()
        if not points:
            return None
        for (low, before), (high, after) in pairwise(points):
            if low <= size <= high:
                return before + (after - before) * (size - low) / max(high - low, 1.0)
        nearest, seconds = points[0] if size < points[0][0] else points[-1]
        return seconds * size / nearest

    def nearest(self, size: int) -> float | None:
        """The time of the measured size next to this one."""
        points = self.points()
        return min(points, key=lambda point: abs(point[0] - size))[1] if points else None


class Admission:
    """Decides for one scheduler; ``gap``: plain decode steps between two tokens of a running request, at most (more than 1)."""

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self.plain, self.alone, self.extra = Times(), Times(), Times()
        self._last: float | None = None
        self._held_since: float | None = None
        self._lost = 0.0

    def arrived(self, tokens: int, running: int, now: float) -> None:
        """A result arrived at ``now`` seconds, of a step with so many prompt tokens and running requests; results come in launch order."""
        last, self._last = self._last, now
        if last is None:
            return
        seconds = now - last
        if tokens == 0 and running > 0:
            self.plain.add(running, seconds)
        elif tokens > 0 and running == 0:
            self.alone.add(tokens, seconds)
        elif tokens > 0 and (plain := self.plain.nearest(running)) is not None:
            self.extra.add(tokens, max(seconds - plain, 0.0))

    def pause(self) -> None:
        """Nothing runs: the time until the next result is no step's."""
        self._last = None

    def tokens(self, running: int, waiting: int, most: int) -> int:
        """How many of ``waiting`` prompt tokens may go beside ``running`` requests in one step, at most ``most``."""
        plain, points = self.plain.nearest(running), self.extra.points()
        if plain is None or not points:
            return min(START, most)
        within, over = float(LEAST), max(2 * points[-1][0], 2.0 * LEAST)  # a curve that ends is followed to twice its end
        for _ in range(12):
            middle = (within + over) / 2
            fits = (self.extra.at(middle) or 0.0) <= (self.gap - 1.0) * plain
            within, over = (middle, over) if fits else (within, middle)
        return min(most, max(int(within), self._soon_enough(plain, min(max(waiting, 1), most))))

    def _soon_enough(self, plain: float, waiting: int) -> int:
        """The fewest tokens a step, by powers of two, with which the waiting ones get on at :data:`SHARE` of their rate in turn."""
        alone = self.alone.at(waiting) if self.alone.points() else self.extra.at(waiting)
        rate = waiting / (plain + (alone or 0.0))
        size = LEAST
        while size < waiting and size / (plain + (self.extra.at(size) or 0.0)) < SHARE * rate:
            size *= 2
        return min(size, waiting)

    def holds(self, running: int, requests: int, waiting: int, now: float) -> bool:
        """Whether ``requests`` that wait with so many prompt tokens are left waiting for one more plain step; asked once a step."""
        plain, extra = self.plain.nearest(running), self.extra.at(waiting)
        if requests == 0 or plain is None or extra is None:
            return self._let_go()
        if self._held_since is None:
            self._held_since, self._lost = now, 0.0
        if now - self._held_since + plain > (self.gap - 1.0) * plain * 1.01 or waiting > TINY * self.tokens(running, waiting, 1 << 30):
            return self._let_go()
        self._lost += requests * plain / running
        return self._lost < extra or self._let_go()

    def __str__(self) -> str:
        """Milliseconds, for the log."""
        kinds = {"plain steps by requests": self.plain, "prefills by tokens": self.alone, "extra by tokens": self.extra}
        told = (f"{name}: " + ", ".join(f"{size:.0f}: {1000 * took:.1f}" for size, took in times.points()) for name, times in kinds.items())
        return f"ms of {'; '.join(told)}"

    def _let_go(self) -> bool:
        self._held_since = None
        return False
