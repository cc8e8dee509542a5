"""SGLang's four endpoints with real serving classes and a scripted engine: a client of each gets the same answer, whole and streamed."""

import json
import logging
from typing import Any

import endpoint_answers  # type: ignore[import-not-found]
import pytest
import scripted_server  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

from sglang_gemma4.patches import load
from tests.harness import applied
from tests.harness.child import InChild

PATCHES = [load("answer_parser"), load("tool_grammar")]
S = tool_answers.S
ANSWERS = endpoint_answers.ANSWERS
THOUGHT = "Rome it is.\n<channel|>Rome."
"""An answer behind a thought that its prompt opened."""


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    applied.import_entry_points(applied.SERVING, PATCHES)


def server(switch: str = "1", template_end: str = "") -> Any:
    """The endpoints, with the package unless ``switch`` is "0"."""
    applied.apply(PATCHES, switch)
    template = (scripted_server.FOLDER / "chat_template.jinja").read_text()
    return scripted_server.Endpoints(template + template_end)


def test_every_endpoint_gives_every_answer_right_whole_and_streamed(in_child: InChild) -> None:
    assert len(endpoint_answers.SIZES) == 1 + 14
    assert in_child(lambda: endpoint_answers.differences(server(), ANSWERS, endpoint_answers.SIZES)) == []


def test_stock_gets_them_wrong(in_child: InChild) -> None:
    def child() -> list[str]:
        return sorted({line.partition(",")[0] for line in endpoint_answers.differences(server("0"), ANSWERS, (None, 5))})

    assert len(in_child(child)) > 25, "SGLang has repaired some of these: see whether the patch can go"


def test_completions_give_the_text_as_it_was_written(in_child: InChild) -> None:
    def child() -> list[str]:
        endpoints = server()
        sizes = endpoint_answers.SIZES
        return [one.name for one in ANSWERS for size in sizes if endpoints.ask("completions", one.wrote, size).text != one.wrote]

    assert in_child(child) == []


def test_a_thought_that_the_template_opened_is_no_answer(in_child: InChild) -> None:
    def child() -> Any:
        endpoints = server(template_end=endpoint_answers.OPENED)
        seen = [
            (endpoints.ask(at, THOUGHT, size, thinking=True), size) for at in endpoint_answers.PARSED for size in endpoint_answers.SIZES
        ]
        return [[one.thought, one.text, one.calls] for one, _ in seen]

    assert in_child(child) == [["Rome it is.", "Rome.", []]] * 45


def test_a_text_that_names_a_call_is_not_said_to_be_a_lost_call(in_child: InChild) -> None:
    """SGLang warns of a dropped call where its parser says there is one, and then finds none."""
    texts = ["Docs: call:weather(city: str)", "`call:weather{}`", "<|tool_call>call:dance{}<tool_call|>", "<|tool_call>no"]

    def child() -> Any:
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger().addHandler(handler)
        endpoints = server()
        seen = [endpoints.ask(at, text).text for at in endpoint_answers.PARSED for text in texts]
        return seen, [line for line in said if "dropping" in line], [line for line in said if "does not declare" in line]

    seen, dropped, undeclared = in_child(child)
    assert seen == texts * len(endpoint_answers.PARSED)
    assert dropped == []
    assert len(undeclared) == len(endpoint_answers.PARSED)


HALVES = {
    "a high half at the answer's end": ('{"city": "Rome\\ud83d', {"city": "Rome"}),
    "a low half that is cut": ('{"city": "Rome\\ud83d\\ude', {"city": "Rome"}),
    "a high half": ('{"city": "a\\ud83db"}<tool_call|>', {"city": "a\ufffdb"}),
    "a high half before another escape": ('{"city": "a\\ud83d\\n"}<tool_call|>', {"city": "a\ufffd\n"}),
    "a low half": ('{"city": "a\\ude00b"}<tool_call|>', {"city": "a\ufffdb"}),
    "both halves": ('{"city": "a\\ud83d\\ude00b"}<tool_call|>', {"city": "a\U0001f600b"}),
    "an escaped backslash": ('{"city": "a\\\\ud83d"}<tool_call|>', {"city": "a\\ud83d"}),
    "in a key": ('{"\\ud83d": 1}<tool_call|>', {"\ufffd": 1}),
    "not escaped": (f"{{city:{S}a\ud83db{S}}}<tool_call|>", {"city": "a\ufffdb"}),
    "not escaped, without delimiters": ("{city:a\ud83db}<tool_call|>", {"city": "a\ufffdb"}),
}
"""Arguments with half a character (a lone surrogate), which no response can be encoded with, and what a client gets."""


