"""Reports say what was bought, no more than the data shows, and what to beware of."""

import re
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.benchmark import records, report, runs_index
from sglang_gemma4.benchmark.results import load, number
from tests.unit import bench_synthetic

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
    found = re.match(r"package against stock, output tokens/s: (\d\.\d+)x on chat \(95% CI (\d\.\d+)-(\d\.\d+)\)", text)
    assert found is not None
    assert float(found[2]) <= float(found[1]) <= float(found[3])
    assert 1.08 < float(found[1]) < 1.16
    assert "mtp against stock" in text.split("\n")[0]
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
    assert len(results.of_workload("chat", "stock")) == 6
    assert min(record["output_throughput"] for record in results.of_workload("chat", "stock")) > 2500


def test_no_difference_is_said_to_be_none(tmp_path: Path) -> None:
    line = first_line(small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5], "package": [100.2, 100.9, 99.2, 100.6, 99.4]}))
    assert line.startswith("no difference found between package and stock in output tokens/s: 1.002x on batch 1 (95% CI 0.9")


def test_a_loss_is_called_slower(tmp_path: Path) -> None:
    line = first_line(small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5], "package": [90, 91, 89, 90.5, 89.5]}))
    assert line.startswith("package against stock, output tokens/s: slower: 0.90x on batch 1")


def test_one_repetition_proves_nothing(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100], "package": [150]})
    assert first_line(folder).startswith("too few repetitions to tell package from stock in output tokens/s: 1.50x on batch 1 (no interval")
    assert "1.50 [no interval] =" in text_of(folder)
    assert "Fewer than 5 counted repetitions: 1 of stock on batch 1; 1 of package on batch 1." in text_of(folder)


def test_three_repetitions_are_too_few_and_the_line_says_so(tmp_path: Path) -> None:
    line = first_line(small(tmp_path, {"stock": [100, 101, 102], "package": [150, 151, 152]}))
    assert line.startswith("too few repetitions to tell package from stock")
    assert "n=3 and 3" in line


def test_one_arm_alone(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5]})
    assert first_line(folder) == "stock alone: 100.0 output tokens/s at batch 1 (99.00-101.0, n=5)."
    assert "ratio" not in text_of(folder)


def test_a_crash_is_a_result(tmp_path: Path) -> None:
    folder = small(tmp_path, {"stock": [100, 101, 99, 100.5, 99.5], "package": []})
    crash = {"arm": "package", "round": 0, "during": "start", "exit_status": -9, "log_tail": ["loading", "| out of memory"]}
    records.append(folder / records.NAME, "crash", **crash)
    assert first_line(folder) == (
        "package against stock: nothing to compare yet, no place where both have a result (stock alone: 100.0 output tokens/s at batch 1 "
        "(99.00-101.0, n=5)); package died during start (signal 9)."
    )
    assert "      | out of memory" in text_of(folder)


def test_dry_runs_and_dummy_weights_are_in_the_first_line(tmp_path: Path) -> None:
    line = first_line(small(tmp_path, {"stock": [100.0]}, dry_run=True, dummy_weights=True, notes=["Nothing is measured."]))
    assert line.startswith("Dry run, which measures nothing: stock alone")
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


def test_the_index_has_a_row_for_each_folder(tmp_path: Path) -> None:
    report.write(bench_synthetic.write(tmp_path / "2026-01-02-generated", dummy_weights=True))
    by_hand = tmp_path / "2026-01-01-by-hand"
    by_hand.mkdir()
    (by_hand / "REPORT.md").write_text("# Title\nDecode is 1.1x faster | see\nbelow. More follows.\n\nNVIDIA H100, 26B-A4B and tiny-e2b.\n")
    (tmp_path / "2026-01-03-unfinished").mkdir()
    lines = runs_index.markdown(tmp_path).strip().split("\n")
    rows = [line for line in lines if line.startswith("| ") and "2026" in line]
    assert len(rows) == 3
    assert "| Decode is 1.1x faster \\| see below. | NVIDIA H100 | 26B-A4B, tiny-e2b | [REPORT.md]" in rows[0]
    assert "package against stock" in rows[1]
    assert "| NVIDIA H200 | gemma-4-26B-A4B-it (dummy weights) |" in rows[1]
    assert "[raw.jsonl](2026-01-02-generated/raw.jsonl)" in rows[1]
    assert "| no REPORT.md | not said | not said |" in rows[2]
    assert runs_index.write(tmp_path).read_text() == runs_index.markdown(tmp_path)
