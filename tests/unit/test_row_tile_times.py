"""The table of layouts for many rows: what wins, what is named instead, how time is shared. Kernels and clock are stand-ins."""

import argparse
from functools import partial
from typing import Any

import pytest
import torch

from sglang_gemma4.benchmark import row_tile_times
from sglang_gemma4.benchmark.layer_times import Case
from sglang_gemma4.kernels.norms.qkv_norm_rope_tokens import TokenTiles
from sglang_gemma4.kernels.norms.row_parts import RowTiles

SLOW, FAST, BROKEN, WRONG = RowTiles(1, 64, 1), RowTiles(2, 64, 1), RowTiles(3, 64, 1), TokenTiles(4, 1)
TIMES = {None: 9.0, SLOW: 4.0, FAST: 3.0}


def kernel(x: torch.Tensor, tiles: Any = None) -> list[torch.Tensor]:
    if tiles == BROKEN:
        raise RuntimeError("out of resources:\n shared memory")
    return [x + 1 if tiles == WRONG else x]


def make(rows: int) -> Case:
    return Case("a norm", kernel_unused, partial(kernel, torch.zeros(rows, 8)), 4295 * rows, 1)


def kernel_unused() -> None:
    raise AssertionError("stock is not timed here")


def times(calls: list[Any], rounds: int) -> float:
    return TIMES[calls[0].keywords.get("tiles")]


OPTIONS = argparse.Namespace(rows=[1000, 2000], seconds=60.0, rounds=1, bandwidth=4295.0)


def test_the_fastest_right_one_wins_and_the_others_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(row_tile_times, "microseconds", times)
    monkeypatch.setattr(row_tile_times, "MAKERS", [(make, [SLOW, BROKEN, WRONG, FAST]), (kernel_unused, [SLOW])])
    row_tile_times.print_table(OPTIONS)
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert lines[2] == f"| a norm | 2000 | 9.0 | 3.0 | {FAST} | 0.000 % | 2.0 | 2x64/1w/1s 3.0, 1x64/1w/1s 4.0 |"
    assert lines[3].startswith("| a norm | 1000 | 9.0 | 3.0 |")
    assert "- a norm, 2000 rows, 3x64/1w/1s: RuntimeError: out of resources: shared memory\n" in said
    assert "- a norm, 2000 rows, 4/1w: 1e+02 % differ\n" in said
    assert "1000 rows: TypeError: kernel_unused() takes 0 positional arguments" in said


def test_when_the_time_is_over_the_rest_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(row_tile_times, "microseconds", times)
    monkeypatch.setattr(row_tile_times, "MAKERS", [(make, [SLOW, FAST])])
    row_tile_times.print_table(argparse.Namespace(**{**vars(OPTIONS), "seconds": -1.0, "rows": [8]}))
    said = capsys.readouterr().out
    assert "| a norm | 8 | 9.0 | - | - | - | 0.0 |  |" in said
    assert said.count("the time was over") == 2
    assert len(row_tile_times.ROW_TILES) == len({row_tile_times.short(tiles) for tiles in row_tile_times.ROW_TILES})
    assert all(tiles.fits(2816) for tiles in row_tile_times.ROW_TILES)
    assert all(tiles.fit(16, 2, 512) for tiles in row_tile_times.TOKEN_TILES)