def test_half_a_character_in_arguments_breaks_no_endpoint(in_child: InChild) -> None:
    def child() -> list[str]:
        endpoints, wrong = server(), []
        for name, (arguments, expected) in HALVES.items():
            for at in endpoint_answers.PARSED:
                for size in (None, 1, 5):
                    seen = endpoints.ask(at, f"<|tool_call>call:weather{arguments}", size, finish="length")
                    if (got := endpoint_answers.value(seen.calls[0][1], cut=True)) != expected:
                        wrong.append(f"{name}, {at}, {size}: {got!a}")
            written = f"<|tool_call>call:weather{arguments}"
            if written.isascii():  # an engine's text is UTF-8
                wrong += [name for size in (None, 1, 5) if endpoints.ask("completions", written, size).text != written]
        return wrong

    assert in_child(child) == []


FINISHES = {
    "stop": {"chat": "stop", "responses": "incomplete", "messages": "end_turn"},
    "length": {"chat": "length", "responses": "incomplete", "messages": "max_tokens"},
}


def test_a_call_that_the_end_cut_is_reported(in_child: InChild) -> None:
    def child() -> Any:
        endpoints = server()
        wrote = f"<|tool_call>call:weather{{days:1}}<tool_call|><|tool_call>call:weather{{city:{S}Ro"

        def reasons(finish: str, at: str) -> list[str]:
            return [endpoints.ask(at, wrote, size, finish=finish).finish for size in (None, 1, 7)]

        return {finish: {at: reasons(finish, at) for at in endpoint_answers.PARSED} for finish in FINISHES}

    assert in_child(child) == {finish: {at: [reason] * 3 for at, reason in reasons.items()} for finish, reasons in FINISHES.items()}


HISTORY = {
    "cut in a string": ('{"city": "Ro', 'city:<|"|>Ro<|"|>'),
    "cut in a key": ('{"days": 1, "ci', "days:1"),
    "cut in a number": ('{"days": 1', "days:1"),
    "cut before the first value": ('{"city": ', ""),
    "cut at once": ("{", ""),
    "null": (None, ""),
    "null as JSON": ("null", ""),
    "empty": ("", ""),
    "whole": ('{"city": "Rome"}', 'city:<|"|>Rome<|"|>'),
    "half a character": ('{"city": "Rome\\ud83d"}', 'city:<|"|>Rome\ufffd<|"|>'),
    "cut in a character": ('{"city": "Rome\\ud83d', 'city:<|"|>Rome\ufffd<|"|>'),
}


def past_call(arguments: Any) -> list[dict[str, Any]]:
    """A conversation with a call."""
    function = {"name": "weather", "arguments": arguments}
    return [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "Sun."},
    ]


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
def test_a_call_that_was_cut_can_be_sent_back(endpoint: str, in_child: InChild) -> None:
    """On /v1/responses SGLang itself takes arguments that are no JSON for none."""

    def child() -> Any:
        endpoints, found = server(), {}
        for name, (given, _) in HISTORY.items():
            seen = endpoints.ask(endpoint, "Yes.", messages=past_call(given))
            request = endpoints.engine.request
            prompt = request.text or endpoints.engine.tokenizer.decode(request.input_ids)
            found[name] = [seen.text, prompt[prompt.index("<|tool_call>") : prompt.index("<tool_call|>")]]
        return found

    found = in_child(child)
    for name, (_, rendered) in HISTORY.items():
        expected = "" if endpoint == "responses" and ("cut" in name or "half" in name) else rendered
        assert found[name] == ["Yes.", f"<|tool_call>call:weather{{{expected}}}"], name


def test_arguments_that_are_no_beginning_of_an_object_are_refused(in_child: InChild) -> None:
    def child() -> list[str]:
        endpoints, answered = server(), []
        for arguments in ('{"city": "Rome"} and', "[1]", "1", "city"):
            try:
                endpoints.ask("chat", "Yes.", messages=past_call(arguments))
                answered.append(arguments)
            except AttributeError:  # an error has no choices
                pass
        return answered

    assert in_child(child) == []


