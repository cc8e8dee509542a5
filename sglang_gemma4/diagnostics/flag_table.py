"""``sglang-gemma4 flags``: the verdict on every flag of SGLang's server for Gemma 4, from ``server_flags.toml``.

Neither torch nor sglang is imported. The message of a refused example is the preflight check's, or SGLang's where
SGLang refuses first.
"""

import argparse
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.diagnostics import mtp_limits, pool_limits, preflight
from sglang_gemma4.models.config_files import PreflightError
from sglang_gemma4.tiny import checkpoints

TABLE = Path(__file__).with_name("server_flags.toml")
VERDICTS = {
    "works": "a test serves Gemma 4 with it",
    "refused": "what it asks for is refused before weights are loaded",
    "untested": "it is SGLang's, starts, and nothing here runs it",
    "not ours": "no Gemma 4 server meets it, or no model is asked",
}
MODEL = "tiny-26b-a4b"
MTP: dict[str, Any] = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
MTP |= {
    "speculative_adaptive": False,
    "speculative_draft_attention_backend": None,
    "speculative_attention_mode": "prefill",
    "kv_cache_dtype": "auto",
}


@dataclass(frozen=True)
class Group:
    """Flags that share a verdict.

    Attributes:
        flags: names of ``ServerArgs`` fields.
        tests: test files, relative to the repository, that start a server with these flags.
        tried: values with which ``tests/engine/test_flags_tried.py`` starts one engine, all at once.
        beside: further values that ``tried`` needs.
    """

    name: str
    verdict: str
    flags: tuple[str, ...]
    why: str = ""
    tests: tuple[str, ...] = ()
    tried: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """Values with which no server starts. MODEL in them stands for the model's path.

    Attributes:
        by: who refuses: the preflight check of "values" as typed, of "pools" or "mtp" as resolved, or "sglang"
            itself.
        said: SGLang's message; empty where a check of this package refuses.
        gpu: True if the CPU reference engine is refused for another reason first.
        cpu_engine: True if only the CPU reference engine is refused.
    """

    given: Mapping[str, Any]
    by: str = "values"
    said: str = ""
    gpu: bool = False
    cpu_engine: bool = False

    def arguments(self, model: str) -> dict[str, Any]:
        """The refused values, with ``model`` in place of MODEL."""
        return {name: _at(value, model) for name, value in self.given.items()}

    @property
    def line(self) -> str:
        """The message that the operator reads."""
        return self.said or _line(self)


def _at(value: Any, model: str) -> Any:
    if isinstance(value, list):
        return [_at(one, model) for one in value]
    return value.replace("MODEL", model) if isinstance(value, str) else value


def groups() -> list[Group]:
    """All groups, in the order of the table."""
    return [
        Group(
            one["name"],
            one["verdict"],
            (*one.get("flags", "").split(), *one.get("tried", {})),
            one.get("why", ""),
            tuple(one.get("tests", ())),
            one.get("tried", {}),
            one.get("beside", {}),
        )
        for one in _read()["group"]
    ]


def refused() -> list[Refused]:
    """All examples of refused values."""
    return [Refused(**one) for one in _read()["refused"]]


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text())


def _line(example: Refused) -> str:
    model = str(checkpoints.SHIPPED / MODEL)
    given = example.arguments(model)
    try:
        if example.by == "pools":
            _check_pools(given)
        elif example.by == "mtp":
            mtp_limits.check(MTP | {"prefill_backend": "triton", "decode_backend": "triton"} | given)
        else:
            preflight.check({"model_path": model, **given}, cpu_engine=example.cpu_engine)
    except PreflightError as error:
        return str(error).replace(model, "MODEL")
    raise ValueError(f"{dict(example.given)} of {TABLE.name} is not refused by the check of {example.by}; correct the row")


def _check_pools(given: Mapping[str, Any]) -> None:
    """Check the pools as a server does that has 2,048-token chunks, sizes its pools by window and whose model has a window of 64."""
    resolved = {"chunked_prefill_size": 2048, "disable_overlap_schedule": True, **given}
    tokens, ratio = given["max_total_tokens"], given.get("swa_full_tokens_ratio")
    preflight.refuse(pool_limits.problems(tokens, ratio, resolved, window=64, context=8192, interval=128, sized=True))


