"""When the parts of a start began and ended in this process, and how they add up over the processes of a server.

Seconds are those of the wall clock (``time.time``), which all processes of a host share.
"""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import NamedTuple

REST = "rest"
"""What no part covers: starting processes, tokenizer, caches, the wait between two parts."""


class Interval(NamedTuple):
    """A part of a start; both times in seconds since the epoch."""

    name: str
    begin: float
    end: float


_intervals: list[Interval] = []
_open = threading.local()


def record(name: str, begin: float, end: float) -> None:
    """Keep one interval. Appending to a list is atomic, so threads may record at once."""
    _intervals.append(Interval(name, begin, end))


@contextmanager
def part(name: str) -> Iterator[None]:
    """Record what runs inside as one part, also where it raises."""
    names = _names()
    names.append(name)
    begin = time.time()
    try:
        yield
    finally:
        names.pop()
        record(name, begin, time.time())


def innermost() -> str:
    """The part that this thread is in, :data:`REST` outside of all."""
    return (_names() or [REST])[-1]


def _names() -> list[str]:
    if not hasattr(_open, "names"):
        _open.names = []
    names: list[str] = _open.names
    return names


def recorded() -> list[Interval]:
    """This process's intervals, in the order they ended."""
    return list(_intervals)


def forget_parent() -> None:
    """Drop what a parent recorded before it forked this process."""
    began = process_began()
    _intervals[:] = [one for one in _intervals if one.begin >= began]


def process_began() -> float:
    """When this process was created; ``exec`` keeps it."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # psutil knows the boot in whole seconds
        with suppress(OSError, ValueError, IndexError):
            with open("/proc/self/stat") as stat:
                ticks = int(stat.read().rpartition(")")[2].split()[19])
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
            if age >= 0:
                return time.time() - age
    import psutil  # SGLang requires it

    return float(psutil.Process().create_time())


def by_part(intervals: Iterable[Interval], begin: float, end: float) -> dict[str, float]:
    """Seconds by part between two times; they add up to ``end - begin``.

    A moment that several intervals cover counts for the one that began last: a nested part is not counted for its parent too, and while
    the launching process waits the time is the scheduler's. :data:`REST` comes last.

    Returns:
        Parts in the order of their first second.

    Raises:
        ValueError: ``end`` lies before ``begin``.
    """
    if end < begin:
        raise ValueError(f"a start cannot end ({end}) before it begins ({begin})")
    clipped = [Interval(name, max(first, begin), min(last, end)) for name, first, last in intervals]
    clipped = sorted((one for one in clipped if one.begin < one.end), key=lambda one: (one.begin, -one.end))
    edges = sorted({begin, end, *(edge for one in clipped for edge in one[1:])})
    seconds: dict[str, float] = {}
    for first, last in pairwise(edges):
        inner = [one for one in clipped if one.begin <= first and last <= one.end]
        name = inner[-1].name if inner else REST
        seconds[name] = seconds.get(name, 0.0) + last - first
    rest = seconds.pop(REST, 0.0)
    return {**seconds, REST: rest}
