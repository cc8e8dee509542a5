"""How many Triton kernels this process compiled, how long that took, and how many it found in Triton's cache on disk."""

import time
from collections.abc import Callable
from typing import Any

from sglang_gemma4.start.times import innermost, record

_counts: dict[str, Any] = {"compiled": 0, "found": 0, "seconds": 0.0}


def counts() -> dict[str, Any]:
    """``compiled`` and ``found`` kernels, and the ``seconds`` that compiling took."""
    return dict(_counts)


def _count(*, times: Any, cache_hit: bool, **_others: Any) -> None:
    if cache_hit:
        _counts["found"] += 1
    else:
        _counts["compiled"] += 1
        seconds = times.total / 1e6  # Triton counts microseconds
        _counts["seconds"] += seconds
        now = time.time()
        record(f"{innermost()}: Triton compiles", now - seconds, now)


def watch(*others: Callable[..., None]) -> None:
    """Count from now on, beside whoever listens already, and tell ``others`` of each compilation too."""
    from triton import knobs

    listeners = [each for each in (knobs.compilation.listener, _count, *others) if each is not None]
    if getattr(knobs.compilation.listener, "counts", False):
        listeners.remove(_count)

    def listen(**said: Any) -> None:
        for each in listeners:
            each(**said)

    listen.counts = True  # type: ignore[attr-defined]
    knobs.compilation.listener = listen