def typed(given: Mapping[str, Any]) -> str:
    """The values as they are typed on a command line."""
    words = []
    for name, value in given.items():
        several = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {several}"))
    return " ".join(words)


def markdown() -> str:
    """The tables of docs/flags.md."""
    return "\n\n".join(("\n".join(_counts()), *("\n".join(_verdict(verdict)) for verdict in VERDICTS), "\n".join(_examples())))


def _counts() -> Iterator[str]:
    yield "| verdict | means | flags |"
    yield "| --- | --- | ---: |"
    for verdict, meaning in VERDICTS.items():
        yield f"| {verdict} | {meaning} | {sum(len(one.flags) for one in groups() if one.verdict == verdict)} |"


def _verdict(verdict: str) -> Iterator[str]:
    yield f"## {verdict.capitalize()}"
    yield ""
    yield "| what | flags | notes |"
    yield "| --- | --- | --- |"
    for one in groups():
        if one.verdict == verdict:
            notes = [one.why, "tests: " + ", ".join(f"`{path}`" for path in one.tests) if one.tests else ""]
            yield f"| {one.name} | {' '.join(f'`{name}`' for name in one.flags)} | {' '.join(filter(None, notes))} |"


def _examples() -> Iterator[str]:
    yield "## Values that are refused before weights are loaded"
    yield ""
    yield "| given | says |"
    yield "| --- | --- |"
    for one in refused():
        where = " (CPU reference engine)" if one.cpu_engine else ""
        yield f"| `{typed(one.given)}`{where} | {'SGLang: ' if one.by == 'sglang' else ''}{one.line} |"


def data() -> dict[str, dict[str, Any]]:
    """JSON-ready, by flag: its verdict, the group that shares it, the reason, the tests, and examples of refused values."""
    examples = refused()
    return {flag: _row(one, flag, examples) for one in groups() for flag in one.flags}


def _row(group: Group, flag: str, examples: Sequence[Refused]) -> dict[str, Any]:
    said = [{"given": typed(one.given), "says": one.line} for one in examples if flag in one.given]
    return {"verdict": group.verdict, "group": group.name, "why": group.why, "tests": list(group.tests), "refused": said}


def text(limit: int | None = None) -> str:
    """The table for a terminal of ``limit`` columns: the groups by verdict, with their flags."""
    lines = [terminal.wrapped(f"{one.verdict:<9} {one.name}: {' '.join(one.flags)}", limit, " " * 10) for one in groups()]
    return "\n".join(itertools.chain(*lines))


def _field(name: str) -> str:
    """The ``ServerArgs`` field of ``name``, which may be written as a flag or as a field.

    Raises:
        ValueError: there is no such flag.
    """
    wanted = name.removeprefix("--").replace("-", "_")
    if not any(wanted in one.flags for one in groups()):
        raise ValueError(f"{name} is no flag of the supported SGLang; `sglang-gemma4 flags` lists them")
    return wanted


def about(name: str, limit: int | None = None) -> str:
    """What the table says about one flag, for a terminal of ``limit`` columns; ValueError if there is no such flag."""
    wanted = _field(name)
    found = next(one for one in groups() if wanted in one.flags)
    lines = [f"--{wanted.replace('_', '-')}: {found.verdict} ({VERDICTS[found.verdict]}), {found.name}. {found.why}".rstrip()]
    lines += [f"  test: {path}" for path in found.tests]
    lines += [f"  refused: {typed(one.given)}: {one.line}" for one in refused() if wanted in one.given]
    return "\n".join(part for line in lines for part in terminal.wrapped(line, limit, "    "))


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or one flag's verdict."""
    limit = terminal.width()
    if arguments.json:
        print(json.dumps(data()[_field(arguments.name)] if arguments.name else data(), indent=2))
    elif arguments.name:
        print(about(arguments.name, limit))
    else:
        print(markdown() if arguments.markdown else text(limit))
    return 0


def add_command(commands: Any) -> None:
    """Add the subcommand ``flags``."""
    parser = commands.add_parser("flags", help="which flags of SGLang's server work with Gemma 4, are refused, or are untested")
    parser.add_argument("name", nargs="?", metavar="FLAG", help="one flag: its verdict, its tests, and which values are refused")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: an object by flag, or one flag's")
    form.add_argument("--markdown", action="store_true", help="print the tables of docs/flags.md")
    parser.set_defaults(run=run)
