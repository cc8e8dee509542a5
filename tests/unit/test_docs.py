"""What the documents name exists: links, folders of runs, files, commands, switches; and the README's numbers are those of its runs."""

import contextlib
import importlib.util
import io
import os
import re
import runpy
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import quickstart
from sglang_gemma4 import cli
from sglang_gemma4.benchmark import vllm
from sglang_gemma4.benchmark.checked_plan import plan_of
from sglang_gemma4.patching import switches
from sglang_gemma4.patching.old_switches import OLD_NAMES

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
SWITCH = re.compile(r"\bSGLANG_GEMMA4(?:_[A-Z0-9]+)*\b")
PROGRAMS = ("sglang-gemma4 ", "python ", "python3 ", "pip install ")
PATH = re.compile(r"(?:sglang_gemma4|patches|tests|crash_repro|docs|runs|\.ci)/[\w./-]*")
MOST_LINES = 200
InChild = Callable[[Callable[[], Any]], Any]


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_switches_exist(document: str) -> None:
    """Only the changelog and the table of switches name those of earlier versions."""
    named = set(SWITCH.findall(text_of(document)))
    earlier = document in ("CHANGELOG.md", "docs/switches.md")
    assert [name for name in sorted(named) if name not in NAMES and not (earlier and name in EARLIER)] == []


NAMES = {*switches.SWITCHES, *switches.NO_SWITCHES}
EARLIER = {*OLD_NAMES, "SGLANG_GEMMA4_ATTENTION_JOIN", "SGLANG_GEMMA4_LEAN_VERIFY", "SGLANG_GEMMA4_EARLY_WEIGHTS"}
"""Of version 0.1.0: what is part of another switch now, and what is gone."""


def commands(document: str) -> Iterator[str]:
    """Lines of shell blocks, and commands within sentences."""
    text = text_of(document)
    for language, body in FENCE.findall(text):
        assert language in ("sh", "python"), f"{document}: a code block without a language is not checked"
        if language == "sh":
            yield from (line.strip() for line in body.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    yield from (span for span in SPAN.findall(FENCE.sub("", text)) if re.sub(r"^(\w+=\S+ )+", "", span).startswith(PROGRAMS))


def accepted(parser: ArgumentParser, words: list[str]) -> Namespace | None:
    """The parsed words; None for --help. An error fails with what the parser says."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            return parser.parse_args(words)
    except SystemExit as exit_:
        if exit_.code:
            raise ValueError(said.getvalue().strip().splitlines()[-1]) from None
        return None


def launch_server(words: list[str]) -> None:
    """The flags of SGLang's server."""
    from sglang.srt.server_args import ServerArgs

    parser = ArgumentParser()
    ServerArgs.add_cli_args(parser)
    accepted(parser, words)


def package_command(words: list[str], folder: Path) -> None:
    """``sglang-gemma4 WORDS``, up to where something would start."""
    flags: list[str] = []
    if words[0] == "bench" and "--" in words:  # as cli.main does
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = cli._parser()
    if len(words) == 1:  # a subcommand's name within a sentence
        accepted(parser, [*words, "--help"])
        return
    read = accepted(parser, words)
    if words[0] == "serve" and read is not None:
        launch_server(["--model-path", read.model, *read.flags])
    if words[0] == "bench" and read is not None and not (read.report or read.index):
        launch_server(["--model-path", "MODEL", *flags])
        read.server_flags, read.dry_run = [flag for flag in flags if not flag.startswith("--max-total-tokens")], True  # a card's pools
        with patch.object(vllm, "version", return_value="0"):  # of the reader's machine
            plan_of(read, folder)


class ArgumentsReadError(Exception):
    """Ends a script where its work would begin."""


def as_far_as_its_arguments(words: list[str]) -> None:
    """Run a script, or ``-m MODULE``, until it has read its arguments."""
    real = ArgumentParser.parse_args

    def read(form: ArgumentParser, given: list[str] | None = None, namespace: None = None) -> None:
        real(form, given, namespace)
        raise ArgumentsReadError

    module = words[0] == "-m"
    said, argv = io.StringIO(), words[1:] if module else words
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(ArgumentParser, "parse_args", read))
        stack.enter_context(patch.object(sys, "argv", argv))
        stack.enter_context(patch.object(sys, "path", [str((ROOT / argv[0]).parent), *sys.path]))
        stack.enter_context(contextlib.redirect_stderr(said))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.suppress(ArgumentsReadError))
        try:
            runpy.run_module(argv[0], run_name="__main__") if module else runpy.run_path(str(ROOT / argv[0]), run_name="__main__")
        except SystemExit as exit_:
            if exit_.code:
                raise ValueError(said.getvalue().strip().splitlines()[-1]) from None


