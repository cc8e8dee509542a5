"""The commands of the documents, each checked up to where something would start: flags, modules, scripts, extras."""

import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import quickstart
from sglang_gemma4 import cli
from sglang_gemma4.benchmark import vllm
from sglang_gemma4.benchmark.checked_plan import plan_of

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
PROGRAMS = ("sglang-gemma4 ", "python ", "python3 ", "pip install ")


def text_of(document: str) -> str:
    """A file of the repository."""
    return (ROOT / document).read_text()


def commands(document: str) -> Iterator[str]:
    """Lines of shell blocks, and commands within sentences."""
    text = text_of(document)
    for language, body in FENCE.findall(text):
        assert language in ("sh", "python", "text"), f"{document}: a code block without a language is not checked"
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
    if words[0] == "bench" and read is not None and not (read.report or read.index or read.claims):
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
