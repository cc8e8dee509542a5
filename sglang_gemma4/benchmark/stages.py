"""Where the time of a decode step goes: the card's in draft, verify and the rest, its idle time, and the host's.

SGLang's MTP workers mark their stages with the spans ``draft`` and ``draft_extend``; the target marks its own forward ``step[VERIFY …]``,
which also covers the preparation of a replay. What a CUDA graph runs counts for the stage that launched the graph.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import table
from sglang_gemma4.benchmark.trace import Trace, occupied

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
    idle = 0.0
    for one, waited, added in occupied(trace.timed("decode")):
        idle += waited
        busy[_stage_of(one.launched, spans, starts)] += added
    steps = [step for step in trace.steps if step.stage == "decode"]
    return {
        "busy": {name: round(spent, 3) for name, spent in busy.items()},
        "idle": round(idle, 3),
        "wall": round(idle + sum(busy.values()), 3),
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


def rows(records: Sequence[Record]) -> str:
    """A table of the ``profile`` records that carry ``stages``, per step, by batch; empty where none does."""
    found = []
    for record in records:
        if taken := record.get("stages"):
            spent = [taken["wall"], *(taken["busy"][name] for name in NAMES), taken["idle"], taken["host"]]
            cells = [f"{microseconds / taken['steps'] / 1000:.3f}" for microseconds in spent]
            found.append([str(record["batch"]), record["arm"], *cells[:-1], f"{taken['idle'] / taken['wall']:.1%}", cells[-1]])
    arms = list(dict.fromkeys(row[1] for row in found))
    found.sort(key=lambda row: (int(row[0]), arms.index(row[1])))
    columns = ["batch", "arm", "wall ms", *(f"{name} ms" for name in NAMES), "idle ms", "idle share", "host ms"]
    return table(columns, found, 7) if found else ""
