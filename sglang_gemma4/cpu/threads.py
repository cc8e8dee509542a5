"""How many OpenMP threads the CPU engine takes: as many as there are cores that nothing else uses.

At each operation OpenMP's threads wait for each other. With one thread more than free cores, every operation waits
for the scheduler's next turn: a small model's answer took 31 s instead of 1.7 s.
"""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

CORES = Path("/proc/stat")
GROUPS = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
LOOKED = 0.2
"""Seconds over which idle time is measured. A load average would still count a server that was stopped a minute ago."""
_IDLE = slice(3, 5)
"""Of a core's time counters, those for idling and for waiting for a disk."""


def choose(cores: int, free: float, quota: float = math.inf) -> int:
    """The number of threads, 1 or more.

    Args:
        cores: number of cores that this process may run on.
        free: idle time of these cores, in cores.
        quota: CPU time that the container may use, in cores.
    """
    return max(1, math.floor(min(cores, quota, free + 0.5)))


def number() -> int:
    """The number of threads for this process at the machine's current load; takes ``LOOKED`` seconds."""
    before = times()
    time.sleep(LOOKED)
    return choose(cores(), idle(before, times(), os.sched_getaffinity(0)), quota())


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def times(path: Path = CORES) -> dict[int, list[int]]:
    """Linux's time counters by core; empty if the system has no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
        return {int(words[0][3:]): list(map(int, words[1:])) for words in lines if words and words[0][:3] == "cpu" and words[0] != "cpu"}
    except (OSError, ValueError):
        return {}


def idle(before: dict[int, list[int]], after: dict[int, list[int]], mine: set[int]) -> float:
    """How many of the cores ``mine`` were idle between two readings; a core without readings counts as idle."""
    free = 0.0
    for core in mine:
        spent = [now - past for now, past in zip(after.get(core, ()), before.get(core, ()), strict=False)][:8]  # the rest is in the first
        total = sum(spent)
        free += sum(spent[_IDLE]) / total if total > 0 else 1.0
    return free


def quota(root: Path = ROOT, groups: Path = GROUPS) -> float:
    """CPU time, in cores, that the control groups (v1 or v2) and their parents allow; infinite without a limit."""
    return min((_limit(folder) for folder in _folders(root, groups)), default=math.inf)


def _folders(root: Path, groups: Path) -> Iterator[Path]:
    yield from (root, root / "cpu")  # in a container these are its own groups
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if not controllers or "cpu" in controllers.split(","):
            base = root / "cpu" if controllers else root
            folder = base / path.strip("/")
            yield folder
            yield from (above for above in folder.parents if base in above.parents)


def _limit(folder: Path) -> float:
    """A control group's own limit, in cores."""
    try:
        most, _, period = (folder / "cpu.max").read_text().strip().partition(" ")
    except OSError:
        try:
            most, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return math.inf
    try:
        return math.inf if most in ("max", "-1") else int(most) / int(period)
    except (ValueError, ZeroDivisionError):
        return math.inf


def said(threads: int) -> str:
    """A line for the log: how many threads there are, and what sets their number."""
    limit = quota()
    share = "" if math.isinf(limit) else f" and a quota of {limit:g}"
    return (
        f"CPU engine: {threads} OpenMP thread{'s' if threads > 1 else ''}, with {cores()} cores to run on{share}; OMP_NUM_THREADS sets "
        "another number than that of the cores that are idle at the start"
    )
