"""Step times at every batch size: points from the ends of requests, cliffs, tables, plot, and the command line."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.benchmark import command, curve_report, headline, plots, records, report, step_curve
from sglang_gemma4.benchmark.plan import CURVE, ENGINE, WARM_UP, Done, Plan, task_of
from sglang_gemma4.benchmark.results import load
from sglang_gemma4.benchmark.server import graphs_of
from tests.harness.inputs import bench_synthetic

SIZES = [1, 2, 3, 4, 8, 16]


def request(finished: float, steps: int, tokens: int | None = None, prefilled: float = 100.0) -> dict[str, Any]:
    """What SGLang says of a request; without ``tokens`` one a step, and no verify steps."""
    verify = {} if tokens is None else {"spec_verify_ct": steps}
    tokens = steps + 1 if tokens is None else tokens
    return {"prefill_finished_time": prefilled, "request_finished_ts": finished, "completion_tokens": tokens, **verify}


def test_points_are_the_times_between_two_ends() -> None:
    about = [request(100.1, 10), request(100.18, 20), request(100.22, 30)]
    assert step_curve.points(about) == [[3, 10, pytest.approx(10)], [2, 10, pytest.approx(8)], [1, 10, pytest.approx(4)]]


def test_verify_steps_are_counted_not_tokens() -> None:
    about = [request(100.1, 10, tokens=29), request(100.2, 30, tokens=85)]
    assert step_curve.points(about) == [[2, 10, pytest.approx(10)], [1, 20, pytest.approx(5)]]


def test_requests_that_end_in_one_step_leave_no_batch_between_them() -> None:
    about = [request(100.1, 10), request(100.2, 20), request(100.2001, 20), request(100.25, 30)]
    assert [point[0] for point in step_curve.points(about)] == [4, 3, 1]


def test_a_time_that_did_not_pass_is_no_point() -> None:
    about = [request(100.1, 10), request(100.1, 11), request(100.15, 20)]
    assert step_curve.points(about) == [[3, 10, pytest.approx(10)], [1, 10, pytest.approx(5)]]


def test_requests_that_waited_for_others_are_no_batch() -> None:
    with pytest.raises(RuntimeError, match="batch 2 did not run as one batch: 1 requests were finished before"):
        step_curve.points([request(100.1, 10), request(100.9, 10, prefilled=100.2)])


def milliseconds(batch: int) -> float:
    """A smooth curve, computed at the captured size."""
    return 5.0 + 0.5 * next(size for size in SIZES if size >= batch)


def test_cliffs_are_where_the_time_grows_beyond_its_neighbours() -> None:
    found = curve_report.cliffs({batch: milliseconds(batch) for batch in range(1, 17)})
    assert [(cliff.before, cliff.batch) for cliff in found[:2]] == [(8, 9), (4, 5)]
    assert found[0].ratio == pytest.approx(13 / 9)
    assert found[0].around == pytest.approx(1.0)
    assert len(found) == 15


def test_a_steady_growth_is_no_cliff() -> None:
    found = curve_report.cliffs({batch: 1.2**batch for batch in range(1, 9)})
    assert all(cliff.ratio / cliff.around == pytest.approx(1) for cliff in found)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([], ""),
        ([5], "5"),
        ([1, 2], "1, 2"),
        ([*range(1, 9), *range(10, 33, 2), 40, 48, 56, 80], "1-8, 10-32 by 2, 40-56 by 8, 80"),
        ([*range(1, 81)], "1-80"),
    ],
)
def test_sizes_are_told_shortly(sizes: list[int], said: str) -> None:
    assert curve_report._ranges(sizes) == said


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with curves of two arms, the second with every size captured."""
    raw = tmp_path / records.NAME
    arms: list[dict[str, Any]] = [{"name": name, "environment": {}, "arguments": []} for name in ("package", "every")]
    records.append(raw, "header", **bench_synthetic.header(arms=arms, workloads=[], batches=[], curve=16))
    for arm, sizes in (("package", SIZES), ("every", list(range(1, 17)))):
        phases = {"prefill": 3.0, "target_verify": len(sizes) * 0.5, "draft_decode": len(sizes) * 0.25}
        graphs = {"sizes": sizes, "seconds": phases, "gb": {name: value / 10 for name, value in phases.items()}}
        records.append(raw, "start", arm=arm, round=0, process="engine", seconds=60.0, settings={}, graphs=graphs, patches={})
        for repetition in (WARM_UP, 0, 1):
            time = milliseconds if arm == "package" else lambda batch: 5.0 + 0.5 * batch
            points = [[batch, 14, time(batch) * (1 + 0.002 * repetition)] for batch in range(16, 0, -1)]
            row = {"batch": 16, "repetition": repetition, "counted": repetition >= 0, "input_tokens": 1000, "tokens_between": 40}
            records.append(raw, "curve", arm=arm, round=0, **row, seconds=2.0, points=points, accept_length=2.8)
    return tmp_path


def test_the_report_has_cliffs_costs_and_the_plot(run: Path) -> None:
    pytest.importorskip("matplotlib")
    text = report.write(run).read_text()
    assert text.startswith("package: largest cliff 1.44x at batch 8 to 9; every: largest cliff 1.0")
    assert "16 requests of 1000 prompt tokens that end one after another, 40 tokens apart" in text
    costs = "| package | 6 | 4.500 | 0.450 | 60.00 | 10.8% | 36.8% at 9 | 1-4, 8, 16 |"
    assert costs in text, "seconds and GB of verify and draft graphs, not of prefills"
    assert "| every | 16 | 12.00 | 1.200 | 60.00 | 0.0% | 0.0% at 1 | 1-16 |" in text
    assert re.search(r"\| package \| 8 to 9 \| 8 to 16 \| 9\.\d+ \| 13\.\d+ \| 1\.444 \| 1\.000 \| 1\.444 \|", text)
    assert "![step curve](step-curve.png)" in text
    assert (run / "step-curve.png").stat().st_size > 1000
    assert curve_report.curve(load(run), "package")[9] == pytest.approx(milliseconds(9) * 1.001), "the median; the warm-up is not in it"


