"""How the parts of a start add up, and what is said of them."""

import functools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.start import kernels, start_times, table, times
from sglang_gemma4.start.times import REST, Interval
from tests.harness.gpu_compiler import compiling_for


@pytest.fixture(autouse=True)
def nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "_intervals", [])
    monkeypatch.setattr(table, "_scheduler", {})
    monkeypatch.setattr(table, "_ready", {})


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([], {REST: 10.0}),
        ([Interval("weights", 2, 5)], {"weights": 3.0, REST: 7.0}),
        (
            [Interval("graphs", 1, 9), Interval("compile", 2, 4), Interval("measure", 3, 4)],
            {"graphs": 6, "compile": 1, "measure": 1, REST: 2},
        ),
        ([Interval("wait", 0, 10), Interval("weights", 4, 6)], {"wait": 8.0, "weights": 2.0, REST: 0.0}),  # two processes
        ([Interval("outer", 1, 3), Interval("inner", 1, 2)], {"inner": 1.0, "outer": 1.0, REST: 8.0}),
        ([Interval("pool", 1, 2), Interval("pool", 3, 4)], {"pool": 2.0, REST: 8.0}),
        ([Interval("early", -5, 1), Interval("late", 9, 20), Interval("outside", 11, 12)], {"early": 1.0, "late": 1.0, REST: 8.0}),
        ([Interval("one", 1, 5), Interval("other", 3, 7)], {"one": 2.0, "other": 4.0, REST: 4.0}),  # neither holds the other
    ],
)
def test_every_second_belongs_to_one_part(intervals: list[Interval], seconds: dict[str, float]) -> None:
    found = times.by_part(intervals, 0, 10)
    assert found == pytest.approx(seconds)
    assert sum(found.values()) == pytest.approx(10)
    assert list(found)[-1] == REST


def test_a_start_does_not_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="cannot end"):
        times.by_part([], 2, 1)


def test_a_part_that_raises_is_recorded_too() -> None:
    with pytest.raises(KeyError), times.part("weights"):
        raise KeyError
    assert [one.name for one in times.recorded()] == ["weights"]


def test_the_table_joins_both_processes() -> None:
    times.record("graphs", 20, 50)
    times.record("compile", 30, 35)
    told = table.of_scheduler()
    times.forget_parent()
    assert times.recorded() == [], "they ended before this process began"
    times.record("imports", 0, 10)
    table.take_scheduler([{table.SCHEDULER: told | {"kernels": {"compiled": 3, "found": 40, "seconds": 4.0}}}])
    found = table.finish(0, 60)
    assert found == table.data()
    assert found["parts"] == [["imports", 10], ["graphs", 25], ["compile", 5], [REST, 20]]
    said = table.lines(found)
    assert said[0] == "ready after 60.0 s"
    assert said[2] == "     25.0 s  42 %  graphs"
    assert said[-1] == "  Triton compiled 3 kernels in 4.0 s, found 40 on disk"


@pytest.mark.parametrize("infos", [[], [{}], [{"status": "ready"}]])
def test_a_server_whose_scheduler_tells_nothing(infos: list[dict[str, str]]) -> None:
    table.take_scheduler(infos)
    assert table.finish(0, 4)["parts"] == [[REST, 4]]
    assert table.lines(table.data()) == ["ready after 4.0 s", "      4.0 s 100 %  rest"]


def test_this_process_began_before_now() -> None:
    assert 0 < time.time() - times.process_began() < 7 * 24 * 3600


def test_kernels_are_counted_beside_another_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    heard: list[bool] = []
    monkeypatch.setattr(kernels, "_counts", dict.fromkeys(kernels.counts(), 0))
    monkeypatch.setattr(knobs.compilation, "listener", lambda **said: heard.append(said["cache_hit"]))
    kernels.watch()
    kernels.watch()
    said: dict[str, Any] = {"src": None, "metadata": {}, "metadata_group": {}, "times": SimpleNamespace(total=2_500_000)}
    for hit in (False, True, True):
        knobs.compilation.listener(**said, cache_hit=hit)  # type: ignore[misc]
    with times.part("graphs"), times.part("captures"):
        knobs.compilation.listener(**said, cache_hit=False)  # type: ignore[misc]
    heard.pop()
    assert [one.name for one in times.recorded()] == ["rest: Triton compiles", "captures: Triton compiles", "captures", "graphs"]
    assert times.recorded()[1].end - times.recorded()[1].begin == pytest.approx(2.5)
    assert kernels.counts() == {"compiled": 2, "found": 2, "seconds": 5.0, "while serving": 0}
    assert heard == [False, True, True]


def test_what_compiles_while_requests_wait_is_said_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton compiles for a GPU that is not here: a kernel in the start, and its next shape behind the warm-up."""
    from prometheus_client import CollectorRegistry, Counter
    from triton import knobs

    from sglang_gemma4.diagnostics import patch_metrics, status
    from sglang_gemma4.kernels.heads import head_argmax

    def launch(parts: int) -> None:
        with pytest.MonkeyPatch.context() as patch, compiling_for(90, lambda *_: None, patch):
            head_argmax.join_pairs(torch.empty(parts, 2, 5, dtype=torch.float32))

    registry, scheduler = CollectorRegistry(), SimpleNamespace(forward_ct=0)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name, empty in (("_counts", dict.fromkeys(kernels.counts(), 0)), ("_steps", []), ("_heard", [])):
        monkeypatch.setattr(kernels, name, empty)
    monkeypatch.setattr(knobs.compilation, "listener", None)
    monkeypatch.setattr(status, "rows", list)
    kernels.watch()
    start_times.hand_over({}, scheduler)
    patch_metrics.publish("scheduler", {"model_name": "m"}, lambda **_: None, functools.partial(Counter, registry=registry))
    launch(17)
    scheduler.forward_ct = kernels.WARM_UP_STEPS
    launch(33)
    assert kernels.counts() | {"seconds": 0} == {"compiled": 2, "found": 0, "seconds": 0, "while serving": 0}
    scheduler.forward_ct += 1
    with caplog.at_level("WARNING", "sglang_gemma4"):
        launch(65)
    assert kernels.counts()["while serving"] == 1
    assert registry.get_sample_value(f"{patch_metrics.COMPILED}_total", {"model_name": "m"}) == 1
    assert "_join_kernel was compiled while requests waited" in caplog.text


def test_a_table_that_cannot_be_made_costs_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(start_times, "note", lambda name, message: heard.append(message))
    monkeypatch.setattr(times, "process_began", lambda: 1 / 0)
    assert start_times.resolve(lambda args: args, "resolved") == "resolved"
    assert start_times.begin_scheduler(None) is None
    assert start_times.take_over(None, None, 0.0) is None
    assert start_times.say(None) is None
    assert [line.split(":")[0] for line in heard] == ["begin_launching", "begin_scheduler", "take_over", "say"]
