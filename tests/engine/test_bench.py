"""The whole path of `sglang-gemma4 bench` on real processes: a server, an engine, SGLang's client, a crash, a resumed run, the report."""

from pathlib import Path

import pytest

from sglang_gemma4 import cli
from sglang_gemma4.benchmark import records


@pytest.mark.timeout(1500)
def test_a_dry_run_measures_both_ways_keeps_a_crash_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    words = ["bench", "--dry-run", "--rounds", "1", "--repetitions", "1", "--out", str(folder), "--workload", "chat,images"]
    words += ["--batches", "2", "--arm", "package", "--arm", "dies:package,--attention-backend=triton,--device=nowhere"]
    assert cli.main(words) == 1, "an arm that crashed is in the exit status"
    lines = records.read(folder / records.NAME)
    passed = [line for line in lines if line["kind"] == "repetition" and line["counted"]]
    assert [(line["arm"], line["workload"]) for line in passed] == [("package", "chat"), ("package", "images")]
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
    steps = [line for line in lines if line["kind"] == "step" and line["counted"]]
    assert [(line["arm"], line["batch"]) for line in steps] == [("package", 2)]
    assert steps[0]["step_ms"] > 0
    crashes = [line for line in lines if line["kind"] == "crash"]
    assert {(line["arm"], line["during"]) for line in crashes} == {("dies", "start of the engine"), ("dies", "start of the server")}
    assert "nowhere" in "\n".join(crashes[0]["log_tail"])
    assert "nowhere" in capsys.readouterr().err, "the last log lines are shown"
    report = (folder / "REPORT.md").read_text()
    assert report.startswith("Dry run, which measures nothing")
    assert "dies died during start of the engine" in report

    assert cli.main(words) == 1
    again = records.read(folder / records.NAME)
    assert [line["kind"] for line in again[len(lines) :]] == ["header"], "a finished run has nothing left to do"
