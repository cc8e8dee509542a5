"""Where the time of a decode step goes: the GPU's in draft, verify and the rest, its idle time, and the host's.

SGLang's MTP workers mark their stages with the spans ``draft`` and ``draft_extend``; the target marks its own forward
``step[VERIFY …]``, which also covers the preparation of a replay. Work of a CUDA graph counts for the stage that
launched the graph.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import table

if TYPE_CHECKING:  # reports need only this module's tables
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    from sglang_gemma4.benchmark.trace import Trace

NAMES = ("draft", "verify", "other")
HOW_TO_READ = (
    "Per step, under the profiler, which slows the host down: the idle share is an upper bound. Draft, verify, other: time in which the "
    "card ran what that stage launched; idle: it ran nothing; host: the scheduler's time in its batches, which may run ahead of the GPU."
)
CALLS = 30
"""Number of host calls that a record keeps, the longest first."""
CALLS_HOW_TO_READ = (
    "Per step, under the profiler: what the scheduler's thread does from batch to batch, each without what it calls; a span's own time is "
    "the Python in it. Waits for the GPU are in cudaStreamSynchronize, cudaEventSynchronize and copies; the rest: shorter ones, and "
    "Python between spans."
)
_SPANS = {"draft": "draft", "draft_extend": "draft"}


def of_decode(trace: "Trace") -> dict[str, Any] | None:
    """Microseconds of the decode steps in a trace, all steps together; None for a trace without GPU events.

    Returns:
        ``busy``: time in which the GPU ran what a stage launched, by stage (``draft``, ``verify``, ``other``);
            ``wall``: time from the first to the last of this work; ``idle``: the part of it in which the GPU ran
            nothing; ``host``: time the scheduler spent in its batches (it may run ahead of the GPU); ``loop`` and
            ``calls``: time from the first batch to the last, and what the scheduler's thread did in it
            (:meth:`Trace.host_calls`); ``steps``.

    Raises:
        ValueError: see :meth:`Trace.kernels`.
    """
    if trace.clock != "gpu":
        return None
    occupied = trace.occupied("decode")
    occupied["stage"] = _stage_of(trace.events, occupied["launched"].to_numpy())
    busy, idle = occupied.groupby("stage")["added"].sum(), float(occupied["idle"].sum())
    steps = [step for step in trace.steps if step.stage == "decode"]
    loop, listed = trace.host_calls("decode")
    return {
        "busy": {name: round(float(busy.get(name, 0.0)), 3) for name in NAMES},
        "idle": round(idle, 3),
        "wall": round(idle + float(busy.sum()), 3),
        "host": round(sum(step.end - step.start for step in steps), 3),
        "loop": loop,
        "calls": listed[:CALLS],
        "steps": len(steps),
    }


def _stage_of(events: "pd.DataFrame", moments: Any) -> list[str]:
    """The stage in whose span each launch happens; stages do not nest."""
    from sglang_gemma4.benchmark.trace import holding

    marks = events[events["cat"] == "user_annotation"].sort_values("ts")
    verify = marks["name"].str.startswith("step[VERIFY")
    marks = marks.assign(stage=marks["name"].map(_SPANS).where(~verify, "verify")).dropna(subset="stage")
    stages = [*marks["stage"], "other"]
    return [stages[at] for at in holding(marks, moments)]


def rows(records: Sequence[Record]) -> str:
    """A table of the ``profile`` records that have ``stages``, per step, by batch; empty if there are none."""
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


def calls(records: Sequence[Record]) -> list[tuple[str, str]]:
    """A title and a table of what the host did, per step, for each ``profile`` record that has it."""
    found = []
    for record in records:
        taken = record.get("stages") or {}
        if listed := taken.get("calls"):
            steps, rest = taken["steps"], taken["loop"] - sum(row["microseconds"] for row in listed)
            lines = [[f"`{row['name']}`", f"{row['calls'] / steps:,.1f}", f"{row['microseconds'] / steps:,.1f}"] for row in listed]
            lines.append(["the rest", "", f"{rest / steps:,.1f}"])
            found.append(
                (f"{record['arm']}, batch {record['batch']}", table(["call, operator or span", "calls/step", "own µs/step"], lines, 2))
            )
    return found
