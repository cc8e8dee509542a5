"""Reports say what was bought, no more than the data shows, and what to beware of."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4 import cli
from sglang_gemma4.benchmark import records, report
from sglang_gemma4.benchmark.results import load, number
from tests.harness.inputs import bench_synthetic

pytest.importorskip("matplotlib")


def first_line(folder: Path) -> str:
    return report.markdown(load(folder)).split("\n")[0]


def text_of(folder: Path) -> str:
    return report.markdown(load(folder))


def small(folder: Path, rates: dict[str, list[float]], **changes: Any) -> Path:
    """A run of step times only, with the given tokens/s at batch 1."""
    arms = [{"name": name, "environment": {}, "arguments": []} for name in rates]
    raw = folder / records.NAME
    records.append(raw, "header", **bench_synthetic.header(**{"arms": arms, "workloads": [], "batches": [1], "repetitions": 1} | changes))
    for name, values in rates.items():
        for repetition, rate in enumerate(values):
            shape = {"batch": 1, "input_tokens": 8, "output_tokens": 8, "prefill_ms": 1.0, "accept_length": None}
            times = {"step_ms": 1000 / rate if rate else 0.0, "output_throughput": rate}
            records.append(raw, "step", arm=name, round=0, repetition=repetition, counted=True, **shape, **times)
    return folder


def test_a_whole_report(tmp_path: Path) -> None:
    folder = bench_synthetic.write(tmp_path / "run")
    path = report.write(folder)
    text = path.read_text()
    found = re.match(r"package: (\d\.\d+)x stock's output tokens/s on chat, ", text)
    assert found is not None
    assert 1.08 < float(found[1]) < 1.16
    assert re.search(r"; mtp: 1\.\d+x on chat, .* \(6 passes\)\.$", text.split("\n")[0])
    assert re.search(rf"\| package \| \d+ \(\d+-\d+, n=6\) \| {found[1]}\d? \[1\.\d+, 1\.\d+\] \|", text), "the interval is in the table"
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (folder / name).is_file()
    assert len(re.findall(r"!\[", text)) == len(list(folder.glob("*.png"))) == 7
    assert "max_running_requests differs though no arm asked for it: stock 80, package 80, mtp 48" in text
    assert "NVIDIA H200" in text
    assert "CUDA_VISIBLE_DEVICES=0" in text
    assert "active: router_scale; off: sync_mtp" in text
    assert "| `attention_kernel` | attention |" in text


def test_every_table_row_has_as_many_cells_as_its_head(tmp_path: Path) -> None:
    head = 0
    rows = 0
    for line in text_of(bench_synthetic.write(tmp_path)).split("\n"):
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (head and cells) or cells == head, line
        head, rows = cells, rows + bool(cells)
    assert rows > 60


def test_warm_ups_do_not_count(tmp_path: Path) -> None:
    """The synthetic warm-ups are ten times slower; the range of the table would show one."""
    results = load(bench_synthetic.write(tmp_path))
    assert len(results.at("chat", "stock")) == 6
    assert min(record["output_throughput"] for record in results.at("chat", "stock")) > 2500


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ([100.2, 100.9, 99.2, 100.6, 99.4], "package: no difference from stock in output tokens/s at batch 1 (5 passes)."),
        ([90, 91, 89, 90.5, 89.5], "package: 0.90x stock's output tokens/s at batch 1 (5 passes)."),
        ([321, 322, 320, 321, 321.5], "package: 3.2x stock's output tokens/s at batch 1 (5 passes)."),
    ],
)
def test_the_first_line_says_what_was_bought(tmp_path: Path, package: list[float], said: str) -> None:
    assert first_line(small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5], "package": package})) == said


def test_a_gain_below_half_a_percent_is_none_even_with_an_interval(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 100.01, 100.02, 100.01, 100], "package": [100.3, 100.31, 100.32, 100.31, 100.3]})
    assert first_line(folder) == "package: no difference from stock in output tokens/s at batch 1 (5 passes)."
    assert "| 1.003 [1.003, 1.003] |" in text_of(folder)


def test_one_repetition_proves_nothing(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100], "package": [150]})
    assert first_line(folder) == "package: unproven 1.50x stock's output tokens/s at batch 1 (1 pass)."
    assert "1.50 [no interval] =" in text_of(folder)
    few = "Fewer than 5 passes, whose intervals are narrower than 95% (a single pass has none)"
    assert f"{few}: 1 of stock on batch 1; 1 of package on batch 1." in text_of(folder)


def test_three_repetitions_are_a_caveat_and_not_separated(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 101, 102], "package": [150, 151, 152]})
    assert first_line(folder) == "package: 1.50x stock's output tokens/s at batch 1 (3 passes)."
    assert "1.50 [1.47, 1.52] =" in text_of(folder)
    assert "3 of package on batch 1." in text_of(folder)


def test_a_gain_stays_no_difference_where_the_ranges_meet(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 130], "package": [120, 150]})
    assert first_line(folder) == "package: no difference from stock in output tokens/s at batch 1 (2 passes)."


def test_stock_is_what_others_are_held_against_whichever_came_first(tmp_path: Path) -> None:
    line = first_line(small(tmp_path, {"all": [200, 202, 198, 201, 199], "stock": [100, 101, 99, 100.5, 99.5]}))
    assert line == "all: 2.0x stock's output tokens/s at batch 1 (5 passes)."


def test_one_arm_alone(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5]})
    assert first_line(folder) == "stock: 100.0 output tokens/s at batch 1 (5 passes)."
    assert "ratio" not in text_of(folder)


def test_arms_that_died_or_were_not_reached(tmp_path: Path) -> None:
    line = first_line(small(tmp_path, {"stock": [100, 101], "package": [150, 152], "late": []}))
    assert line == "package: 1.50x stock's output tokens/s at batch 1 (2 passes); late: no counted pass."


def test_a_crash_is_a_result(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5], "package": []})
    crash = {"arm": "package", "round": 0, "during": "start", "exit_status": -9, "log_tail": ["loading", "| out of memory"]}
    records.append(folder / records.NAME, "crash", **crash)
    assert first_line(folder) == (
        "stock: 100.0 output tokens/s at batch 1, nothing to compare with (5 passes); package died during start (signal 9)."
    )
    assert "      | out of memory" in text_of(folder)


def test_dry_runs_and_dummy_weights_are_in_the_first_line(tmp_path: Path) -> None:
    line = first_line(small(tmp_path, {"stock": [100.0]}, dry_run=True, dummy_weights=True, notes=["Nothing is measured."]))
    assert line.startswith("Dry run, which measures nothing: stock: 100.0 output")
    assert line.endswith("Dummy weights.")
    assert "- Nothing is measured." in text_of(tmp_path)


def test_an_unfinished_run_says_what_is_missing(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5, 100.2], "package": []}, batches=[1, 8], repetitions=6)
    assert "Not all of the 6 repetitions asked for are there: 0 of stock on batch 8; 0 of package on batch 1, batch 8." in text_of(folder)


def test_empty_repetitions_are_left_out_and_told(tmp_path: Path) -> None:
    text = text_of(small(tmp_path, {"stock": [100, 0, 101, 99, 100.5, 99.5]}))
    assert "n=5" in text
    assert "stock: 1 of the counted repetitions had no throughput" in text


def test_a_median_of_few_requests_is_not_shown(tmp_path: Path) -> None:
    folder = bench_synthetic.write(tmp_path / "run", arms=("stock",))
    assert "requests have times" not in text_of(folder)
    lines = records.read(folder / records.NAME)
    (folder / records.NAME).unlink()
    for line in lines:
        if line["kind"] == "repetition" and line["workload"] == "chat":
            line |= {"ttft_ms": line["ttft_ms"][:3], "tpot_ms": line["tpot_ms"][:3], "missing_tokens": 7 * line["counted"]}
        records.append(folder / records.NAME, **line)
    text = text_of(folder)
    assert "stock on chat: only 18 of 480 requests have times" in text
    assert "the server never generated 42 tokens that its client counted" in text
    row = next(line for line in text.splitlines() if line.startswith("| stock | ") and "n=6" in line)
    assert row.split(" | ")[2:4] == ["-", "-"]


def test_rounds_that_differ_more_than_the_arms_are_told(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5], "package": [102, 103, 101.5, 102.5, 102.2]})
    for rate in (111, 112, 113, 111.5, 112.5):
        shape = {"batch": 1, "input_tokens": 8, "output_tokens": 8, "prefill_ms": 1.0, "step_ms": 1000 / rate, "accept_length": None}
        values = {"repetition": 0, "counted": True, "output_throughput": rate}
        records.append(folder / records.NAME, "step", arm="package", round=1, **shape, **values)
    assert "package on batch 1: its rounds differ by 9.6%" in text_of(folder)


def test_a_failed_patch_is_told(tmp_path: Path) -> None:
    folder = small(tmp_path, {"package": [100.0]})
    start = {"process": "engine", "seconds": 1.0, "settings": {}, "patches": {"router_scale": "failed", "report": "active"}}
    records.append(folder / records.NAME, "start", arm="package", round=0, **start)
    assert "package ran with patches failed: router_scale." in text_of(folder)


def test_a_folder_without_a_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no header"):
        report.write(tmp_path)


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0, "0"), (1.23456, "1.235"), (99.5, "99.50"), (203.24, "203.2"), (12272.4, "12272")]
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_the_text_needs_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it is absent the report's words and numbers are the same, and plots that were drawn before stay in it."""
    drawn = bench_synthetic.write(tmp_path / "drawn")
    plain = Path(shutil.copytree(drawn, tmp_path / "plain"))  # written twice, their headers might differ by a second
    expected = report.write(drawn).read_text()
    (plain / "ttft.png").write_bytes((drawn / "ttft.png").read_bytes())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["bench", "--report", str(plain)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{plain / report.NAME}\n"
    assert f"writing the report and the plots of {plain}\n" in said.err
    assert "no plots are drawn: plots need matplotlib, which is not installed; pip install 'sglang-gemma4[bench]'" in said.err
    text = (plain / report.NAME).read_text()
    picture = re.compile(r"!\[.*\]\((.*)\)\n+")
    assert picture.sub("", text).split() == picture.sub("", expected).split()
    assert (picture.findall(text), len(picture.findall(expected))) == (["ttft.png"], len(list(drawn.glob("*.png"))))
