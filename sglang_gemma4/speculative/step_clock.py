"""When steps end: as the host reads their results, or as the card says by an event behind each step's forward.

A host that launches a long eager prefill reads the step before late, and the step after then seems short: 8,192 tokens of 26B-A4B in 4 bits
had seemed to take an H200 25 ms, where their products alone need 64 at its best rate (``runs/2026-11-29-26b-h200-int4-chunks``). By the
card's clock a step takes from the end of the one before it to its own, whatever the host does meanwhile.
"""

import time
from typing import Any

import torch


class CardClock:
    """Seconds of a card's stream, from the first mark on."""

    def __init__(self) -> None:
        self._last: Any = None
        self._now = 0.0

    def mark(self, stream: Any) -> Any:
        """An event behind all that the stream was given."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def at(self, event: Any) -> float:
        """The time of an event of :meth:`mark`, in the order of those; waits for it."""
        event.synchronize()
        if self._last is not None:
            self._now += self._last.elapsed_time(event) / 1000
        self._last = event
        return self._now


_clock: CardClock | None = None


def use_card(_result: None, scheduler: Any) -> None:
    """After ``Scheduler.init_overlap``."""
    global _clock
    _clock = CardClock() if str(scheduler.device).startswith("cuda") else None


def by_card() -> bool:
    """Whether this process's steps end when the card says so."""
    return _clock is not None


def mark(scheduler: Any, result: Any) -> None:
    """After a step's launch, whose ``result`` is read later."""
    if _clock is not None:
        result.end_of_step = _clock.mark(scheduler.forward_stream if scheduler.enable_overlap else None)


def ended(result: Any) -> float:
    """Seconds, by whichever clock, when the step of a ``result`` that was just read ended."""
    return time.monotonic() if _clock is None else _clock.at(result.end_of_step)