def test_the_plot_marks_the_captured_sizes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    marked: list[list[int]] = []
    plot = Axes.plot

    def noting(axis: Axes, x: list[int], *arguments: Any, **looks: Any) -> Any:
        marked.append([x[place] for place in looks["markevery"]])
        return plot(axis, x, *arguments, **looks)

    monkeypatch.setattr(Axes, "plot", noting)
    assert plots.step_curve(load(run), run / "curve.png")
    assert marked == [SIZES, SIZES, list(range(1, 17)), list(range(1, 17))]


def test_without_a_curve_nothing_is_said(tmp_path: Path) -> None:
    found = load(bench_synthetic.write(tmp_path / "run"))
    assert (curve_report.text(found), curve_report.cliff_table(found), found.curves) == ("", "", [])
    assert "cliff" not in headline.sentence(found)
    assert "## Every batch size" not in report.markdown(found)


def test_a_curve_is_a_task_with_a_warm_up_and_is_resumed(tmp_path: Path, run: Path) -> None:
    plan = Plan("model", "model", [], tmp_path, curve=16, rounds=1, repetitions=2)
    assert plan.order(ENGINE, 0) == [(CURVE, 16, WARM_UP), (CURVE, 16, 0), (CURVE, 16, 1)]
    assert plan.header()["curve"] == 16
    lines = records.read(run / records.NAME)
    assert task_of([line for line in lines if line["kind"] == "curve"][1]) == (CURVE, 16, 0)
    from sglang_gemma4.benchmark.arms import Arm

    assert Done(lines).left(plan, Arm("package"), 0, ENGINE) == []
    assert [task[2] for task in Done(lines[:-1]).left(plan, Arm("every"), 0, ENGINE)] == [WARM_UP, 1]


@pytest.mark.parametrize(("text", "sizes"), [("1,8,32", [1, 8, 32]), ("1-4", [1, 2, 3, 4]), ("1-3,8,16-17", [1, 2, 3, 8, 16, 17])])
def test_batches_may_be_ranges(text: str, sizes: list[int]) -> None:
    assert command._sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "said"), [("8-4", "8-4 ends before it begins; write 4-8"), ("1-", "not a list"), ("-1", "not a list"), ("0-3", "less than 1")]
)
def test_a_wrong_range_is_refused(text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        command._sizes(text)


def test_a_line_for_each_pass() -> None:
    record = {"batch": 2, "repetition": 0, "counted": True, "seconds": 1.25, "points": [[2, 10, 8.0], [1, 10, 4.0]]}
    assert step_curve.said(record) == "curve of 2 1: 4.00 ms a step at batch 1, 8.00 at 2, 1.2 s"
    assert "no step" in step_curve.said({**record, "points": []})


def test_the_engine_is_asked_for_lengths_that_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class Engine:
        """Answers as SGLang's engine does, for requests that take 10 ms a step."""

        flush_cache: Callable[[], Any] = staticmethod(lambda: argparse.Namespace(success=True))

        def generate(self, input_ids: list[list[int]], sampling_params: list[dict[str, Any]]) -> list[dict[str, Any]]:
            asked.extend(sampling_params)
            lengths = [one["max_new_tokens"] for one in sampling_params]
            return [{"meta_info": request(100 + 0.01 * (length - 1), length - 1)} for length in lengths]

    found = step_curve.measure(Engine(), [[1, 2]] * 3, 5)
    assert [one["max_new_tokens"] for one in asked] == [15, 20, 25]
    assert found["points"] == [[3, 14, pytest.approx(10)], [2, 5, pytest.approx(10)], [1, 5, pytest.approx(10)]]
    assert (found["seconds"], found["accept_length"]) == (pytest.approx(0.24), None)


def test_the_last_request_must_fit_the_context(tmp_path: Path) -> None:
    from sglang_gemma4 import cli
    from sglang_gemma4.benchmark.checked_plan import plan_of

    asked = cli._parser().parse_args(["bench", "tiny-26b-a4b", "--curve", "80", "--step-tokens", "1000,40", "--out", str(tmp_path)])
    asked.server_flags = ["--context-length=4000"]
    with pytest.raises(ValueError, match=r"curve of step times.*the context is 4000"):
        plan_of(asked, tmp_path)
    asked.server_flags = ["--context-length=4400"]
    assert plan_of(asked, tmp_path).curve == 80


def test_graphs_are_read_from_what_the_server_says_of_itself() -> None:
    state = {"decode_cuda_graph_bs": [1, 2], "startup_time": {"cuda_graph": {"decode": 1.5}}, "memory_usage": {"graph": {"decode": 0.25}}}
    assert graphs_of({"internal_states": [state]}) == {"sizes": [1, 2], "seconds": {"decode": 1.5}, "gb": {"decode": 0.25}}
    for less in ({}, {"startup_time": None, "decode_cuda_graph_bs": None}):
        assert graphs_of({"internal_states": [less]}) == {"sizes": [], "seconds": {}, "gb": {}}
