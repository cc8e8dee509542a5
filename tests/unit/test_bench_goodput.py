"""What a load's passes say: percentiles, gaps, goodput, and the report of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.benchmark import latency, plots, records, report, workloads
from sglang_gemma4.benchmark.results import load
from tests.harness.inputs import bench_synthetic


def stream(sent: float, *events: tuple[float, int], error: str = "", at: float | None = None) -> dict[str, Any]:
    return {"sent": sent, "at": at, "asked": 0, "events": list(events), "error": error}


def test_a_gap_counts_once_and_a_token_its_share() -> None:
    streams = [stream(0.0, (0.1, 1), (0.14, 4), (0.15, 1), at=0.0), stream(1.0, (0.2, 2), at=0.5), stream(0.0, error="no", at=0.0)]
    row = latency.measured({"duration": 2.0, "input_lens": [10, 20, 30]}, streams, 3.0)
    assert (row["completed"], row["failed"], row["errors"]) == (2, 1, ["no"])
    assert (row["output_tokens"], row["output_throughput"], row["input_throughput"]) == (8, 4.0, 30.0)
    assert row["ttft_ms"] == [100.0, 200.0]
    assert row["tpot_ms"] == pytest.approx([10.0]), "a request of one event has no time per token"
    assert row["itl_ms"] == {"p50": 25.0, "p90": 37.0, "p99": 39.7, "mean": 25.0, "max": 40.0, "count": 2}
    assert row["token_itl_ms"] == {"p50": 10.0, "p90": 10.0, "p99": 10.0, "mean": 10.0, "max": 10.0, "count": 5}
    assert row["tokens_per_event"] == 2.5
    assert (row["rate"], row["late_ms"]) == (3.0, 490.0), "the second request was sent half a second late"
    assert "rate" not in latency.measured({"duration": 2.0, "input_lens": []}, streams, None)


def test_nothing_generated_is_no_latency() -> None:
    row = latency.measured({"duration": 2.0, "input_lens": []}, [stream(0.0, error="no", at=0.0)], 1.0)
    assert (row["completed"], row["output_throughput"], row["ttft_ms"]) == (0, 0.0, [])
    assert "itl_ms" not in row


def test_gaps_while_another_request_is_admitted_are_told_apart() -> None:
    running = stream(0.0, (0.1, 1), (0.2, 1), (0.3, 1), (0.6, 1), (0.7, 1))
    admitted = stream(0.35, (0.2, 1))  # waits from 0.35 to 0.55
    row = latency.measured({"duration": 1.0, "input_lens": []}, [running, admitted], None)
    assert (row["admitting_itl_ms"]["count"], row["admitting_itl_ms"]["max"]) == (1, 300.0)
    assert (row["pure_itl_ms"]["count"], row["pure_itl_ms"]["max"]) == (3, 100.0)
    refused = stream(0.12, (0.05, 1), error="cut short")
    row = latency.measured({"duration": 1.0, "input_lens": []}, [running, admitted, refused], None)
    assert row["admitting_itl_ms"]["count"] == 2, "what failed was admitted too"


def run(folder: Path, passes: dict[str, dict[float, Any]], rates: tuple[float, ...] = (1, 2, 4), **header: Any) -> Path:
    """A run of ``log-uniform``: by arm and rate its passes, each (p99 TTFT, p99 ITL, failed requests); "crash" or "empty" for such."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / records.NAME
    asked = [workload.as_data() for workload in workloads.named(["log-uniform"], rates)]
    arms = [{"name": arm, "environment": {}, "arguments": []} for arm in passes]
    records.append(raw, "header", **bench_synthetic.header(arms=arms, workloads=asked, batches=[], repetitions=2, **header))
    for arm, by_rate in passes.items():
        for rate, found in by_rate.items():
            who = {"arm": arm, "round": 0}
            if found == "crash":
                records.append(raw, "crash", **who, during=f"log-uniform@{rate:g}", exit_status=1, log_tail=[])
                continue
            for number, one in enumerate([(1.0, 1.0, 0)] if found == "empty" else found):
                ttft, itl, failed = one
                spread = {"p50": itl / 2, "p90": itl, "p99": itl, "mean": itl, "max": itl, "count": 9}
                more = (
                    {}
                    if found == "empty"
                    else {"itl_ms": spread, "token_itl_ms": spread, "admitting_itl_ms": spread, "pure_itl_ms": spread}
                )
                speed = 0.0 if found == "empty" else 100.0 * rate
                records.append(
                    raw, "repetition", **who, workload=f"log-uniform@{rate:g}", repetition=number, counted=True, seconds=60.0,
                    completed=60, failed=failed, output_throughput=speed, ttft_ms=[] if found == "empty" else [ttft] * 60, tpot_ms=[1.0],
                    requests_per_second=rate, rate=rate, late_ms=1.0, running_peak=7, **more,
                )  # fmt: skip
    return folder


