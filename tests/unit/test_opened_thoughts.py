"""The shipped template's own thoughts, opened behind a tool's result or empty in the prompt, are read as such at every endpoint."""

from typing import Any

import endpoint_answers  # type: ignore[import-not-found]
import pytest
import scripted_server  # type: ignore[import-not-found]

from sglang_gemma4.patches import load
from sglang_gemma4.tiny import chat_format
from tests.harness import applied
from tests.harness.child import InChild
from tests.unit.test_one_bos import CHATS

PATCHES = [load("answer_parser"), load("tool_grammar")]
RESULT = CHATS["a tool's result"]
WROTE = "So it is.\n<channel|>Rome."
SIZES = (None, 1, 5, 10_000)


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    applied.import_entry_points(applied.SERVING, PATCHES)


def server(name: str) -> Any:
    """The endpoints with the chat template of a checkpoint of this name."""
    applied.apply(PATCHES)
    return scripted_server.Endpoints(chat_format.template_of(name))


def prompt_of(endpoints: Any) -> str:
    sent = endpoints.engine.request
    return str(sent.text if sent.text is not None else endpoints.engine.tokenizer.decode(sent.input_ids))


@pytest.mark.parametrize("name", ["tiny-e2b", "tiny-31b"])
def test_behind_a_result_the_answer_goes_on_with_the_thought(name: str, in_child: InChild) -> None:
    def child() -> Any:
        endpoints, wrong = server(name), []
        for at in endpoint_answers.PARSED:
            for size in SIZES:
                seen = endpoints.ask(at, WROTE, size, thinking=True, messages=RESULT)
                if (seen.thought, seen.text, seen.calls) != ("So it is.", "Rome.", []):
                    wrong.append(f"{at}, {size}: {seen}")
                if not prompt_of(endpoints).endswith("<tool_response|><|channel>thought\n"):
                    wrong.append(f"{at}: the prompt ends with {prompt_of(endpoints)[-60:]!r}")
        return wrong

    assert in_child(child) == []


@pytest.mark.parametrize("name", ["tiny-e2b", "tiny-31b"])
def test_an_empty_thought_opens_none(name: str, in_child: InChild) -> None:
    """Without thinking an answer is text from its first token, behind a result too."""
    held = chat_format.EMPTY_THOUGHT if name == "tiny-31b" else ""

    def child() -> Any:
        endpoints, wrong = server(name), []
        for messages, end in ((None, f"<|turn>model\n{held}"), (RESULT, "<tool_response|>")):
            for at in endpoint_answers.PARSED:
                for size in SIZES:
                    seen = endpoints.ask(at, "Rome.", size, messages=messages)
                    if (seen.thought, seen.text, seen.calls) != ("", "Rome.", []) or not prompt_of(endpoints).endswith(end):
                        wrong.append(f"{at}, {size}: {seen} behind {prompt_of(endpoints)[-60:]!r}")
        return wrong

    assert in_child(child) == []


def test_a_continued_message_goes_on_where_the_prompt_left_it(in_child: InChild) -> None:
    """Behind a result its beginning is the thought's, until the thought ends in it."""
    cases = [
        (RESULT, True, "So", " it is.\n<channel|>Rome.", (" it is.", "Rome.")),
        (RESULT, True, "So.\n<channel|>Ro", "me.", ("", "me.")),
        (RESULT, False, "Ro", "me.", ("", "me.")),
        (CHATS["a question"], False, "Ro", "me.", ("", "me.")),
    ]

    def child() -> Any:
        endpoints, wrong = server("tiny-31b"), []
        for messages, thinking, begun, wrote, want in cases:
            for size in SIZES:
                asked = [*messages, {"role": "assistant", "content": begun}]
                seen = endpoints.ask("chat", wrote, size, thinking=thinking, messages=asked, continue_final_message=True)
                if (seen.thought, seen.text) != want or not prompt_of(endpoints).endswith(begun):
                    wrong.append(f"{begun!r}, {size}: {seen} behind {prompt_of(endpoints)[-60:]!r}")
        return wrong

    assert in_child(child) == []
