"""What the documents name exists: links, folders of runs, files, commands, switches; and the README's numbers are those of its runs."""

import importlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_gemma4.benchmark import claims, claims_chart, claims_pages
from sglang_gemma4.patching import switches
from tests.harness.child import InChild
from tests.harness.oracles import claimed_numbers
from tests.harness.oracles.document_commands import FENCE, SPAN, commands, refusal, text_of

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
SWITCH = re.compile(r"\bSGLANG_GEMMA4(?:_[A-Z0-9]+)*\b")
PATH = re.compile(r"(?:sglang_gemma4|patches|tests|crash_repro|docs|runs|\.ci)/[\w./-]*")
MOST_LINES = 120


def without_code(text: str) -> str:
    return SPAN.sub("", FENCE.sub("", text))


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *$", FENCE.sub("", path.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken_link(document: Path, link: str) -> str | None:
    """Why a relative link leads nowhere, or None; links to other sites are not followed."""
    if re.match(r"\w+:", link):
        return None
    name, _, anchor = link.partition("#")
    target = (document.parent / name).resolve() if name else document
    if not target.is_relative_to(ROOT) or not target.exists():
        return f"{link}: there is no {target}"
    if anchor and anchor not in anchors(target):
        return f"{link}: {target.name} has no heading of that name"
    return None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_resolve(document: str) -> None:
    found = LINK.findall(without_code(text_of(document)))
    assert [problem for link in found if (problem := broken_link(ROOT / document, link))] == []


def test_a_broken_link_is_seen() -> None:
    readme = ROOT / "README.md"
    for wrong in ("docs/nowhere.md", "docs/cards.md#no-such-heading", "#no-such-heading", "../x"):
        assert broken_link(readme, wrong), wrong
    assert broken_link(readme, "docs/cards.md#what-runs-where") is None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_and_runs_exist(document: str) -> None:
    named = {path.rstrip("./") for span in SPAN.findall(text_of(document)) for path in PATH.findall(span)}
    assert [path for path in sorted(named) if not (ROOT / path).exists() and not path.startswith("runs/DATE")] == []


def test_runs_that_code_cites_are_kept() -> None:
    """A run that a patch, a docstring or a script names by its whole name is in runs/."""
    code = [path for folder in ("patches", "sglang_gemma4", "crash_repro", "tests") for path in (ROOT / folder).rglob("*.py")]
    cited = {(run, str(path.relative_to(ROOT))) for path in code for run in re.findall(r"\bruns/(\d{4}-[\w-]*\w)", path.read_text())}
    assert len(cited) > 20
    assert sorted(f"{where}: {run}" for run, where in cited if not (ROOT / "runs" / run).is_dir()) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_switches_exist(document: str) -> None:
    """Only the changelog's earlier versions name what is gone."""
    present = text_of(document).partition("\n## 0.2.0 ")[0]
    assert sorted(set(SWITCH.findall(present)) - NAMES) == []


NAMES = {*switches.SWITCHES, *switches.NO_SWITCHES}


@pytest.fixture
def refusals_of(in_child: InChild, tmp_path: Path) -> Callable[[list[str]], list[str]]:
    """:func:`refusal` of each line, in a child: a script may set variables, and import kernels so that they are interpreted."""
    importlib.import_module("sglang.srt.server_args")  # here, not in each child

    def of(lines: list[str]) -> list[str]:
        os.chdir(ROOT)
        return [problem for line in lines if (problem := refusal(line, tmp_path))]

    return lambda lines: in_child(lambda: of(lines))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_are_accepted(document: str, refusals_of: Callable[[list[str]], list[str]]) -> None:
    assert refusals_of(list(commands(document))) == []


