"""Free memory that does not depend on what else runs: ``TEST_INSTRUMENTS=steady_memory:install``.

A pool sized from the machine's free memory can be compared between two engines only if other processes leave that alone; tests run two at
a time. What the engine itself allocates still counts.
"""

import functools
import os
from typing import Any

FREE = 12 << 30
"""Bytes that are free when the engine starts."""


def install() -> None:
    import psutil

    measure = psutil.virtual_memory
    own = psutil.Process()
    before = own.memory_info().rss

    @functools.wraps(measure)
    def steady() -> Any:
        return measure()._replace(available=FREE - (own.memory_info().rss - before))

    psutil.virtual_memory = steady


def of_the_scheduler() -> None:
    """As :func:`install`, which counts what its own process allocates; here the process that asks, which holds the weights."""
    import psutil

    measure = psutil.virtual_memory
    first: dict[int, int] = {}

    @functools.wraps(measure)
    def steady() -> Any:
        own = psutil.Process(os.getpid()).memory_info().rss
        return measure()._replace(available=FREE - (own - first.setdefault(os.getpid(), own)))

    psutil.virtual_memory = steady
