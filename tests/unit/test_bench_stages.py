"""Stages of a decode step: whose kernels the card ran, and when it ran none."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.benchmark import stages
from sglang_gemma4.benchmark.trace import Trace


def span(name: str, start: float, duration: float, cat: str = "user_annotation", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": args}


def one_step(path: Path, at: float = 0.0) -> Path:
    """A verify step of 100 µs on the host; its kernels run with a gap of 5 and one of 10 µs."""
    launches = {1: 5, 2: 25, 3: 50, 4: 70, 5: 90}  # correlation: moment
    kernels = {1: (110, 20), 2: (130, 10), 3: (145, 30), 4: (175, 5), 5: (190, 4)}
    events = [
        span("scheduler.run_batch", at, 100),
        span("draft", at + 2, 18),
        span("step[VERIFY bs=2]", at + 40, 40),
        span("draft_extend", at + 85, 10),
        *(span("cudaGraphLaunch", at + moment, 1, "cuda_runtime", correlation=number) for number, moment in launches.items()),
        *(span(f"kernel{number}", at + start, length, "kernel", correlation=number) for number, (start, length) in kernels.items()),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_the_card_s_time_goes_to_the_stage_that_launched_it(tmp_path: Path) -> None:
    found = stages.of_decode(Trace(one_step(tmp_path / "t.json")))
    assert found is not None
    assert found.pop("loop") == 100
    del found["calls"]
    assert found == {"busy": {"draft": 24, "verify": 35, "other": 10}, "idle": 15, "wall": 84, "host": 100, "steps": 1}
    assert found["idle"] + sum(found["busy"].values()) == found["wall"]


def test_the_host_s_time_goes_to_the_calls_and_the_python_around_them(tmp_path: Path) -> None:
    path = one_step(tmp_path / "t.json")
    events = json.loads(path.read_text())["traceEvents"]
    elsewhere = [{**span("aten::copy_", 10, 50, "cpu_op"), "tid": 2}, span("scheduler.idle", 200, 50), span("aten::add", 210, 5, "cpu_op")]
    path.write_text(json.dumps({"traceEvents": [*events, *elsewhere]}))
    found = stages.of_decode(Trace(path))
    assert found is not None
    calls = {row["name"]: (row["microseconds"], row["calls"]) for row in found["calls"]}
    assert calls == {
        "step[VERIFY]": (38, 1), "scheduler.run_batch": (31, 1), "draft": (17, 1), "draft_extend": (9, 1), "cudaGraphLaunch": (5, 5),
    }  # fmt: skip
    assert sum(spent for spent, _ in calls.values()) == found["loop"]
    ((title, lines),) = stages.calls([{"arm": "x", "batch": 4, "stages": found}, {"arm": "y", "batch": 4}])
    assert title == "x, batch 4"
    assert lines.splitlines()[2] == "| `step[VERIFY]` | 1.0 | 38.0 |"
    assert lines.splitlines()[-1] == "| the rest |  | 0.0 |"


def test_operators_of_a_cpu_trace_have_no_stages(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"traceEvents": [span("step[DECODE bs=1]", 0, 5), span("aten::mm", 1, 2, "cpu_op")]}))
    assert stages.of_decode(Trace(path)) is None


def test_the_table_is_per_step(tmp_path: Path) -> None:
    found = stages.of_decode(Trace(one_step(tmp_path / "t.json")))
    lines = stages.rows(
        [{"arm": "stock", "batch": 8, "stages": found}, {"arm": "stock", "batch": 8, "stages": None}, {"arm": "x", "batch": 1}]
    )
    assert lines.splitlines()[2:] == ["| 8 | stock | 0.084 | 0.024 | 0.035 | 0.010 | 0.015 | 17.9% | 0.100 |"]
    assert stages.rows([]) == ""


def test_a_trace_without_a_decode_step_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [span("step[EXTEND bs=1 toks=4]", 0, 5), span("k", 1, 2, "kernel", correlation=1)]}))
    with pytest.raises(ValueError, match="no 'decode' step but prefill"):
        stages.of_decode(Trace(path))
