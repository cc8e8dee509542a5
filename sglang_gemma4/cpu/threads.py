"""How many OpenMP threads the CPU engine takes: as many as there are cores that nothing else uses.

At each operation OpenMP's threads wait for each other, so with one thread more than free cores every operation waits for the scheduler's
next turn: a small model's answer took 31 s in place of 1.7 s.
"""

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container's share of the processor is written: microseconds of each period, or max."""


def choose(cores: int, machine: int, load: float, quota: float = math.inf) -> int:
    """The number of threads, 1 or more.

    Args:
        cores: that this process may run on.
        machine: cores of the machine.
        load: the machine's load average of the last minute: threads that ran or waited for a core.
        quota: cores' worth of time that the container may use.
    """
    return max(1, math.floor(min(cores, quota, machine - load + 0.5)))


def number() -> int:
    """The number of threads for this process, as the machine is now."""
    return choose(cores(), os.cpu_count() or 1, load(), quota())


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def load() -> float:
    """The load average of the last minute; 0 where the system tells none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def quota(path: Path = QUOTA) -> float:
    """Cores' worth of time that a container may use; infinite outside one, or without a limit."""
    try:
        most, _, period = path.read_text().strip().partition(" ")
        return math.inf if most == "max" else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def said(threads: int) -> str:
    """A line for the log: how many threads there are, and by what they are chosen."""
    limit = quota()
    share = "" if math.isinf(limit) else f", a quota of {limit:g}"
    return (
        f"CPU engine: {threads} OpenMP thread{'s' if threads > 1 else ''}, with {cores()} cores to run on{share} and a load average of "
        f"{load():.1f}; set OMP_NUM_THREADS for another number"
    )
