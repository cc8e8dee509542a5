"""Calls of SGLang's and vLLM's own tests of their Gemma 4 parsers, and of public reports: what was written and what is read.

Where we decide otherwise, ``OTHERWISE`` says what and why.
"""

import json
from typing import Any

import pytest

from tests.unit import answers
from tests.unit.answers import STRING as Q

NAMES = (
    "weather time bash gdb read_file terminal web_search web-search fs.read_file get-weather weather.get get_status set_config search set "
    "todowrite write_file edit record"
)
TOOLS: dict[str, Any] = dict.fromkeys(NAMES.split())

ARGUMENTS: list[tuple[str, Any]] = [
    # vLLM, tests/tool_parsers/test_gemma4_tool_parser.py
    ("", {}),
    ("   ", {}),
    (f"location:{Q}Paris, France{Q}", {"location": "Paris, France"}),
    (f"location:{Q}San Francisco{Q},unit:{Q}celsius{Q}", {"location": "San Francisco", "unit": "celsius"}),
    ("count:42", {"count": 42}),
    ("score:3.14", {"score": 3.14}),
    ("flag:true,other:false", {"flag": True, "other": False}),
    ("param:null", {"param": None}),
    (f"name:{Q}test{Q},count:42,active:true,score:3.14", {"name": "test", "count": 42, "active": True, "score": 3.14}),
    (f"nested:{{inner:{Q}value{Q}}}", {"nested": {"inner": "value"}}),
    (f"record_map:{{{Q}3{Q}:{Q}new text{Q}}}", {"record_map": {"3": "new text"}}),
    (f"outer:{{inner:{{{Q}3{Q}:{Q}new text{Q}}}}}", {"outer": {"inner": {"3": "new text"}}}),
    (f"items:[{Q}a{Q},{Q}b{Q}]", {"items": ["a", "b"]}),
    (f"key:{Q}unterminated", {"key": "unterminated"}),
    ("key:", {"key": ""}),
    (f"name:{Q}test{Q},flag:", {"name": "test", "flag": ""}),
    ("left:108.,right:22.8", {"left": 108.0, "right": 22.8}),
    ("items:[42,true,3.14]", {"items": [42, True, 3.14]}),
    ("items:[]", {"items": []}),
    (f"items:[[{Q}a]b{Q},{Q}c{Q}],{Q}tail{Q}]", {"items": [["a]b", "c"], "tail"]}),
    ("input:{all:true}", {"input": {"all": True}}),
    (f"path:{Q}index.html{Q},content:{Q}<!DOCTYPE html>\n<html>\n{Q}", {"path": "index.html", "content": "<!DOCTYPE html>\n<html>\n"}),
    (f"old:{Q}a{Q},new:{Q}b{Q},replace_all:false", {"old": "a", "new": "b", "replace_all": False}),
    # SGLang, test/registered/unit/function_call/test_gemma4_detector*.py
    (f"items:[[{Q}a[b{Q},{Q}c{Q}],{Q}tail{Q}]", {"items": [["a[b", "c"], "tail"]}),
    (f"items:[[{Q}a[b]c{Q},{Q}d{Q}]]", {"items": [["a[b]c", "d"]]}),
    (f"query:weather in Tokyo{Q}", {"query": "weather in Tokyo"}),
    (f"query:Paris, France{Q},limit:5", {"query": "Paris, France", "limit": 5}),
    (f"filters:{{city:Tokyo{Q}}},query:{Q}x{Q}", {"filters": {"city": "Tokyo"}, "query": "x"}),
    (f"query:[{Q}a{Q},b{Q}]", {"query": ["a", "b"]}),
    (f"limit:5,exact:true,query:{Q}Note: a, b{Q}", {"limit": 5, "exact": True, "query": "Note: a, b"}),
    ("city: 'Paris'", {"city": "Paris"}),
    # public reports
    ('"content": "has } brace"', {"content": "has } brace"}),
]


@pytest.mark.parametrize(("wrote", "expected"), ARGUMENTS)
def test_arguments(wrote: str, expected: Any) -> None:
    whole = f"<|tool_call>call:record{{{wrote}}}<tool_call|>"
    for cuts in ([], list(range(len(whole)))):
        call, arguments = answers.parts(whole, cuts, tools=TOOLS)
        assert call == ("call", "record")
        assert answers.same(json.loads(arguments.text), expected)


ANSWERS: list[tuple[str, list[tuple[str, Any]], str]] = [
    ("Hello, how can I help you today?", [], "Hello, how can I help you today?"),
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


OTHERWISE: list[tuple[str, list[tuple[str, Any]], str, str]] = [
    (f"<call>weather{{city:{Q}Paris{Q}}}", [], f"<call>weather{{city:{Q}Paris{Q}}}", "vLLM guesses a call without call:"),
    (
        f"<|tool_call>call:dance{{a:{Q}b{Q}}}<tool_call|>",
        [],
        f"<|tool_call>call:dance{{a:{Q}b{Q}}}<tool_call|>",
        "undeclared: both call it",
    ),
    (f"Let me check. <|tool_call>call:time{{a:{Q}b{Q}}}<tool_call|>", [("time", {"a": "b"})], "Let me check. ", "vLLM strips the text"),
    (f"<|tool_call>call:gdb{{args:{Q}-x{Q}}}<turn|>", [("gdb", {"args": "-x"})], "<turn|>", "it ends an answer, so none has it"),
    ("<|tool_call>call:record{items:[42,]trailing]}<tool_call|>", [("record", {"items": [42], "trailing": ""})], "", "they drop the word"),
    (
        f"<|tool_call>call:record{{query:[ k:{Q}1]]}}<tool_call|>",
        [("record", {"query": ["k:", 1]})],
        "",
        "SGLang asks only that reading ends",
    ),
]


@pytest.mark.parametrize(("wrote", "calls", "text", "why"), OTHERWISE)
def test_where_we_decide_otherwise(wrote: str, calls: list[tuple[str, Any]], text: str, why: str) -> None:
    assert why
    assert _read(wrote, []) == (calls, text)


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
