"""Clients' grammars are tried in a process of their own: what is expensive or leads nowhere is refused, and ends nothing."""

import asyncio
import io
import json
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import xgrammar

from sglang_gemma4.serving import grammar_trial, grammar_trial_process
from sglang_gemma4.serving.byte_cache import ByteCache
from sglang_gemma4.serving.client_grammars import GrammarJudge, keep_within
from sglang_gemma4.serving.grammar_trial import SECONDS, TrialError, Trials
from sglang_gemma4.serving.printed_grammar import dead_end


def nested(levels: int) -> str:
    return '{"type":"array","items":' * levels + "{}" + "}" * levels


ANSWER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}}}
SERVED = {
    "json": [json.dumps(ANSWER), nested(40), '{"enum": [1, "a", null]}', '{"type": "string", "pattern": "^[a-z]{1,40}$"}'],
    "regex": ["[a-z]{3,9}", "(yes|no)", r"\d{4}-\d{2}-\d{2}", "[가-힣]+"],
    "ebnf": ['root ::= root "a" | "b"', 'root ::= "(" root ")" | "x"', "root ::= Token(12345)", 'root ::= "a" (x | "b")\nx ::= x'],
    "structural_tag": [
        json.dumps({"structures": [{"begin": "<f>", "schema": ANSWER, "end": "</f>"}], "triggers": ["<f>"]}),
        json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": ANSWER}}),
    ],
}
REFUSED = {
    "json": {
        nested(300): "needs more than",
        '{"$ref": "#"}': "#: no value satisfies it",
        json.dumps({"enum": [f"value {n}" for n in range(60_000)]}): "needs more than",
        '{"type": 5}': "Type should be a string",
        nested(20_000): "recursion",
        "{": "refused",
    },
    "regex": {
        ".*" * 1000: "needs more than",
        "(a*)+" * 200: "needs more than",
        "((a{1,100}){1,100}){1,100}": "needs more than",
        "(((a*)*)*)*": "needs more than",
        "a" * 200_000: "needs more than",
        "(a": "not closed",
    },
    "ebnf": {
        "root ::= root": "allows no text",
        'root ::= "a" x\nx ::= x "b"': "rule x cannot go on",
        'root ::= root root | "a"': "needs more than",
        'root ::= (("a"{0,1000}){0,1000}){0,1000}': "needs more than",
        "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000: "Nest layer",
        "a ::= b": "root",
    },
    "structural_tag": {
        "[]": "refused",
        json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": ".*" * 1000}}): "needs more than",
        json.dumps({"structures": 5, "triggers": []}): "refused",
    },
}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def usual() -> dict[str, Any]:
    """Much that agents' schemas have, all in one: 60 properties, nested records, enums of 200 texts, alternatives, patterns, formats."""
    kinds: list[dict[str, Any]] = [{"type": "string", "description": "x"}, {"type": "integer", "minimum": 0}, {"type": ["number", "null"]}]
    formats = ("date-time", "email", "uuid", "uri", "ipv4", "date", "time", "ipv6", "duration")
    patterns = (r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}Z$", r"^[A-Z]{2,3}-[0-9]{4,8}$", r"^[\w.+-]+@[\w-]+\.[\w.]+$")
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(6):
        nested = record(inner=nested, **{f"n{n}": kinds[2] for n in range(5)})
    return record(
        fields={"type": "object", "properties": {f"property_{n}": kinds[n % 3] for n in range(60)}, "required": ["property_5"]},
        chosen=record(**{f"c{n}": {"enum": [f"kind {n}, category {value}" for value in range(200)]} for n in range(5)}),
        steps={"type": "array", "items": {"anyOf": [record(kind={"const": f"k{n}"}, text=kinds[0]) for n in range(10)]}, "maxItems": 100},
        written=record(**{name.replace("-", ""): {"type": "string", "format": name} for name in formats}),
        matched=record(**{f"m{n}": {"type": "string", "pattern": pattern} for n, pattern in enumerate(patterns)}),
        long=record(**{f"l{n}": {"type": "string", "maxLength": 500} for n in range(10)}),
        nested=nested,
    )


@pytest.fixture(scope="module")
def trials() -> Trials:
    return Trials()


@pytest.mark.parametrize("kind", SERVED)
def test_what_is_served(kind: str, trials: Trials) -> None:
    for text in SERVED[kind]:
        trials.run({"kind": kind, "text": text})


def test_usual_schemas_take_half_of_the_limit() -> None:
    job = {"backend": "xgrammar", "kind": "json", "text": json.dumps(usual())}
    grammar_trial_process.prepare("xgrammar")
    taken = []
    for _ in range(3):
        before = time.process_time()
        assert grammar_trial_process.attempt(job) == {}
        taken.append(time.process_time() - before)
    assert min(taken) < SECONDS / 2, "a sixth on an idle core"


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(kind: str, trials: Trials) -> None:
    for text, said in REFUSED[kind].items():
        with pytest.raises(TrialError, match=said):
            trials.run({"kind": kind, "text": text})


def test_a_schema_is_converted_there_too(trials: Trials) -> None:
    found = trials.run({"kind": "convert", "text": json.dumps(ANSWER), "options": {"any_whitespace": False}})
    assert found["grammar"] == str(xgrammar.Grammar.from_json_schema(json.dumps(ANSWER), any_whitespace=False))


def test_the_process_that_forks_is_replaced_when_it_ends() -> None:
    trials = Trials()
    trials.run({"kind": "regex", "text": "a"})
    assert trials._control is not None
    trials._control.close()
    trials.run({"kind": "regex", "text": "b"})


