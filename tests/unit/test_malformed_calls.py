"""Calls with a delimiter too few, too many or out of place: their arguments are JSON, and what follows them is read."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.inputs import answers
from tests.harness.inputs.answers import STRING

NEXT = f"<|tool_call>call:time{{zone:{STRING}UTC, maybe{STRING}}}<tool_call|>"
WORDS = ["Rome", "a b", "x, y", "10:30", "", "it's", "f(x)", "a=b", "[1]", "né", 'say "hi"', "5", "true"]
PLACES = re.compile(r"<\|?\w+\|?>|<\|\"\|>|\w+|.", re.DOTALL)
"""What a delimiter is not put into: a marker or a word."""


def _value(chance: random.Random, depth: int) -> str:
    kind = chance.choice("ssssnnbao" if depth else "sssn")
    if kind == "s":
        return f"{STRING}{chance.choice(WORDS)}{STRING}"
    if kind == "a":
        return f"[{','.join(_value(chance, depth - 1) for _ in range(chance.randint(0, 3)))}]"
    if kind == "o":
        return f"{{{_members(chance, depth - 1)}}}"
    return chance.choice(["1", "-2.5e3", "null", "true"])


def _members(chance: random.Random, depth: int) -> str:
    return ",".join(f"{key}:{_value(chance, depth)}" for key in "abcdef"[: chance.randint(1, 3)])


def calls() -> list[str]:
    """200 calls, each with a string at least."""
    chance = random.Random(0)
    return [f"<|tool_call>call:weather{{q:{STRING}{chance.choice(WORDS)}{STRING},{_members(chance, 2)}}}<tool_call|>" for _ in range(200)]


def dropped(call: str) -> Iterator[str]:
    for found in re.finditer(re.escape(STRING), call):
        yield call[: found.start()] + call[found.end() :]


def doubled(call: str) -> Iterator[str]:
    for found in re.finditer(re.escape(STRING), call):
        yield call[: found.start()] + STRING + call[found.start() :]


def moved(call: str) -> Iterator[str]:
    for rest in dropped(call):
        for place in PLACES.finditer(rest):
            yield rest[: place.start()] + STRING + rest[place.start() :]
        yield rest + STRING


def against(wrote: str, cuts: list[int] | None = None) -> str | None:
    """What is wrong with what is read of a malformed call, text, a right call and text, or None."""
    parts = answers.parts(f"{wrote} Then.{NEXT} End.", cuts)
    for part in parts:
        if part.kind == "arguments":
            try:
                assert isinstance(json.loads(part.text), dict)
            except ValueError:
                return f"{wrote}: no JSON: {part.text}"
    last = [(part.kind, part.text) for part in parts[-3:]]
    right = [("call", "time"), ("arguments", '{"zone": "UTC, maybe"}'), ("text", " End.")]
    return None if last == right else f"{wrote}: {parts}"


@pytest.mark.parametrize("way", [dropped, doubled, moved])
def test_a_delimiter_out_of_place_loses_nothing_behind_the_call(way: Any) -> None:
    wrong, count = [], 0
    for call in calls():
        for wrote in way(call):
            count += 1
            reason = against(wrote) or (against(wrote, list(range(len(wrote) + 40))) if count % 20 == 0 else None)
            if reason:
                wrong.append(reason)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])
    assert count > 500


def test_what_was_meant_is_read_of_most() -> None:
    """A delimiter that is missing or doubled costs no value, if the call's strings have no commas or colons of their own."""
    chance = random.Random(1)
    right = total = 0
    for _ in range(100):
        meant = {key: chance.choice(["Rome", "a b", "né", "f(x)"]) for key in "abc"[: chance.randint(1, 3)]}
        call = f"<|tool_call>call:weather{{{','.join(f'{key}:{STRING}{value}{STRING}' for key, value in meant.items())}}}<tool_call|>"
        for wrote in (*dropped(call), *doubled(call)):
            total += 1
            read = answers.parts(wrote)
            right += [json.loads(part.text) for part in read if part.kind == "arguments"] == [meant]
    assert right == total


@pytest.mark.parametrize(
    "wrote",
    [
        f"<|tool_call>call:weather({STRING}:'<<|tool_call>x",
        f"<|tool_call>call:weather{{{STRING}a:'b<tool_call|>",
        f"<|tool_call>call:weather{{[{STRING}<tool_call|>",
        f"<|tool_call>call:weather{{a:[1{STRING}<tool_call|>",
        f"<|tool_call>call:weather{{'a{STRING}<tool_call|>",
        f"<|tool_call>call:weather{{a:'b\\{STRING}}}<tool_call|>",
        '<|tool_call>call:weather{"a:1}<tool_call|>',
        f"<|tool_call>call:weather(a=(1, {STRING}x{STRING})<tool_call|>",
    ],
)
def test_what_is_open_is_closed_where_a_marker_ends_the_call(wrote: str) -> None:
    for cuts in ([], list(range(len(wrote)))):
        parts = answers.parts(f"{wrote} Then.{NEXT} End.", cuts)
        assert all(isinstance(json.loads(part.text), dict) for part in parts if part.kind == "arguments")
        assert [(part.kind, part.text) for part in parts[-3:-1]] == [("call", "time"), ("arguments", '{"zone": "UTC, maybe"}')]
