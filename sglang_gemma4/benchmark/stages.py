"""Where the time of a decode step goes: the card's in draft, verify and the rest, its idle time, and the host's.

SGLang's MTP workers mark their stages with the spans ``draft`` and ``draft_extend``; the target marks its own forward ``step[VERIFY …]``,
which also covers the preparation of a replay. What a CUDA graph runs counts for the stage that launched the graph.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sglang_gemma4.benchmark.trace import Trace

NAMES = ("draft", "verify", "other")
HOW_TO_READ = (
    "Per step, under the profiler, which slows the host down: the idle share is an upper bound. Draft, verify, other: time in which the "
    "card ran what that stage launched; idle: it ran nothing; host: the scheduler's time in its batches, which may run ahead of the card."
)
_SPANS = {"draft": "draft", "draft_extend": "draft"}


def of_decode(trace: Trace) -> dict[str, Any] | None:
    """Microseconds of the decode steps in a trace, all steps together; None for a trace without GPU events.

    Returns:
        ``busy``: by stage (``draft``, ``verify``, ``other``), time in which the card ran what the stage launched; ``idle``: time from the
        first to the last of all these in which it ran nothing; ``wall``: that whole time; ``host``: time the scheduler spent in its
        batches (it may run ahead of the card); ``steps``.

    Raises:
        ValueError: see :meth:`Trace.kernels`.
    """
    if trace.clock != "gpu":
        return None
    spans = _stage_spans(trace)
    starts = [start for start, _, _ in spans]
    busy: dict[str, float] = dict.fromkeys(NAMES, 0.0)
    idle, until, began = 0.0, None, 0.0
    for one in sorted(trace.timed("decode"), key=lambda one: one.start):
        end = one.start + one.microseconds
        if until is None:
            began = until = one.start
        idle += max(0.0, one.start - until)
        busy[_stage_of(one.launched, spans, starts)] += max(0.0, end - max(one.start, until))
        until = max(until, end)
    steps = [step for step in trace.steps if step.stage == "decode"]
    return {
        "busy": {name: round(spent, 3) for name, spent in busy.items()},
        "idle": round(idle, 3),
        "wall": round((until or 0.0) - began, 3),
        "host": round(sum(step.end - step.start for step in steps), 3),
        "steps": len(steps),
    }


def _stage_spans(trace: Trace) -> list[tuple[float, float, str]]:
    found = []
    for event in trace.events:
        if event.get("cat") != "user_annotation":
            continue
        name = str(event["name"])
        stage = _SPANS.get(name) or ("verify" if name.startswith("step[VERIFY") else None)
        if stage:
            found.append((event["ts"], event["ts"] + event["dur"], stage))
    return sorted(found)


def _stage_of(moment: float, spans: Sequence[tuple[float, float, str]], starts: Sequence[float]) -> str:
    """The stage whose span a launch lies in; stages do not nest."""
    where = bisect_right(starts, moment) - 1
    return spans[where][2] if where >= 0 and moment <= spans[where][1] else "other"


def rows(records: Sequence[dict[str, Any]]) -> list[str]:
    """A table of the ``profile`` records that carry ``stages``, per step; no lines where none does."""
    by_place: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if record.get("stages"):
            by_place[record["arm"], record["batch"]].append(record["stages"])
    if not by_place:
        return []
    lines = [
        "| batch | arm | wall ms | draft ms | verify ms | other ms | idle ms | idle share | host ms |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (arm, batch), taken in sorted(by_place.items(), key=lambda item: (item[0][1],)):
        for stages in taken:
            n = 1000 * stages["steps"]
            cells = [stages["wall"] / n, *(stages["busy"][name] / n for name in NAMES), stages["idle"] / n]
            lines.append(
                f"| {batch} | {arm} | "
                + " | ".join(f"{cell:.3f}" for cell in cells)
                + f" | {100 * stages['idle'] / stages['wall']:.1f}% | {stages['host'] / n:.3f} |"
            )
    return lines
