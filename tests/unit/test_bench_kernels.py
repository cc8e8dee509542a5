"""The harness of kernel benchmarks on the CPU: its timing, table, tuning and dry run; the cases' shapes and command line."""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_gemma4.benchmark.kernels import __main__ as command
from sglang_gemma4.benchmark.kernels import expert_products as products
from sglang_gemma4.benchmark.kernels.cases import CASES
from sglang_gemma4.benchmark.kernels.experts import padded
from sglang_gemma4.benchmark.kernels.harness import Case, Options, Place, Row, dry_run, lazily, run, short, timed, tuned
from sglang_gemma4.kernels.attention.tiles import KeyTile
from sglang_gemma4.kernels.norms.row_parts import RowTiles

CPU = Place("cpu", tiny=True)


def slept(seconds: float, value: float, rows: int = 4) -> torch.Tensor:
    time.sleep(seconds)
    return torch.full((rows,), value)


def broken() -> None:
    raise RuntimeError("out of resources:\n shared memory | of a GPU")


def make(place: Place, rows: int) -> Row | None:
    if rows == 3:
        return None
    ways: dict[str, Any] = {"SGLang": partial(slept, 0.04, 1.0, rows), "library": broken, "ours": partial(slept, 0.004, 1.0, rows)}
    tiles = {
        f"ours, {name}": partial(slept, seconds, value) for name, seconds, value in (("slow", 0.03, 1), ("fast", 0.002, 1), ("wrong", 0, 2))
    }
    return Row(ways, moved=4e6 * rows, flops=1e9, tiles={**tiles, "ours, refused": broken}, parts=2)


SLEEPS = Case("sleeps", "two sleeps", {"rows": (4, 3, 8)}, make, sets=1)


def table(said: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in "\n".join(said).splitlines() if line.startswith("|")][2:]


def test_ways_are_timed_in_turn_and_stand_beside_the_floor(tmp_path: Path) -> None:
    said: list[str] = []
    raw = tmp_path / "raw.jsonl"
    run(SLEEPS, {"rows": [4, 3, 8]}, Options(rounds=3, bandwidth=4000, teraflops=100, raw=raw), CPU, said.append)
    cells = table(said)
    assert [(row[0], row[1]) for row in cells] == [(rows, way) for rows in ("4", "8") for way in ("SGLang", "library", "ours")]
    stock, library, ours = cells[:3]
    assert float(stock[2]) >= 20000, "µs of one of the call's two parts"
    assert float(ours[2]) >= 2000
    assert stock[4].startswith("1.000")
    assert float(ours[4].split()[0]) < 0.9
    assert (stock[5], cells[5][5]) == ("5.00", "5.00"), "the arithmetic takes longer than the bytes at 4 and at 8 rows"
    assert ours[6] == "0"
    assert library[2] == "RuntimeError: out of resources: shared memory / of a GPU"
    header, *lines = [json.loads(line) for line in raw.read_text().splitlines()]
    assert header["kind"] == "header"
    assert {"commit", "sources", "torch", "triton"} <= set(header["versions"])
    assert {"name", "driver"} <= set(header["device"])
    assert header["command"]
    assert [line["way"] for line in lines] == ["SGLang", "library", "ours"] * 2
    assert len(lines[0]["us"]) == 3
    assert "reason" in lines[1]


def test_only_the_ways_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    run(SLEEPS, {"rows": [4]}, Options(rounds=1, ways=["our"]), CPU)
    assert [row[1] for row in table([capsys.readouterr().out])] == ["ours"]


def test_the_fastest_right_tiles_are_printed_and_the_others_named() -> None:
    said: list[str] = []
    run(SLEEPS, {"rows": [4]}, Options(rounds=2, tune=60.0), CPU, said.append)
    assert [row[1] for row in table(said)][-2:] == ["ours, fast", "ours, slow"]
    assert "<!-- ours, wrong: 1e+02 % differ -->" in said
    assert any("ours, refused: RuntimeError" in line for line in said)


def test_when_the_time_is_over_the_rest_is_named() -> None:
    said: list[str] = []
    row = make(CPU, 4)
    assert row is not None
    tiles = {name: [call] for name, call in row.tiles.items()}
    assert tuned(tiles, row.ways["ours"], CPU, True, Options(tune=-1.0), said.append) == {}
    assert said == ["<!-- the time was over before ours, slow, ours, fast, ours, wrong, ours, refused -->"]