def test_a_trial_waits_for_no_thread_that_writes_to_the_log(in_child: Callable[[Callable[[], Any]], Any]) -> None:
    """A thread holds the lock of the log's stream while the process for trials is forked; xgrammar's backend logs what it refuses."""

    def child() -> str:
        reading, writing = os.pipe()
        stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(writing, "w")), write_through=True)
        sys.stderr = stream
        logging.basicConfig(stream=stream, force=True)
        threading.Thread(target=lambda: stream.buffer.write(b"x" * 1_000_000), daemon=True).start()
        os.read(reading, 1)
        grammar_trial._REAL_SECONDS = 20.0
        try:
            return str(Trials().run({"kind": "json", "text": '{"$ref": 5}'}))
        except TrialError as error:
            return str(error)

    assert in_child(child) == "is refused: $ref must be a string"


def test_a_trial_that_hangs_is_tried_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, hung = grammar_trial_process.attempt, tmp_path / "hung"

    def hang_once(job: dict[str, Any]) -> dict[str, Any]:
        if job["text"] == "hangs" or (job["text"] == "hangs once" and not hung.exists()):
            hung.touch()
            time.sleep(300)
        return attempt(job)

    monkeypatch.setattr(grammar_trial_process, "attempt", hang_once)
    monkeypatch.setattr(grammar_trial, "_REAL_SECONDS", 5.0)  # what does not hang gets to its end in that time on a busy machine too
    trials = Trials()
    assert trials.run({"kind": "regex", "text": "hangs once"}) == {}
    with pytest.raises(TrialError, match="try again"):
        trials.run({"kind": "regex", "text": "hangs"})


@pytest.mark.parametrize("backend", ["llguidance", "outlines"])
def test_other_backends(backend: str) -> None:
    trials = Trials(backend)
    trials.run({"kind": "json", "text": json.dumps({**ANSWER, "required": ["city"]})})
    trials.run({"kind": "regex", "text": "[a-z]{3}"})
    for kind, text in (("json", nested(5000)), ("regex", "(((a{1,300}){1,300}){1,300}){1,300}"), ("regex", "(a")):
        with pytest.raises(TrialError):
            trials.run({"kind": kind, "text": text})


def test_a_judge_names_the_parameter_and_tries_a_grammar_once() -> None:
    judge = GrammarJudge("xgrammar", {})

    async def both() -> list[str]:
        found = []
        for parameters in ([{"regex": ".*" * 1000}], [{"regex": ".*" * 1000}], [{"json_schema": {"type": "string"}}], ["no object"]):
            try:
                await judge.judge(parameters)
                found.append("served")
            except TrialError as error:
                found.append(str(error)[:60])
                assert len(judge._verdicts) == 1
        return found

    assert asyncio.run(both()) == [
        *2 * [f"regex: '{'.*' * 26}"],
        "json_schema: {'type': 'string'} is dict; give a text",
        "served",
    ]


@pytest.mark.parametrize(
    ("ebnf", "rule"),
    [
        ('root ::= "a" x\nx ::= x', "x"),
        ('root ::= "ab" x | "q"\nx ::= x "a"', "x"),
        ("root ::= a\na ::= b\nb ::= a", "root"),
        ('root ::= TagDispatch(("a", b), ("c", d))\nb ::= "x"\nd ::= d "y"', "d"),
        ('root ::= "(" root ")" | "x"', None),
        ('root ::= "a" root', None),  # endless, and each text of it goes on
        ('root ::= "a" (x | "b")\nx ::= x', None),
        ('root ::= x* "b"\nx ::= "a" x', None),
        ('root ::= "[" x{0,3} "]"\nx ::= x "a"', None),
        ('root ::= [)|"] "|)" (x | "") (= "c")\nx ::= "\\"" y\ny ::= "z"', None),
    ],
)
def test_a_rule_that_nothing_begins(ebnf: str, rule: str | None) -> None:
    assert dead_end(str(xgrammar.Grammar.from_ebnf(ebnf))) == rule


def test_compiled_grammars_are_kept_within_bytes() -> None:
    kept: dict[Any, Any] = {}
    ages: OrderedDict[Any, int] = OrderedDict()
    for number in range(50):
        key = ("json", f"{number:>1000}")
        kept[key] = SimpleNamespace(grammar=SimpleNamespace(ctx=SimpleNamespace(memory_size_bytes=100_000)))
        keep_within(kept, ages, key, 1_000_000)
    assert [int(text) for _, text in kept] == list(range(41, 50))
    assert list(ages) == list(kept)


def test_a_cache_of_bytes_drops_what_was_not_used_for_longest() -> None:
    made: list[int] = []
    cache: ByteCache[str] = ByteCache(1000, lambda _, value: len(value))

    def ask(number: int, size: int = 300) -> str:
        return cache.get(number, lambda: (made.append(number), "x" * size)[1])  # type: ignore[func-returns-value]

    for number in (1, 2, 3, 1, 4, 1, 2):
        ask(number)
    assert made == [1, 2, 3, 4, 2]
    assert cache.bytes == 900
    ask(9, 2000)
    assert len(ask(9, 2000)) == 2000
    assert made[-2:] == [9, 9]
    assert (len(cache), cache.bytes) == (3, 900), "a value above the limit drops none"


def test_no_process_is_left_behind() -> None:
    trials = Trials()
    for text in ("a", ".*" * 1000):
        try:
            trials.run({"kind": "regex", "text": text})
        except TrialError:
            continue
    forking = psutil.Process().children()
    assert forking
    psutil.wait_procs([each for one in forking for each in one.children()], timeout=30)
    assert not [each for one in forking for each in one.children()]
