"""Estimate step times by size from measured times, most of which are longer than necessary.

Pure Python: sizes and seconds in, estimates out.
"""

from collections import deque
from itertools import pairwise
from statistics import median

STEEP = 1.25
"""A step takes at most this many times its share of rows longer than a smaller one, because reading weights is shared
by all rows. A larger time is assumed to include a compiler: on an H100 1,024 rows had seemed to take 131 ms, five
times as long as 512 (``runs/2026-11-25-26b-h100-reserve``)."""
SURE, DOUBTED = 9, 48
"""A size that is too steep is tried until it has SURE times, then again after DOUBTED steps."""
SAMPLES, ENOUGH = 9, 3
"""Times kept for a size, whose lower third is used, and how many are needed. The first ones wait for a compiler. The
minimum is not used, because a result that is read late makes its own step longer and the next one shorter."""
OLD = 2000
"""Steps after which an unused size is timed again: contexts have grown, or the old times were disturbed."""


class Times:
    """Times by size: sizes between two of :func:`admission.ladder` share a bucket; between buckets times are linear."""

    def __init__(self, octave: int = 2, growth: float = 1.0, old: int = OLD) -> None:
        """Use ``octave`` buckets per octave of sizes, 1 or 2. Above the largest measured size times grow with the
        power ``growth``. After ``old`` steps without a size its times expire."""
        self._old = old
        self._found: dict[int, deque[tuple[int, float]]] = {}
        self._last: dict[int, int] = {}
        self._octave, self._growth = octave, growth
        self._points: list[tuple[float, float]] = []

    def _key(self, size: int) -> int:
        """Bucket of a size: sizes above one step of the ladder, up to the next, share it."""
        octave = max(size - 1, 0).bit_length()
        return self._octave * octave + (self._octave == 2 and size > 3 << octave >> 2)

    def add(self, size: int, seconds: float, step: int = 0) -> None:
        """Record the time of the ``step``-th step; expired times of its bucket are dropped."""
        key = self._key(size)
        if step - self._last.get(key, step) >= self._old:
            del self._found[key]
        self._last[key] = step
        self._found.setdefault(key, deque(maxlen=SAMPLES)).append((size, seconds))
        self._points = []

    def known(self, size: int, step: int = 0) -> bool:
        """Whether enough steps of about this size were timed, the last less than ``old`` steps before the
        ``step``-th."""
        key = self._key(size)
        return len(self._found.get(key, ())) >= ENOUGH and step - self._last[key] < self._old

    def doubtful(self, size: int, step: int) -> bool:
        """Whether a known size seems to take longer than its rows can explain, and should be timed again."""
        key, own = self._key(size), self.at(size)
        smaller = [point for point in self.points() if self._key(int(point[0])) < key]
        if own is None or not smaller or len(self._found.get(key, ())) < ENOUGH:
            return False
        rows, seconds = smaller[-1]
        steep = own > STEEP * seconds * size / rows
        return steep and (len(self._found[key]) < SURE or step - self._last[key] >= DOUBTED)

    def below(self, size: int) -> float | None:
        """Time of the largest known smaller size, a lower bound for ``size``; None if there is none."""
        smaller = [seconds for own, seconds in self.points() if self._key(int(own)) < self._key(size)]
        return smaller[-1] if smaller else None

    def points(self) -> list[tuple[float, float]]:
        """Sizes and times in ascending order. A smaller size never has a longer time: disturbances only lengthen a
        step."""
        found = self._points
        if found:
            return found
        for _, pairs in sorted(self._found.items(), reverse=True):
            if len(pairs) >= ENOUGH:
                size, seconds = float(median(size for size, _ in pairs)), sorted(seconds for _, seconds in pairs)[len(pairs) // 3]
                found.append((size, min(seconds, found[-1][1] if found else seconds)))
        found.reverse()
        return found

    def at(self, size: float) -> float | None:
        """Estimated time of a size, None if nothing is known. Below the smallest measured size it is the time of that
        size."""
        points = self.points()
        if not points:
            return None
        for (low, before), (high, after) in pairwise(points):
            if low <= size <= high:
                return before + (after - before) * (size - low) / max(high - low, 1.0)
        nearest, seconds = points[0] if size < points[0][0] else points[-1]
        return float(seconds * max(size / nearest, 1.0) ** self._growth)