GOOD, SLOW_START, SLOW_TOKENS, REFUSED = (100.0, 20.0, 0), (2001.0, 20.0, 0), (100.0, 61.0, 0), (100.0, 20.0, 1)


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ({1: [GOOD], 2: [GOOD], 4: [SLOW_START]}, "2 requests/s"),
        ({1: [GOOD], 2: [SLOW_TOKENS], 4: [GOOD]}, "1 requests/s"),
        ({1: [SLOW_TOKENS], 2: [GOOD], 4: [GOOD]}, "less than 1 requests/s"),
        ({1: [GOOD], 2: [GOOD], 4: [(2000.0, 60.0, 0)]}, "at least 4 requests/s"),
        ({1: [GOOD], 2: [GOOD, REFUSED], 4: [GOOD]}, "1 requests/s"),
        ({1: [GOOD], 2: [GOOD, GOOD, SLOW_START], 4: [SLOW_START, SLOW_START, GOOD]}, "2 requests/s"),
        ({1: [GOOD], 2: "crash", 4: [GOOD]}, "1 requests/s"),
        ({1: [GOOD], 2: "empty", 4: [GOOD]}, "1 requests/s"),
        ({1: [GOOD], 2: [GOOD]}, "at least 2 requests/s"),
        ({1: "crash", 2: [GOOD]}, "less than 1 requests/s"),
        ({2: [GOOD], 4: [GOOD]}, "None"),
    ],
)
def test_goodput_is_the_highest_rate_up_to_which_all_is_well(passes: dict[float, Any], said: str, tmp_path: Path) -> None:
    results = load(run(tmp_path, {"package": passes}))
    assert str(latency.goodput(results, "log-uniform", "package")) == said


def test_the_limits_are_those_of_the_run(tmp_path: Path) -> None:
    results = load(run(tmp_path, {"package": {1: [GOOD], 2: [SLOW_TOKENS]}}, (1, 2), limits={"ttft_ms": 2000.0, "itl_ms": 70.0}))
    assert str(latency.goodput(results, "log-uniform", "package")) == "at least 2 requests/s"
    assert "within 2000 and 70 ms" in report.markdown(results)


def test_a_report_of_loads_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = run(
        tmp_path / "run",
        {"stock": {1: [GOOD], 2: [SLOW_START], 4: [SLOW_START]}, "package": {1: [GOOD, GOOD], 2: [GOOD], 4: [SLOW_TOKENS]}},
    )
    text = report.write(folder).read_text()
    assert text.startswith("goodput on log-uniform: stock 1 requests/s, package 2 requests/s.")
    assert "| log-uniform | 1 requests/s | 2 requests/s |" in text
    assert "| 4 | package | 4.000 | 400.0 | 100.0 | 100.0 | 30.50 | 61.00 | 30.50 / 61.00 | 61.00 / 30.50 = 2.0x | 7 | no |" in text
    assert "output tokens/s" not in text.split("\n")[0], "the throughput of an open loop is the rate it is sent at"
    assert "Fewer than 100 requests in a pass of log-uniform@1: p99 TTFT there is nearly the largest" in text
    assert [path.stem for path in folder.glob("*.png")] == ["latency-over-rate"]


def test_a_client_that_was_late_is_a_caveat(tmp_path: Path) -> None:
    folder = run(tmp_path, {"package": {1: [GOOD]}}, (1,))
    raw = folder / records.NAME
    raw.write_text("\n".join(json.dumps(line | ({"late_ms": 250.0} if "late_ms" in line else {})) for line in records.read(raw)) + "\n")
    assert "package on log-uniform@1: the client sent 1% of the requests 250.0 ms late or more" in report.markdown(load(folder))


def test_a_plot_shows_both_latencies_and_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    save = Figure.savefig

    def keeping(figure: Figure, *words: Any, **more: Any) -> None:
        drawn.append(figure)
        save(figure, *words, **more)

    monkeypatch.setattr(Figure, "savefig", keeping)
    results = load(run(tmp_path / "run", {"stock": {1: [GOOD], 2: [SLOW_START]}, "package": {1: [GOOD], 2: [GOOD]}}, (1, 2)))
    assert plots.latency_over_rate(results, tmp_path / "plot.png")
    (ttft, itl) = drawn[0].axes
    for axis, limit, highest in ((ttft, 2000.0, 2001.0), (itl, 60.0, 20.0)):
        lines = {str(line.get_label()): [float(value) for value in line.get_ydata()] for line in axis.get_lines()}  # type: ignore[union-attr]
        assert lines["limit of p99"] == [limit, limit]
        assert max(lines["stock, p99"]) == highest
        assert len(lines["package, p50"]) == 2
    assert not plots.latency_over_rate(load(bench_synthetic.write(tmp_path / "other")), tmp_path / "none.png")
