"""usage.reasoning_tokens: what the parser calls a thought is counted, and no token behind a stop."""

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import tool_answers  # type: ignore[import-not-found]
from scripted_server import FOLDER  # type: ignore[import-not-found]

from sglang_gemma4.serving.thought_tokens import OPEN_THOUGHT, MarkerIds, ThoughtTokens, count
from tests.harness.inputs import answers

ANSWERS = [*tool_answers.CALLS, *tool_answers.THOUGHTS, *tool_answers.BRACKETS, *tool_answers.DELIMITERS]


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


def ids_of(text: str) -> list[int]:
    return [int(number) for number in tokenizer().encode(text, add_special_tokens=False)]


@functools.cache
def markers() -> MarkerIds:
    found = MarkerIds.of(tokenizer())
    assert found is not None
    return found


@pytest.mark.parametrize("thinking", [True, False])
def test_as_many_tokens_as_the_thought_has(thinking: bool) -> None:
    """Its markers and label are counted with it; a thought without text counts nothing."""
    for answer in ANSWERS:
        parts = answers.parts(answer.wrote, tools=dict.fromkeys(tool_answers.TOOLS), unmarked=thinking)
        thought = "".join(part.text for part in parts if part.kind == "thought")
        wrote = ids_of(answer.wrote)
        found = ThoughtTokens(markers(), ids_of("<|turn>model\n"), thinking).read(wrote, len(wrote))
        assert (found > 0) == bool(thought), answer.name
        assert len(ids_of(thought)) <= found <= len(ids_of(thought)) + 20 if thought else found == 0, answer.name
        assert found <= len(wrote)


@pytest.mark.parametrize(
    ("prompt", "thinking", "wrote", "expected"),
    [
        ("<|turn>model\n", True, "Rome.", ""),
        ("<|turn>model\n<|channel>thought\n", True, "Hm.\n<channel|>Rome.", "Hm.\n<channel|>"),
        ("<|turn>user\n<|channel>thought\n<turn|>\n<|turn>model\n", True, "Rome.", ""),
        ("<|turn>model\n", True, "thought\nHm.<channel|>Rome.", "thought\nHm.<channel|>"),
        ("<|turn>model\n", False, "thought\nHm.", ""),
        ("<|turn>model\n", True, "<|channel>thought\n<channel|>Rome.", ""),
        ("<|turn>model\n", False, "<|channel>thought\nHm.", "<|channel>thought\nHm."),
        ("<|turn>model\n", False, "<|channel>thought\nHm.<|tool_call>call:time{}<tool_call|>Yes.", "<|channel>thought\nHm."),
        ("<|turn>model\n", False, f"<|tool_call>call:weather{{city:{tool_answers.S}<|channel>x{tool_answers.S}}}<tool_call|>", ""),
    ],
)
def test_how_an_answer_begins(prompt: str, thinking: bool, wrote: str, expected: str) -> None:
    answer = ids_of(wrote)
    counted = ThoughtTokens(markers(), ids_of(prompt), thinking)
    one_by_one = [counted.read(answer, length) for length in range(len(answer) + 1)][-1]
    assert one_by_one == ThoughtTokens(markers(), ids_of(prompt), thinking).read(answer, len(answer)) == len(ids_of(expected))


def prompt_ids() -> list[int]:
    return ids_of("<|turn>model\n")


def request(wrote: list[int], **custom: Any) -> Any:
    sampling = SimpleNamespace(custom_params=custom or None)
    return SimpleNamespace(origin_input_ids=prompt_ids(), output_ids=wrote, require_reasoning=True, sampling_params=sampling)


def test_a_thought_that_the_prompt_began_goes_on() -> None:
    wrote = ids_of("am asked.\n<channel|>Rome.")
    assert count(request(wrote, **{OPEN_THOUGHT: True}), markers(), len(wrote)) == len(ids_of("am asked.\n<channel|>"))
    assert count(request(wrote), markers(), len(wrote)) == 0


def test_tokens_behind_a_stop_are_not_counted() -> None:
    """An MTP step brings more tokens than the stop leaves; the tokens before it are not read again."""
    wrote = [*ids_of("I see.<|channel>thought\nI am asked about the river.\n<channel|>The ") * 400, *ids_of("<|channel>thought\nHm.")]
    req, reading = request(wrote), ThoughtTokens(markers(), prompt_ids(), True)
    expected = [reading.read(wrote, length) for length in range(len(wrote) + 1)]
    assert count(req, markers(), len(wrote)) == expected[-1]
    counted = req.gemma4_thought_tokens
    assert [count(req, markers(), len(wrote) - behind) for behind in range(200)] == expected[:-201:-1]
    assert req.gemma4_thought_tokens is counted
    assert count(req, markers(), 8) == expected[8]  # further back than any step: read again


def test_an_answer_that_goes_on_behind_a_shorter_count() -> None:
    wrote = ids_of("<|channel>thought\nI am asked about the river.")
    req = request(wrote)
    assert [count(req, markers(), length) for length in (0, 9, 8, len(wrote), 10, len(wrote))] == [0, 9, 8, len(wrote), 10, len(wrote)]


@pytest.mark.parametrize("again", [lambda wrote: wrote[:4], lambda wrote: [*wrote[:4], *ids_of("\n<channel|>Rome. It is far away.")]])
def test_an_answer_that_was_rewritten_behind_the_count_is_counted_again(again: Any) -> None:
    wrote = ids_of("<|channel>thought\nI am asked about the river.")
    req = request(list(wrote))
    assert count(req, markers(), len(wrote)) == len(wrote)
    req.output_ids[:] = again(wrote)
    expected = ThoughtTokens(markers(), prompt_ids(), True).read(req.output_ids, len(req.output_ids))
    assert count(req, markers(), len(req.output_ids)) == expected
    req.output_ids += ids_of(" And so on.")
    expected = ThoughtTokens(markers(), prompt_ids(), True).read(req.output_ids, len(req.output_ids))
    assert count(req, markers(), len(req.output_ids)) == expected
