"""Starts measured by arm: what is started in which order with which caches, and what the table says."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.patching.switches import CACHE_DIR
from sglang_gemma4.start import measure

ARMS = [Arm("stock", {"SGLANG_GEMMA4": "0"}), Arm("package")]


def test_arms_take_turns_and_a_start_fills_the_caches() -> None:
    names = [(start.name, start.counted) for start in measure.plan(ARMS, ["cold", "warm"], 2)]
    assert names == [
        *((f"{name}-{mode}-1", True) for mode in ("cold", "warm") for name in ("stock", "package")),
        *((f"{name}-{mode}-2", True) for mode in ("cold", "warm") for name in ("package", "stock")),
    ]
    names = [(start.name, start.counted) for start in measure.plan(ARMS, ["listed"], 1)]
    assert names == [("stock-fill-0", False), ("package-fill-0", False), ("package-listed-1", True)], "stock keeps no list"


def test_caches_by_mode() -> None:
    starts = {start.name: start.environment(Path("/c")) for start in measure.plan(ARMS, measure.MODES, 2)}
    compiled = {name: environ["TRITON_CACHE_DIR"] for name, environ in starts.items()}
    kept = {name: environ[CACHE_DIR] for name, environ in starts.items()}
    assert compiled["package-warm-1"] == compiled["package-warm-2"] == compiled["package-cold-1"] != compiled["stock-warm-1"]
    assert kept["package-listed-2"] == kept["package-warm-1"] == kept["package-cold-1"]
    fresh = [name for name in starts if "-cold-" in name or "-listed-" in name]
    assert len({compiled[name] for name in fresh}) == len(fresh) == 6
    assert len({kept[name] for name in starts if "-cold-" in name}) == 4
    assert all(set(environ) >= {*measure.COMPILED, CACHE_DIR} for environ in starts.values())
    assert starts["stock-cold-1"]["SGLANG_GEMMA4"] == "0"


def row(arm: str, mode: str, seconds: float, **others: Any) -> dict[str, Any]:
    start = {"parts": [["KV pools", seconds / 2], ["rest", seconds / 2]]} if arm == "package" else {}
    told = {"load_weight": 3.0, "cuda_graph": {"prefill": 1.0, "decode": 2.0}}
    return {"arm": arm, "mode": mode, "repetition": 1, "counted": True, "seconds": seconds, "start": start, "startup_time": told, **others}


def test_the_table_has_ratios_and_parts() -> None:
    rows = [row("stock", "cold", seconds) for seconds in (100.0, 80.0, 90.0)]
    rows += [row("package", "cold", seconds) for seconds in (120.0, 110.0, 99.0)]
    rows += [row("package", "cold", 500.0, counted=False)]
    rows += [{"arm": "package", "mode": "warm", "repetition": 1, "counted": True, "died": ["exit status 3", "CUDA error"]}]
    text = measure.table(rows)
    assert "| cold | stock | 90.0 | 80.0 to 100.0 | 3 | 1.00x |" in text
    assert "| cold | package | 110.0 | 99.0 to 120.0 | 3 | 1.22x |" in text
    assert "## stock, cold: medians by part" in text
    assert "| SGLang: CUDA graphs | 3.0 |" in text
    assert "| KV pools | 55.0 |" in text
    assert "- package, warm, 1: exit status 3" in text


def test_a_dry_run_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(tmp_path / "new"), "--model", "m", "--warm", "--repetitions", "1", "--dry-run", "--", "--tp-size", "2"]
    assert measure.main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["stock-fill-0", "package-fill-0", "stock-warm-1", "package-warm-1"]
    assert all(line.endswith("--speculative-draft-model-path=m-assistant --tp-size 2") for line in said)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--repetitions", "0"], "--repetitions 0: give at least 1"),
        (["--arm", "package", "--arm", "b:package"], "changes nothing against"),
        (["--arm", "package:NO=1,what"], "is not an arm"),
    ],
)
def test_bad_arguments_are_told(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        measure.main([str(tmp_path / "new"), "--model", "m", *words])
    assert said in capsys.readouterr().err


def test_a_folder_with_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "starts.json").write_text(json.dumps({}))
    with pytest.raises(SystemExit):
        measure.main([str(tmp_path), "--model", "m"])
    assert "is not empty" in capsys.readouterr().err