def test_a_missing_library_is_that_way_s_reason_only() -> None:
    def library() -> Any:
        raise ImportError("no module named fast")

    found = timed({"fast": [lazily(library)], "ours": [lambda: None]}, CPU, True, rounds=3)
    assert found["fast"] == "ImportError: no module named fast"
    assert len(found["ours"]) == 3


@pytest.mark.parametrize(("value", "ours", "well"), [(1.0, None, True), (3.0, None, False), (1.0, broken, False)])
def test_a_dry_run_fails_where_ours_does_not_compute_or_ways_disagree(value: float, ours: Any, well: bool) -> None:
    said: list[str] = []

    def row(place: Place) -> Row:
        return Row({"SGLang": partial(slept, 0, 1.0), "needs a GPU": broken, "ours": ours or partial(slept, 0, value)}, 1)

    assert dry_run(Case("case", "", {}, row), True, said.append) is well
    assert "needs a GPU: not computed here: RuntimeError" in said[2]


def test_a_way_that_leaves_a_shared_output_unwritten_is_found() -> None:
    out = torch.zeros(8)
    said: list[str] = []
    case = Case("case", "", {}, lambda place: Row({"SGLang": lambda: out.fill_(1.0), "ours": lambda: out}, 1))
    assert not dry_run(case, True, said.append)
    assert said[-1] == "  , ours: 1e+02 % differ"


@pytest.mark.parametrize("name", CASES)
def test_every_row_of_every_case_has_shapes_and_a_floor(name: str) -> None:
    """At full size, on the meta device."""
    case = CASES[name]
    assert case.name == name
    assert case.compares
    rows = list(case.rows(Place("meta"), case.axes))
    assert rows
    for named, row in rows:
        assert 0.001 < row.floor(4295, 793.7) < 1e5, named
        assert not set(row.ways) & set(row.tiles)
        assert all(way.startswith("ours") for way in (list(row.ways)[-1], *row.tiles))


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_s_rows_can_be_made(name: str) -> None:
    case = CASES[name]
    assert set(case.tiny) <= set(case.axes)
    assert list(case.rows(CPU, case.dry_axes()))


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}: {case.compares}" in said for name, case in CASES.items())
    asked = command.parser().parse_args(["attention", "--requests", "8", "32", "--layer", "full", "--tune", "--raw", "a.jsonl"])
    assert (asked.requests, asked.layer, asked.keys, asked.tune) == ([8, 32], ["full"], CASES["attention"].axes["keys"], float("inf"))
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            command.main(["heads"])
        assert "heads is measured on a CUDA GPU" in capsys.readouterr().err


def test_the_list_is_that_of_the_cases_and_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """``cases.json`` holds what the cases declare: python -m sglang_gemma4.benchmark.kernels --list --json --fresh > .../cases.json"""
    assert command.listed() == command.declared()
    assert max(map(len, command.list_text(command.listed(), 80).splitlines())) <= 80
    assert command.main(["--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == command.declared()


def test_neither_list_nor_help_nor_a_refusal_imports_torch() -> None:
    program = (
        "import sys; from sglang_gemma4.benchmark.kernels import __main__ as command; command.main(['--list']);"
        "command.no_cuda = lambda: 'none';\n"
        "for words in (['--help'], ['heads', '--help'], ['heads']):\n"
        "    try: command.main(words)\n"
        "    except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "there is none here (none)" in done.stderr


def test_tiles_are_written_short() -> None:
    assert short(KeyTile(64, 4, 3), RowTiles(1, 512, 2)) == "64/4/3/16 1/512/2/1"


def test_each_expert_has_whole_blocks_of_places() -> None:
    """DeepGEMM's layout."""
    tokens, step = 37, 16
    routed = products.routing(tokens, 0, "cpu")
    experts = padded(routed[1], products.EXPERTS, step)
    assert torch.equal(experts, experts.sort().values)
    for expert in range(products.EXPERTS):
        asked = int((routed[1] == expert).sum())
        assert int((experts == expert).sum()) == -(-asked // step) * step