def python_command(words: list[str]) -> None:
    """``python WORDS``: the module or the script is there and takes its arguments."""
    name, *rest = words[1:] if words[0] == "-m" else words
    if words[0] == "-m" and importlib.util.find_spec(name) is None:
        raise ValueError(f"there is no module {name}")
    if words[0] != "-m" and not (ROOT / name).exists():
        raise ValueError(f"there is no {name}")
    if name == "quickstart.py":
        arguments, others = quickstart.read_arguments(rest)
        if arguments.job == "serve":
            launch_server(["--model-path", arguments.model, *others])
        elif unknown := [word for word in others if word != "--all" and not (ROOT / word).exists()]:
            raise ValueError(f"quickstart.py test {' '.join(unknown)}")
    elif name == "sglang.launch_server" and rest:
        launch_server(rest)
    elif name == "pytest" and (missing := [word for word in rest if "/" in word and not (ROOT / word).exists()]):
        raise ValueError(f"there is no {', '.join(missing)}")
    elif name.startswith(("sglang_gemma4.", "tests/")) and rest:
        as_far_as_its_arguments(words)


def check(line: str, folder: Path) -> None:
    """A command that a document names.

    Raises:
        ValueError: it would not start.
    """
    words = shlex.split(line, comments=True)
    words = words[: next((at for at, word in enumerate(words) if word in (">", "|", "&&")), len(words))]
    while re.match(r"\w+=", words[0]):
        words = words[1:]
    program, rest = words[0], words[1:]
    if program == "sglang-gemma4":
        package_command(rest, folder)
    elif program in ("python", "python3"):
        python_command(rest)
    elif program == "pip":
        extras = [extra for found in re.findall(r"\[(.+?)\]", line) for extra in found.split(",")]
        if unknown := [extra for extra in extras if f'"{extra}": ' not in text_of("setup.py")]:
            raise ValueError(f"setup.py has no extra {', '.join(unknown)}")
    elif program == "bash":
        if not (ROOT / rest[0]).exists():
            raise ValueError(f"there is no {rest[0]}")
    elif program not in ("pre-commit", "ruff", "mypy", "hf"):
        raise ValueError(f"{program} is no program that this test knows")


def refusal(line: str, folder: Path) -> str | None:
    """``LINE: WHY`` where a command would not start."""
    try:
        check(line, folder)
    except ValueError as error:
        return f"{line}: {error}"
    return None


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


def numbers(cell: str) -> list[str]:
    return re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", cell)


def is_rounded(said: str, value: float) -> bool:
    """Whether ``said`` is ``value`` to as many decimals as it has; a half may go either way, as reports are rounded already."""
    return abs(float(said.replace(",", "")) - value) <= 0.5 * 10.0 ** -len(said.partition(".")[2]) + 1e-9


def gains() -> list[dict[str, str]]:
    """The rows of the README's table of gains by column."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text_of("README.md").splitlines() if line.startswith("|")]
    head = next(at for at, row in enumerate(rows) if row[1:3] == ["stock", "package"])
    width = len(rows[head])
    return [dict(zip(rows[head], row, strict=True)) for row in rows[head + 2 :] if len(row) == width and "runs/" in row[-1]]


@pytest.mark.parametrize("row", gains(), ids=lambda row: row["run"])
def test_the_readme_s_numbers_are_those_of_its_runs(row: dict[str, str]) -> None:
    """Each is in the run's report, and the gain is their ratio."""
    (folder,) = re.findall(r"runs/[\w-]+", row["run"])[:1]
    measured = {float(found.replace(",", "")) for found in numbers((ROOT / folder / "REPORT.md").read_text())}
    stock, package = numbers(row["stock"]), numbers(row["package"])
    for said in (*stock, *package):
        assert any(is_rounded(said, found) for found in measured), f"{said} is not in {folder}/REPORT.md"
    ratios = numbers(row["gain"])
    assert len(stock) == len(package) == len(ratios) > 0
    for before, after, gain in zip(stock, package, ratios, strict=True):
        first, second = (float(each.replace(",", "")) for each in (before, after))
        assert is_rounded(gain, max(first, second) / min(first, second))
