"""An end marker inside a string: what follows says whether it ended the call, and no more than a bounded text is held back for that."""

import random

import pytest

from sglang_gemma4.serving import string_ends
from sglang_gemma4.serving.answer import AnswerReader
from tests.harness.inputs import answers
from tests.harness.inputs.answers import STRING

BEGUN = f"<|tool_call>call:weather{{a:{STRING}"
X = ("arguments", '{"a": "x"}')
TEXTS = [
    "The token <|\"|>, ends a string.",
    "The token <|\"|> ends a string.",
    "Between <|\"|>, and <|\"|>: a string.",
    "The token <|\"|>,",
    "The token <|\"|>, a key",
]  # fmt: skip


def read(text: str, cuts: list[int] | None = None) -> list[tuple[str, str]]:
    return [(part.kind, part.text) for part in answers.parts(text, cuts)]


@pytest.mark.parametrize("text", TEXTS)
def test_text_behind_a_call_that_lost_a_delimiter_is_no_argument(text: str) -> None:
    wrote = f"{BEGUN}x}}<tool_call|>{text}"
    for cuts in ([], list(range(len(wrote)))):
        assert read(wrote, cuts) == [("call", "weather"), X, ("text", text)]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (f"y{STRING}}}<tool_call|>", '{"a": "x}<tool_call|>y"}'),
        (f"y{STRING} }}<tool_call|>", '{"a": "x}<tool_call|>y"}'),
        (f"y{STRING},b:1}}<tool_call|>", '{"a": "x}<tool_call|>y", "b": 1}'),
        (f"y{STRING}, b : 1}}<tool_call|>", '{"a": "x}<tool_call|>y", "b": 1}'),
        (f"y{STRING},{STRING}b{STRING}:1}}<tool_call|>", '{"a": "x}<tool_call|>y", "b": 1}'),
        (f"y}}<tool_call|>z{STRING}}}<tool_call|>", '{"a": "x}<tool_call|>y}<tool_call|>z"}'),
    ],
)
def test_a_string_with_an_end_marker_goes_on_to_its_delimiter(rest: str, expected: str) -> None:
    wrote = f"{BEGUN}x}}<tool_call|>{rest}"
    for cuts in ([], list(range(len(wrote)))):
        assert read(wrote, cuts) == [("call", "weather"), ("arguments", expected)]


def test_an_array_s_string_goes_on_to_its_delimiter() -> None:
    wrote = f"<|tool_call>call:weather{{a:[{STRING}x]}}<tool_call|>y{STRING},{STRING}z{STRING}]}}<tool_call|>"
    assert read(wrote) == [("call", "weather"), ("arguments", '{"a": ["x]}<tool_call|>y", "z"]}')]


def streamed(wrote: str, size: int) -> list[int]:
    """How many characters of the answer were not given out yet behind each piece."""
    reader, given, late = AnswerReader(thoughts=True, calls=True, tools={"weather": None}), 0, []
    for at in range(0, len(wrote), size):
        given += sum(len(part.text) for part in reader.read(wrote[at : at + size]))
        late.append(at + size - given)
    return late


@pytest.mark.parametrize("size", [1, 13])
@pytest.mark.parametrize("end", ["x}<tool_call|>", "x<tool_call|>"])
def test_text_behind_a_doubtful_marker_is_held_back_to_a_limit(end: str, size: int) -> None:
    """Behind the limit the text streams: of the call's string if no bracket stood before the marker, else behind the call."""
    late = streamed(BEGUN + end + "word " * 4000, size)
    assert max(late) < string_ends.LIMIT + 100
    assert max(late[-len(late) // 2 :]) < 100


def test_the_limit_ends_a_call_whose_brackets_were_closed() -> None:
    text = "word " * 2000
    assert read(f"{BEGUN}x}}<tool_call|>{text}{STRING}}}") == [("call", "weather"), X, ("text", text + STRING + "}")]
    near = "w" * (string_ends.LIMIT - 1)
    assert read(f"{BEGUN}x}}<tool_call|>{near}{STRING}}}")[1:] == [("arguments", f'{{"a": "x}}<tool_call|>{near}"}}')]


def test_a_long_string_with_end_markers_is_whole() -> None:
    text = "<tool_call|> word" * 1000
    assert read(f"{BEGUN}{text}{STRING}}}<tool_call|>Then.") == [
        ("call", "weather"),
        ("arguments", f'{{"a": "{text}"}}'),
        ("text", "Then."),
    ]


@pytest.mark.parametrize(("limit", "later"), [(1, 1), (7, 3), (40, 12)])
def test_no_cut_changes_what_the_limit_decides(limit: int, later: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_ends, "LIMIT", limit)
    monkeypatch.setattr(string_ends, "LATER_LIMIT", later)
    chance = random.Random(limit)
    pieces = [
        "<tool_call|>",
        "}<tool_call|>",
        "<|tool_call>",
        BEGUN,
        STRING,
        f"{STRING}}}",
        f"{STRING},b:",
        "word ",
        "  ",
        "\n",
        "<|",
        "}",
        ",",
    ]
    for _ in range(400):
        wrote = BEGUN + "".join(chance.choice(pieces) for _ in range(chance.randint(1, 20)))
        whole = read(wrote)
        for size in (1, chance.randint(2, 30)):
            assert read(wrote, list(range(0, len(wrote), size))) == whole, wrote