def conversations(text: str) -> dict[str, dict[str, Any]]:
    """Requests with a client's text in each role."""
    function = {"name": "weather", "arguments": json.dumps({"city": text})}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    empty = {**call, "tool_calls": [{"id": "1", "type": "function", "function": {**function, "arguments": "{}"}}]}
    user, sun = {"role": "user", "content": "?"}, {"role": "tool", "tool_call_id": "1", "content": "Sun."}
    described = [{**tool, "function": {**tool["function"], "description": text}} for tool in scripted_server.chat_tools()]
    return {
        "system": {"messages": [{"role": "system", "content": text}, user]},
        "user": {"messages": [{"role": "user", "content": text}]},
        "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "text", "text": text}]}]},
        "assistant": {"messages": [user, {"role": "assistant", "content": text}, user]},
        "thought": {"messages": [user, {**empty, "reasoning_content": text}, sun]},
        "arguments": {"messages": [user, call, sun]},
        "result": {"messages": [user, empty, {**sun, "content": text}]},
        "description": {"messages": [user], "tools": described},
    }


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
WAYS: dict[str, dict[str, Any]] = {
    "thinking": {"thinking": True},
    "no thinking": {},
    "JSON behind a thought": {"thinking": True, "tools": False, "response_format": SCHEMA},
    "a call that must come": {"thinking": True, "tool_choice": "required"},
    "continued": {"thinking": True, "continue_final_message": True},
    "JSON continued": {"thinking": True, "tools": False, "response_format": SCHEMA, "continue_final_message": True},
}


WROTE = f"<|channel>thought\nHm.\n<channel|>Yes.<|tool_call>call:weather{{city:{S}Rome{S}}}<tool_call|>"


def markers_of(endpoints: Any) -> list[str]:
    """The special tokens of the tokenizer."""
    return [str(token) for token in endpoints.engine.tokenizer.get_added_vocab()]


def test_no_text_of_a_client_changes_how_an_answer_is_parsed_or_constrained(in_child: InChild) -> None:
    """For each special token of the tokenizer, in each role, at each end of a text."""

    def child() -> Any:
        endpoints, wrong = server(), []
        markers = markers_of(endpoints)
        texts = [text for marker in markers for text in (f"b {marker}", f"{marker}thought\n")]

        def ask(role: str, text: str, way: str) -> Any:
            begun = [{"role": "assistant", "content": "Well: "}] if "continue" in way else []
            asked = conversations(text)[role]
            seen = endpoints.ask("chat", WROTE, **{**asked, **WAYS[way], "messages": asked["messages"] + begun})
            return seen, str(endpoints.engine.request.sampling_params), endpoints.engine.request.require_reasoning

        for role in conversations(""):
            for way in WAYS:
                if role == "description" and WAYS[way].get("tools") is False:
                    continue
                expected = ask(role, "x", way)
                wrong += [f"{role}, {text!r}, {way}" for text in texts if ask(role, text, way) != expected]
        return len(markers), wrong

    markers, wrong = in_child(child)
    assert markers > 10
    assert wrong == []


SYSTEM = {"responses": "instructions", "messages": "system"}
FORCED = {"responses": "required", "messages": {"type": "any"}}


@pytest.mark.parametrize("endpoint", SYSTEM)
def test_nor_at_the_other_endpoints(endpoint: str, in_child: InChild) -> None:
    ways: dict[str, dict[str, Any]] = {"thinking": {"thinking": True}, "no thinking": {}, "forced": {"tool_choice": FORCED[endpoint]}}

    def child() -> Any:
        endpoints, wrong = server(), []

        def ask(role: str, text: str, way: str) -> Any:
            asked = {SYSTEM[endpoint]: text} if role == "system" else conversations(text)[role]
            seen = endpoints.ask(endpoint, WROTE, **asked, **ways[way])
            return seen, str(endpoints.engine.request.sampling_params), endpoints.engine.request.require_reasoning

        for role in ("system", "user", "assistant", "arguments", "result"):
            for way in ways:
                expected = ask(role, "x", way)
                texts = [f"{marker}thought\n" for marker in markers_of(endpoints)]
                wrong += [f"{role}, {text!r}, {way}" for text in texts if ask(role, text, way) != expected]
        return wrong

    assert in_child(child) == []


def test_a_completion_is_never_parsed(in_child: InChild) -> None:
    def child() -> list[str]:
        endpoints = server()
        prompts = [f"{marker}thought\n" for marker in markers_of(endpoints)]
        return [prompt for prompt in prompts if endpoints.ask("completions", WROTE, prompt=prompt).text != WROTE]

    assert in_child(child) == []


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ("<|channel>thought\nHm", ["Rome it is.", "Rome."]),
        ("<|channel>thought\nHm\n<channel|>So: ", ["", THOUGHT.replace("<channel|>", "")]),
    ],
)
def test_an_answer_is_continued_where_it_was(begun: str, expected: list[str], in_child: InChild) -> None:
    def child() -> Any:
        messages = [{"role": "user", "content": "<|channel>"}, {"role": "assistant", "content": begun}]
        endpoints = server()
        asked = {"messages": messages, "continue_final_message": True, "thinking": True}
        return [[seen.thought, seen.text] for size in (None, 1, 5) for seen in [endpoints.ask("chat", THOUGHT, size, **asked)]]

    assert in_child(child) == [expected] * 3
