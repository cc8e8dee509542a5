"""When steps end: as the host reads their results, or by the GPU's clock, from an event after each step's forward.

A host that launches a long eager prefill reads the result of the step before late, and the step after then seems
short. 8,192 tokens of 26B-A4B in 4 bits had seemed to take an H200 less than half of what their GEMMs need
(``runs/2026-11-29-26b-h200-int4-chunks``). By the GPU's clock a step lasts from the end of the previous step to its
own, whatever the host does meanwhile.
"""

import time
from typing import Any

import torch


class CardClock:
    """Seconds on a GPU stream since the first mark."""

    def __init__(self) -> None:
        self._last: Any = None
        self._now = 0.0

    def mark(self, stream: Any) -> Any:
        """Record and return an event after all work queued on ``stream``."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def at(self, event: Any) -> float:
        """The time of an event of :meth:`mark`; events are passed in the order they were recorded. Waits for the
        event."""
        event.synchronize()
        if self._last is not None:
            self._now += self._last.elapsed_time(event) / 1000
        self._last = event
        return self._now


_clock: CardClock | None = None


def use_card(_result: None, scheduler: Any) -> None:
    """After ``Scheduler.init_overlap``: time steps by the GPU's clock where it has one."""
    global _clock
    _clock = CardClock() if str(scheduler.device).startswith("cuda") else None


def by_card() -> bool:
    """Whether this process times its steps by the GPU's clock."""
    return _clock is not None


def mark(scheduler: Any, result: Any) -> None:
    """Mark the end of a step after its launch; ``result`` is read later."""
    if _clock is not None:
        result.end_of_step = _clock.mark(scheduler.forward_stream if scheduler.enable_overlap else None)


def ended(result: Any) -> float:
    """Seconds at which the step of a ``result`` that was just read ended, by whichever clock is in use."""
    return time.monotonic() if _clock is None else _clock.at(result.end_of_step)
