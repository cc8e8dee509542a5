"""The whole path of `sglang-gemma4 bench` on real processes: a server, an engine, SGLang's client, a crash, a resumed run, the report."""

import json
from pathlib import Path

import pytest

from sglang_gemma4 import cli
from sglang_gemma4.benchmark import records, workloads
from sglang_gemma4.tiny import checkpoints
from tests.harness.engine_fork import Group, Nursery
from tests.harness.programs import vllm_stub

SERVED = "chat,images,multi-turn,sessions-3x10000/3"
STEPS = ("--batches", "2", "--prefill-once", "--curve", "3")
FLAGS = (
    *("bench", "--dry-run", "--rounds", "1", "--repetitions", "1", "--workload", SERVED, "--rates", "2,8", "--arm", "package"),
    *("--arm", "dies:package,--quantization=mxfp8"),  # refused before SGLang starts processes
)
QUIET = ("--", "--sleep-on-idle")
"""Without it the server's scheduler takes a core from the other tests while the client gets ready."""


def run(folder: Path, *more: str) -> list[records.Record]:
    """A dry run whose second arm dies, and the same command again; the records."""
    words = [*FLAGS, "--out", str(folder), *more, *QUIET]
    assert cli.main(words) == 1, "an arm that crashed is in the exit status"
    lines = records.read(folder / records.NAME)
    assert cli.main(words) == 1
    again = records.read(folder / records.NAME)
    assert [line["kind"] for line in again[len(lines) :]] == ["header"], "a finished run has nothing left to do"
    return lines


def check_served(lines: list[records.Record], folder: Path) -> None:
    """What a server's passes leave in the records and in the report."""
    passed = [line for line in lines if line["kind"] == "repetition" and line["counted"]]
    assert {line["arm"] for line in passed} == {"package"}
    assert [line["workload"] for line in passed] == ["chat", "images", "multi-turn@2", "multi-turn@8", "sessions-3x10000/3"]
    assert (passed[1]["completed"], passed[1]["failed"]) == (4, 0)
    drawn = sorted((folder / "scratch").glob("requests-*.pickle"))
    assert len(drawn) == 2, "the images of the warm-up and of the counted pass, for every arm"
    client = (folder / "scratch" / "client.log").read_text()
    assert client.count("#Total images: 8") == 2, "drawn once each, by the one that said so"
    assert passed[0]["completed"] == 4
    assert passed[0]["failed"] == 0
    assert passed[0]["output_tokens"] == 40
    assert len(passed[0]["ttft_ms"]) == 4
    assert min(passed[0]["ttft_ms"]) > 0
    for line, rate in zip(passed[2:4], (2, 8), strict=True):
        assert (line["completed"], line["failed"], line["output_tokens"], line["rate"]) == (8, 0, 32, rate)
        assert 16 <= line["itl_ms"]["count"] <= 24, "8 requests of 4 tokens: one an event without MTP, but a busy server joins some"
        (load,) = workloads.named(["multi-turn"], [rate])
        prompts = sum(row["prompt"] for row in workloads.rows(workloads.miniature(load), 1, range(9)))
        assert line["prefill_tokens"] < prompts / 2, "a turn finds those before it in the radix cache"
    check_sessions(passed[4])
    report = (folder / "REPORT.md").read_text()
    assert report.startswith("Dry run, which measures nothing")
    assert "; goodput on multi-turn: package " in report.split("\n")[0]
    assert "package on sessions-3x10000/3: of 3 sessions, against the cold answer: a second cold answer is the same in all" in report
    assert (folder / "latency-over-rate.png").exists()
    assert (folder / "sessions.png").exists()


def check_sessions(passed: records.Record) -> None:
    of_sessions, pools, check = passed["sessions"], passed["pools"], passed["warm_check"]
    counts = {kind: len(times) for kind, times in of_sessions["ttft_ms"].items()}
    assert (passed["completed"], counts) == (9, {"first": 3, "found": 6, "missed": 0})
    assert pools["prompt"] == of_sessions["prompt_tokens"]
    assert pools["hit"] == of_sessions["cached_tokens"] > pools["prompt"] / 2, "the server's metrics say what its answers say"
    assert pools["full_hit"] == pools["hit"] + pools["missed"]
    same = [min(check["warm_cached"]) > 500, *check["again"], *check["warm"], *check["load"]]
    assert (check["sessions"], same) == (3, [True, *[None] * 9])


def check_steps(warm_up: records.Record, counted: records.Record, curve: records.Record) -> None:
    """A batch of two, the second time from the prefix cache, and a curve of three."""
    assert counted["step_ms"] > 0
    assert (warm_up["cached_tokens"], counted["cached_tokens"]) == (0, 2 * 15), "all but the last of 16 prompt tokens"
    assert warm_up["prefill_ms"] > 0
    assert counted["prefill_ms"] is None
    assert [(batch, count) for batch, count, _ in curve["points"]] == [(3, 35), (2, 12), (1, 12)], "12 tokens apart, the first after 36"
    assert min(milliseconds for _, _, milliseconds in curve["points"]) > 0