@pytest.mark.parametrize(
    "line",
    [
        "sglang-gemma4 docter",
        "sglang-gemma4 capacity 26b-a4b --cards 2",
        "sglang-gemma4 serve tiny-e2b --speculative-draft auto --adaptive",
        "sglang-gemma4 bench 26b-a4b --workload chats",
        "sglang-gemma4 bench 26b-a4b --workload log-uniform --rates 2,1",
        "sglang-gemma4 bench 26b-a4b --workload chat --arm vllm -- --attention-backend=triton",
        "sglang-gemma4 bench 26b-a4b --switch SGLANG_GEMMA4_WINDOWS --batches 1",
        "sglang-gemma4 bench 26b-a4b --batches 1 -- --max-totals=5",
        "python3 quickstart.py test tests/nowhere",
        "python3 quickstart.py --ports 5",
        "python -m sglang.launch_server --modell x",
        "python -m sglang_gemma4.nowhere",
        "python -m sglang_gemma4.benchmark.kernels expert",
        "python tests/gpu/measure.py --lists",
        "pip install '.[benchmark]'",
    ],
)
def test_a_wrong_command_is_seen(line: str, refusals_of: Callable[[list[str]], list[str]]) -> None:
    assert refusals_of([line])


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= MOST_LINES


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository's documents, for a test to plant a lie in."""
    for name in ("docs/claims.toml", "docs/benchmarks.md", "docs/img/mixed-load.png", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_number_of_speed_is_that_of_its_raw_lines() -> None:
    """Table, chart, page and prose: values, direction, passes, dates, and what is stale."""
    assert claimed_numbers.lies(ROOT, ROOT / "runs") == []


LIES = {
    "a slowdown is shown as a gain": ("README.md", "**2,125**&nbsp;▼", "**2,125**&nbsp;▲", "package's ttft are 2,125 ▼"),
    "a slowdown changes places with a gain": (
        "README.md",
        "| 1,879 | 1,522 | **2,125**",
        "| 1,879 | 2,125 | **1,522**",
        "vllm's ttft are 1,522",
    ),
    "a gain where passes overlap": ("README.md", "**81**&nbsp;=", "**81**&nbsp;▲", "package's itl are 81 ="),
    "a better number": ("README.md", "**5,017**", "**5,170**", "package's tokens are 5,017 ▲, not 5,170 ▲"),
    "what was not measured": ("README.md", "| – | 2,414 |", "| 1,214 | 2,414 |", "stock's tokens are –, not 1,214"),
    "a stale row as a present one": ("README.md", "-e2b-h200-peer), stale", "-e2b-h200-peer)", "a change of a default overtook it"),
    "another day": (
        "README.md",
        "[29 Nov](runs/2026-11-29-26b-h200-fp8-auto)",
        "[30 Nov](runs/2026-11-29-26b-h200-fp8-auto)",
        "it began on 29 Nov",
    ),
    "passes that were not run": ("README.md", " (E4B: two, 31B: two)", "", "says nothing of two passes"),
    "a number among the bullets": ("README.md", "- **MTP**: ", "- **MTP**: 2.7 times faster, ", "not in the table: 2.7 times"),
    "a loss that no words tell": ("README.md", "token of 26B-A4B", "token of 12B", "26B-A4B loses in time to first token"),
    "a better page": (
        "docs/benchmarks.md",
        "3,024 (2,992 to 3,063)",
        "3,224 (2,992 to 3,263)",
        "summarize, this package: tokens are 3,024",
    ),
    "more passes": ("docs/benchmarks.md", "| 16x500/200 | this package | 2 |", "| 16x500/200 | this package | 5 |", "2 passes, not 5"),
    "an arm that is not the package": ("docs/claims.toml", 'package = "after16"', 'package = "k5"', "12B, bf16, mix of 60"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_planted_lie_is_seen(lie: str, copy: Path) -> None:
    document, true, false, said = LIES[lie]
    text = (copy / document).read_text()
    assert true in text, "the lie has no place; plant it elsewhere"
    (copy / document).write_text(text.replace(true, false, 1))
    found = claimed_numbers.lies(copy, ROOT / "runs")
    assert any(said in one for one in found), found


def test_a_chart_of_other_numbers_is_seen(copy: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = claims.read(ROOT / "docs/claims.toml", ROOT / "runs")
    claims_chart.draw(rows[1:], copy / "docs/img/mixed-load.png")
    assert ["mixed-load.png shows" in one for one in claimed_numbers.lies(copy, ROOT / "runs")] == [True]


def test_the_documents_are_as_the_command_writes_them() -> None:
    rows = claims.read(ROOT / "docs/claims.toml", ROOT / "runs")
    again = "sglang-gemma4 bench --claims docs/claims.toml writes them again"
    assert claims_pages.with_table(text_of("README.md"), rows) == text_of("README.md"), again
    assert claims_pages.page(rows) == text_of("docs/benchmarks.md"), again


def test_a_changed_default_is_in_the_list_of_changes() -> None:
    """Numbers that were measured before it are stale: whoever changes a default says so in docs/claims.toml."""
    recorded = claims.defaults(ROOT / "docs/claims.toml")
    present = {name: switch.default for name, switch in switches.SWITCHES.items() if name in recorded}
    changed = [name for name, default in present.items() if default != recorded[name]]
    assert changed == [], "add a [[change]] to docs/claims.toml, bring [defaults] up to date, then sglang-gemma4 bench --claims"


@pytest.mark.parametrize(
    ("true", "false", "said"),
    [
        ('vllm = "vllm"', 'vlm = "vllm"', "vlm is none of"),
        ('stock = "stock"', 'stock = "stok"', "'stok' has 0 passes on 'mix'"),
        ('readme = "mix"', 'readme = "mixed"', "readme 'mixed' is none of loads"),
        ("2026-11-26-e2b-h200-peer", "2026-11-26-e2b-lost", "has no lines; name a run"),
        ('model = "E2B"\n', "", "model is missing; add it"),
        ('["mix", "chat", "32x1000/200", "single", "prefill"]', '["mix", "long"]', "package's arm 'package' has 0 passes on 'long'"),
    ],
)
def test_a_wrong_claims_file_is_refused(true: str, false: str, said: str, copy: Path) -> None:
    path = copy / "docs/claims.toml"
    path.write_text(path.read_text().replace(true, false, 1))
    with pytest.raises(ValueError, match=re.escape(said)):
        claims.read(path, ROOT / "runs")
