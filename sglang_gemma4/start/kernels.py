"""How many Triton kernels this process compiled, how long that took, and how many it found in Triton's cache on disk.

A kernel that is compiled after the start makes every running request wait, so each is logged and counted by itself.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from sglang_gemma4.start.times import innermost, record

logger = logging.getLogger("sglang_gemma4")
WARM_UP_STEPS = 16
"""Forwards that SGLang's warm-up request may take; after them a scheduler counts as serving."""
MOST_SAID = 20
_counts: dict[str, Any] = {"compiled": 0, "found": 0, "seconds": 0.0, "while serving": 0}
_steps: list[Callable[[], int]] = []
_heard: list[Callable[[], None]] = []


def counts() -> dict[str, Any]:
    """``compiled`` and ``found`` kernels, the ``seconds`` that compiling took, and those compiled ``while serving``."""
    return dict(_counts)


def serves(steps: Callable[[], int]) -> None:
    """From now on kernels may be compiled while requests run; ``steps`` returns how many forwards have begun."""
    _steps[:] = [steps]


def hear(told: Callable[[], None]) -> None:
    """Call ``told`` for each kernel that is compiled while requests run."""
    _heard.append(told)


def _count(*, times: Any, cache_hit: bool, src: Any = None, **_others: Any) -> None:
    if cache_hit:
        _counts["found"] += 1
        return
    _counts["compiled"] += 1
    seconds = times.total / 1e6  # Triton counts microseconds
    _counts["seconds"] += seconds
    if _steps and _steps[0]() > WARM_UP_STEPS:
        _while_serving(getattr(src, "name", "a kernel"), seconds)
        return
    now = time.time()
    record(f"{innermost()}: Triton compiles", now - seconds, now)


def _while_serving(name: str, seconds: float) -> None:
    _counts["while serving"] += 1
    for told in _heard:
        told()
    number = _counts["while serving"]
    if number <= MOST_SAID:
        last = "; no more of them are said" if number == MOST_SAID else ""
        logger.warning("sglang-gemma4: %s was compiled while requests waited, %.1f s (%d since the start)%s", name, seconds, number, last)


def is_watching() -> bool:
    """Whether compilations of this process are counted: not with the part ``start_times`` off."""
    from triton import knobs

    return bool(getattr(knobs.compilation.listener, "counts", False))


def watch(*others: Callable[..., None]) -> None:
    """Start counting, in addition to any present listener, and tell ``others`` of each compilation too."""
    from triton import knobs

    listeners = [each for each in (knobs.compilation.listener, _count, *others) if each is not None]
    if is_watching():
        listeners.remove(_count)

    def listen(**said: Any) -> None:
        for each in listeners:
            each(**said)

    listen.counts = True  # type: ignore[attr-defined]
    knobs.compilation.listener = listen
