"""How many Triton kernels this process compiled, how long that took, and how many it found in Triton's cache on disk."""

from typing import Any

_counts: dict[str, Any] = {"compiled": 0, "found": 0, "seconds": 0.0}


def counts() -> dict[str, Any]:
    """``compiled`` and ``found`` kernels, and the ``seconds`` that compiling took."""
    return dict(_counts)


def _count(*, times: Any, cache_hit: bool, **_others: Any) -> None:
    if cache_hit:
        _counts["found"] += 1
    else:
        _counts["compiled"] += 1
        _counts["seconds"] += times.total / 1e6  # Triton counts microseconds


def watch() -> None:
    """Count from now on, beside whoever listens already; once a process."""
    from triton import knobs

    before = knobs.compilation.listener
    if getattr(before, "counts_kernels", False):
        return

    def listen(**said: Any) -> None:
        _count(**said)
        if before is not None:
            before(**said)

    listen.counts_kernels = True  # type: ignore[attr-defined]
    knobs.compilation.listener = listen
