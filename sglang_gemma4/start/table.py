"""The start table: how long a server took until it was ready, for the log, /server_info and ``doctor --url``."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang_gemma4.start import bytecode, kernels, times
from sglang_gemma4.start.times import Interval

SCHEDULER = "sglang_gemma4_start"
"""Key under which a ready scheduler passes its intervals and kernel counts to the launching process."""

SHOWN = 0.05
"""Seconds; shorter parts have no line in the log."""

_scheduler: dict[str, Any] = {}
_ready: dict[str, Any] = {}


def of_scheduler() -> dict[str, Any]:
    """In a scheduler: its intervals and what Triton compiled, for the launching process."""
    return {"intervals": [list(one) for one in times.recorded()], "kernels": kernels.counts()}


def take_scheduler(infos: Sequence[Mapping[str, Any]]) -> None:
    """In the launching process: keep the first rank's part (a data-parallel controller passes none on)."""
    _scheduler.clear()
    _scheduler.update(infos[0].get(SCHEDULER, {}) if infos else {})


def finish(began: float | None = None, ended: float | None = None) -> dict[str, Any]:
    """In the launching process, when the server is ready: make the table of this start.

    Returns:
        ``seconds`` in all, ``parts`` as ``[name, seconds]`` that add up to them, ``kernels`` as :func:`kernels.counts` gives them,
        ``bytecode`` as :func:`bytecode.reason_against` does.
    """
    began = times.process_began() if began is None else began
    ended = time.time() if ended is None else ended
    intervals: Iterable[Interval] = [*times.recorded(), *(Interval(*one) for one in _scheduler.get("intervals", ()))]
    parts = [[name, round(seconds, 3)] for name, seconds in times.by_part(intervals, began, ended).items()]
    counted = dict(_scheduler.get("kernels", {}))
    _ready.update(seconds=round(ended - began, 3), parts=parts, kernels=counted, bytecode=bytecode.reason_against())
    return dict(_ready)


def data() -> dict[str, Any]:
    """The table of this process's server; empty before it is ready."""
    return dict(_ready)


def lines(found: Mapping[str, Any]) -> list[str]:
    """A table from :func:`finish` as lines: the total, seconds by part, what Triton and Python compiled."""
    total = found["seconds"]
    text = [f"ready after {total:.1f} s"]
    text += [
        f"  {seconds:7.1f} s {100 * seconds / max(total, 1e-9):3.0f} %  {name}" for name, seconds in found["parts"] if seconds >= SHOWN
    ]
    counted = found.get("kernels") or {}
    if counted.get("compiled") or counted.get("found"):
        text.append(f"  Triton compiled {counted['compiled']} kernels in {counted['seconds']:.1f} s, found {counted['found']} on disk")
    if found.get("bytecode"):
        text.append(f"  {found['bytecode']}")
    return text
