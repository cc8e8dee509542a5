"""runs/README.md: every run by its question, what was bought in a short row, superseded ones folded away."""

import shutil
from pathlib import Path

import pytest

from sglang_gemma4.benchmark import report, runs_index
from tests.harness.inputs import bench_synthetic

pytest.importorskip("matplotlib")
RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated run; its plots take seconds, and no test changes them."""
    folder = bench_synthetic.write(tmp_path_factory.mktemp("generated") / "run", dummy_weights=True)
    report.write(folder)
    return folder


@pytest.fixture
def runs(generated: Path, tmp_path: Path) -> Path:
    """A generated run, one by hand, an unfinished one, and a later one by hand."""
    shutil.copytree(generated, tmp_path / "2026-01-02-generated")
    by_hand = tmp_path / "2026-01-01-by-hand"
    by_hand.mkdir()
    (by_hand / "REPORT.md").write_text("# Title\nDecode is 1.1x faster | see\nbelow. More follows.\n\nTables.\n")
    (tmp_path / "2026-01-03-unfinished").mkdir()
    later = tmp_path / "2026-01-04-later"
    later.mkdir()
    (later / "REPORT.md").write_text("Decode is 1.2x faster, " + "really " * 40 + "so.\n")
    return tmp_path


def told(runs: Path, text: str) -> Path:
    (runs / runs_index.TABLE).write_text(text)
    return runs


OLD = '["2026-01-01-by-hand"]\nquestion = "steps"\ncard = "NVIDIA H100"\nmodel = "26b-a4b"\nsuperseded_by = "2026-01-04-later"\n'


def test_sections_rows_and_what_is_folded(runs: Path) -> None:
    told(runs, OLD + '["2026-01-04-later"]\nquestion = "steps"\n["2026-01-02-generated"]\nquestion = "serving"\n')
    text = runs_index.write(runs).read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Serving", "## Steps", "## Other"]
    assert "| [2026-01-02-generated](2026-01-02-generated/) | package: " in text
    assert "| NVIDIA H200 | gemma-4-26B-A4B-it (random weights) |" in text
    steps, folded = text.split("## Steps")[1].split("<details><summary>1 superseded</summary>\n\n")
    assert "[2026-01-04-later](2026-01-04-later/) | Decode is 1.2x faster, really" in steps
    assert "really … | not said | not said |" in steps, "cut at a word"
    old = "**Superseded by [2026-01-04-later](2026-01-04-later/REPORT.md).**"
    assert f"| Decode is 1.1x faster \\| see below. {old} | NVIDIA H100 | 26b-a4b |\n\n</details>" in folded
    assert "| [2026-01-03-unfinished](2026-01-03-unfinished/) | no REPORT.md | not said | not said |" in folded.split("## Other")[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('["2026-02-01-gone"]\nquestion = "steps"\n', "2026-02-01-gone: there is no such folder"),
        ('["2026-01-04-later"]\nquestion = "speed"\n', "question 'speed' is none of serving, steps"),
        ('["2026-01-04-later"]\nquestion = "steps"\nsuperceded_by = "x"\n', "superceded_by is none of"),
        (f'["2026-01-04-later"]\nquestion = "steps"\nbought = "{"x" * 161}"\n', "longer than 160 characters"),
        (OLD.replace("04-later", "09-lost"), "superseded_by '2026-01-09-lost' is no folder"),
        ('["2026-01-04-later"]\nquestion = "steps"\nsuperseded_by = "2026-01-01-by-hand"\n', "is not newer"),
    ],
)
def test_a_wrong_entry_is_named(runs: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        runs_index.rows(told(runs, text))


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a directory"):
        runs_index.rows(tmp_path / "runs")


def test_this_repository_s_runs() -> None:
    """Every folder is in the table with card and model, nothing had to be cut, and README.md is what the command writes."""
    found = runs_index.rows(RUNS)
    entries = (RUNS / runs_index.TABLE).read_text()
    assert [row.name for row in found if f'["{row.name}"]' not in entries] == []
    assert [row.name for row in found if "…" in row.bought or "not said" in (row.card, row.model)] == []
    assert (RUNS / runs_index.NAME).read_text() == runs_index.markdown(found), "run `sglang-gemma4 bench --index runs`"