def crashes(lines: list[records.Record], capsys: pytest.CaptureFixture[str]) -> set[tuple[str, str]]:
    """Arms that died, and when; the records and the terminal have the last lines of the log."""
    found = [line for line in lines if line["kind"] == "crash"]
    assert "mxfp8" in "\n".join(found[0]["log_tail"])
    assert "mxfp8" in capsys.readouterr().err, "the last log lines are shown"
    return {(line["arm"], line["during"]) for line in found}


@pytest.mark.timeout(1500)
def test_servers_are_measured_a_crash_is_kept_and_the_run_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(tmp_path / "run")
    check_served(lines, tmp_path / "run")
    assert crashes(lines, capsys) == {("dies", "start of the server")}
    assert "dies died during start of the server" in (tmp_path / "run" / "REPORT.md").read_text()


def test_steps_of_an_engine_are_timed(nursery: Nursery) -> None:
    """By the functions that the run below calls in a process of its own."""
    group = Group([[]], client="step_client:measure", extra={"batch": 2, "curve": 3, "tokens": (16, 12)})
    answer = nursery.run(checkpoints.SHIPPED / "tiny-e2b", [group], enable_metrics=True, skip_tokenizer_init=True)[0][0]
    check_steps(*json.loads(answer.text))


@pytest.mark.timeout(1500)
def test_a_dry_run_measures_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    lines = run(folder, *STEPS)
    check_served(lines, folder)
    warm_up, counted = (line for line in lines if line["kind"] == "step")
    assert [(line["arm"], line["batch"], line["counted"]) for line in (warm_up, counted)] == [("package", 2, False), ("package", 2, True)]
    curves = [line for line in lines if line["kind"] == "curve"]
    assert [(line["arm"], line["counted"]) for line in curves] == [("package", False), ("package", True)]
    check_steps(warm_up, counted, curves[1])
    assert crashes(lines, capsys) == {("dies", "start of the engine"), ("dies", "start of the server")}
    assert "dies died during start of the engine" in (folder / "REPORT.md").read_text()
    assert (folder / "step-curve.png").exists()


@pytest.mark.timeout(600)
def test_vllm_is_an_arm(tmp_path: Path) -> None:
    """Its process, client, metrics and end, with a server that answers as vLLM does; the client above is the same, on SGLang's."""
    folder, log = tmp_path / "run", tmp_path / "stub.jsonl"
    stub = f"PYTHONPATH={vllm_stub.write(tmp_path / 'stub')},VLLM_STUB_LOG={log}"
    words = ["bench", "--dry-run", "--rounds", "1", "--repetitions", "1", "--out", str(folder), "--workload", "single,log-uniform"]
    words += ["--rates", "20,40", "--accept-length", "2.8", "--arm", f"plain:vllm,only=single,{stub}", "--arm", f"mtp:vllm,mtp,{stub}"]
    assert cli.main([*words, "--", "--max-running-requests=8"]) == 0
    lines = records.read(folder / records.NAME)
    passed = [line for line in lines if line["kind"] == "repetition" and line["counted"]]
    names = [("plain", "single"), ("mtp", "single"), ("mtp", "log-uniform@20"), ("mtp", "log-uniform@40")]
    assert [(line["arm"], line["workload"]) for line in passed] == names
    for line in passed:
        assert (line["failed"], "missing_tokens" in line) == (0, False)
        assert line["accept_length"] > 1
        gaps = line["itl_ms"]
        waited = sum(line["ttft_ms"]) + gaps["mean"] * gaps["count"]  # a busy machine's client reads some late, and the next ones at once
        assert waited > 15 * (gaps["count"] + line["completed"]), "the stub waits 20 ms for two tokens"
        assert line["token_itl_ms"]["mean"] < gaps["mean"]
    starts = [line for line in lines if line["kind"] == "start"]
    assert [start["settings"]["cache.num_gpu_blocks"] for start in starts] == ["512", "512"]
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum("reset" in line for line in asked) == 8, "every pass begins with an empty prefix cache"
    (_, started) = (line for line in asked if "started" in line)
    assert started["dev"] == "1"
    assert "--max-num-seqs=8" in started["started"]
    assert any("synthetic_acceptance_length" in word for word in started["started"])
    report = (folder / "REPORT.md").read_text()
    assert "| vllm | 0.33.0 |" in report
    assert str(tmp_path) not in report.replace(str(log), ""), "the arm's own variable is the test's"
