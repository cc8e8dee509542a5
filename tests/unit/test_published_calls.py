"""Answers of SGLang's and vLLM's own tests of their Gemma 4 parsers, and of public reports: what was written and what is read.

``published_answers`` has those of the tests, with a word on each that we decide otherwise.
"""

import json
from typing import Any

import pytest

from sglang_gemma4.serving import schema_types
from tests.harness.inputs import answers, published_answers
from tests.harness.inputs.answers import STRING as Q
from tests.harness.inputs.published_answers import Published

NAMES = (
    "weather time bash gdb read_file terminal web_search web-search fs.read_file get-weather weather.get get_status set_config search set "
    "todowrite write_file edit record"
)
TOOLS: dict[str, Any] = dict.fromkeys(NAMES.split())

CASES = published_answers.cases()


@pytest.mark.parametrize("case", CASES, ids=[f"{n}" for n in range(len(CASES))])
def test_answers_of_their_tests(case: Published) -> None:
    """Whole, and cut at each character."""
    tools = schema_types.ToolSchemas(published_answers.TOOLS)
    for cuts in ([], list(range(len(case.wrote)))):
        parts = answers.parts(case.wrote, cuts, tools=tools, unmarked=case.thinking and not case.opened, in_thought=case.opened)
        names = [part.text for part in parts if part.kind == "call"]
        arguments = [json.loads(part.text) for part in parts if part.kind == "arguments"]
        assert answers.same([list(pair) for pair in zip(names, arguments, strict=True)], [list(pair) for pair in case.calls])
        assert "".join(part.text for part in parts if part.kind == "text") == case.text
        assert "".join(part.text for part in parts if part.kind == "thought") == case.thought


def test_most_of_them_are_read_as_they_expect() -> None:
    otherwise = [case for case in CASES if case.otherwise]
    assert (len(CASES), len(otherwise)) == (168, 29)


ANSWERS: list[tuple[str, list[tuple[str, Any]], str]] = [
    (f"<|tool_call>call:bash{{command:{Q}ls -la /work{Q}}}<tool_call|>", [("bash", {"command": "ls -la /work"})], ""),
    (
        f"<|tool_call>call:read_file{{path:{Q}a{Q}}}<tool_call|>\n<|tool_call>call:bash{{command:{Q}make -j8{Q}}}<tool_call|>",
        [("read_file", {"path": "a"}), ("bash", {"command": "make -j8"})],
        "",
    ),
    (f"<|channel>thought\nI need it.\n<channel|>call:bash{{command:{Q}cat a.c{Q}}}", [("bash", {"command": "cat a.c"})], ""),
    (f"<|tool_call>:call:bash{{command:{Q}pytest{Q}}}", [("bash", {"command": "pytest"})], ""),
    (f"some prose\ncall:bash{{command:{Q}make -j8{Q}}}", [("bash", {"command": "make -j8"})], "some prose\n"),
    (f"call:web-search{{query:{Q}gemma 4 release{Q}}}", [("web-search", {"query": "gemma 4 release"})], ""),
    (f"call:fs.read_file{{path:{Q}/work/Makefile{Q}}}", [("fs.read_file", {"path": "/work/Makefile"})], ""),
    (f"<|tool_call>call:get-weather{{a:{Q}London{Q}}}<tool_call|>", [("get-weather", {"a": "London"})], ""),
    (f"<|tool_call>call:weather.get{{a:{Q}London{Q}}}<tool_call|>", [("weather.get", {"a": "London"})], ""),
    ("<|tool_call>call:get_status{}<tool_call|>", [("get_status", {})], ""),
    (f"<|tool_call>call:weather{{a:{Q}Paris{Q}}}<tool_call|><div>", [("weather", {"a": "Paris"})], "<div>"),
    (f"<|tool_call>call:terminal(command:{Q}ls -a{Q})<tool_call|>", [("terminal", {"command": "ls -a"})], ""),
    (
        f"<|tool_call>call:terminal(command:{Q}ls{Q})<tool_call|><|tool_call>call:terminal{{command:{Q}pwd{Q}}}<tool_call|>",
        [("terminal", {"command": "ls"}), ("terminal", {"command": "pwd"})],
        "",
    ),
    ('<|tool_call>call:bash(command="echo a, b; (c)")<tool_call|>', [("bash", {"command": "echo a, b; (c)"})], ""),
    ("call:weather(city=\"Paris\", key2: 'value2', temp=22)", [("weather", {"city": "Paris", "key2": "value2", "temp": 22})], ""),
]


@pytest.mark.parametrize(("wrote", "calls", "text"), ANSWERS)
def test_answers(wrote: str, calls: list[tuple[str, Any]], text: str) -> None:
    for cuts in ([], list(range(len(wrote)))):
        assert _read(wrote, cuts) == (calls, text)


@pytest.mark.parametrize(
    "wrote",
    [
        'You can write call:weather(city="Rome") to ask.',
        '```\ncall:weather(city="Rome")\n```\nDone.',
        "Docs: call:weather(city: str, days: list[int] = None) -> dict",
        "Note: call:weather('s not right. And so on.",
        '- call:weather(city="Rome")',
    ],
)
def test_prose_and_code_that_name_a_call_stay_text(wrote: str) -> None:
    for cut in (1, 3, len(wrote)):
        assert _read(wrote, list(range(cut, len(wrote), cut))) == ([], wrote)


def test_keys_of_an_environment_have_equals_signs() -> None:
    wrote = f"<|tool_call>call:bash{{env:{{PATH=/bin:{Q}x{Q},B:{Q}y{Q}}}}}<tool_call|>"
    assert _read(wrote, []) == ([("bash", {"env": {"PATH=/bin": "x", "B": "y"}})], "")


def test_a_call_that_is_cut_streams_as_far_as_it_came() -> None:
    """SGLang and vLLM give it back as text when the answer has ended; arguments that were streamed cannot be taken back."""
    parts = answers.parts(f"<|tool_call>call:weather{{location:{Q}London", tools=TOOLS)
    assert [(part.kind, part.text) for part in parts] == [("call", "weather"), ("arguments", '{"location": "London')]


def _read(wrote: str, cuts: list[int]) -> tuple[list[tuple[str, Any]], str]:
    parts = answers.parts(wrote, cuts, tools=TOOLS)
    names = [part.text for part in parts if part.kind == "call"]
    arguments = [json.loads(part.text) for part in parts if part.kind == "arguments"]
    return list(zip(names, arguments, strict=True)), "".join(part.text for part in parts if part.kind == "text")
