"""The answer parser: what clients get of each kind of answer, however it was cut, and in which time."""

import importlib
import json
import random
import time
from typing import Any

import pytest
import tool_answers  # type: ignore[import-not-found]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_gemma4.patches import load
from sglang_gemma4.patching import hooks
from sglang_gemma4.serving import schema_types
from sglang_gemma4.serving.answer import AnswerReader
from sglang_gemma4.serving.bare_values import bare
from tests.harness import applied
from tests.harness.child import InChild
from tests.harness.inputs import answers, published_answers

PATCH = load("answer_parser")
MANY = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
READINGS: list[dict[str, Any]] = [
    {},
    {"tools": None},
    {"thoughts": False},
    {"calls": False},
    {"any_tool": True},
    {"in_thought": True},
    {"unmarked": True},
]
LISTS = (tool_answers.CALLS, tool_answers.THOUGHTS, tool_answers.BRACKETS, tool_answers.DELIMITERS)
ANSWERS = {answer.name: answer for answers in LISTS for answer in answers}


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    """What the patch changes and what reads answers, once, not in every child."""
    importlib.import_module("sglang.srt.function_call.function_call_parser")
    importlib.import_module("sglang.srt.parser.reasoning_parser")
    for hook in PATCH.hooks:
        hooks.target_of(hook)


def test_clients_get_every_answer_right_at_every_cut(in_child: InChild) -> None:
    def child() -> list[str]:
        applied.apply([PATCH])
        wrong = []
        for answer in ANSWERS.values():
            for size in range(len(answer.wrote) + 1):
                if (seen := tool_answers.read(answer, size)) != answer:
                    wrong.append(f"{answer.name}, pieces of {size}: {seen}")
        return wrong

    assert in_child(child) == []


def test_answers_of_sglangs_and_vllms_own_tests(in_child: InChild) -> None:
    """Through SGLang's two parsers, whole and streamed: 672 tries; of the 556 that we decide as they do stock passes 387."""

    def child() -> list[str]:
        applied.apply([PATCH])
        wrong = []
        for case in published_answers.cases():
            asked = tool_answers.Answer(case.wrote, case.wrote, case.calls, case.text, case.thought, case.thinking)
            for size in (0, 1, 4, 10):
                if (seen := tool_answers.read(asked, size, published_answers.TOOLS, case.opened)) != asked:
                    wrong.append(f"{case.wrote}, pieces of {size}: {seen}")
        return wrong

    assert in_child(child) == []


def test_stock_gets_them_wrong(in_child: InChild) -> None:
    """An answer that stock reads rightly at last is here only because it must stay so."""

    def child() -> list[str]:
        applied.apply([PATCH], "0")
        quick = tuple(answer for answer in ANSWERS.values() if "nested arrays" not in answer.name)  # the endless one
        return sorted({line.partition(",")[0] for line in tool_answers.differences(quick)})

    wrong = in_child(child)
    assert {"two calls of one tool", "null stays null", "a second thought", "no thought although it was asked for"} <= set(wrong)
    assert len(wrong) >= 15, "SGLang has repaired some of these: see whether the patch can go"


@MANY
@given(text=answers.TEXTS, reading=st.sampled_from(READINGS), data=st.data())
def test_a_cut_changes_nothing(text: str, reading: dict[str, Any], data: st.DataObject) -> None:
    whole = answers.parts(text, **reading)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert answers.parts(text, cuts, **reading) == whole
    assert answers.parts(text, list(range(len(text))), **reading) == whole


def test_the_chat_endpoint_gets_the_same_whole_and_streamed(in_child: InChild) -> None:
    """SGLang asks for a whole answer's calls only where its parser says that there is something to read."""

    def child() -> list[str]:
        applied.apply([PATCH])
        chance = random.Random(0)
        texts = ["".join(chance.choice(answers.PIECES) for _ in range(chance.randint(1, 30))) for _ in range(2000)]
        asked = [tool_answers.Answer(text, text, thinking=chance.random() < 0.5) for text in texts]
        return [answer.wrote for answer in asked if tool_answers.read(answer) != tool_answers.read(answer, 3)]

    assert in_child(child) == []


@MANY
@given(text=answers.TEXTS)
def test_calls_that_ended_have_json_arguments_and_text_is_lost_nowhere(text: str) -> None:
    ended = answers.parts(text + "<tool_call|>.", any_tool=True)
    for part in ended[:-2]:
        if part.kind == "arguments":
            assert isinstance(json.loads(part.text, strict=False), dict)
    told_apart = answers.parts(text, thoughts=False, tools=None)  # nothing to take out
    assert "".join(part.text for part in told_apart) == text


@MANY
@given(calls=answers.CALLS, thought=st.sampled_from(["", "I see.", "a\n\nb"]), content=st.sampled_from(["", "Look:", "1\n2"]))
def test_calls_go_through_the_chat_template_and_back(calls: list[tuple[str, Any]], thought: str, content: str) -> None:
    tools = {name: schema_types.whole(schema) for name, (schema, _) in calls}
    wrote = answers.rendered([(name, value) for name, (_, value) in calls], thought, content)
    for cuts in ([], list(range(len(wrote)))):
        read = answers.parts(wrote, cuts, tools=tools)
        assert "".join(part.text for part in read if part.kind == "thought") == thought
        assert "".join(part.text for part in read if part.kind == "text") == content
        assert [part.text for part in read if part.kind == "call"] == [name for name, _ in calls]
        arguments = [json.loads(part.text) for part in read if part.kind == "arguments"]
        assert answers.same(arguments, [value for _, (_, value) in calls])


@pytest.mark.parametrize("name", answers.REPEATED)
def test_any_whole_text_is_read_in_linear_time(name: str) -> None:
    """Regular expressions too, whose steps cannot be counted; the work on pieces is counted in ``test_answer_work.py``."""
    text = answers.repeated(name, 200_000)
    started = time.process_time()
    answers.parts(text)
    if name == answers.LONGEST:  # its part is too long to be counted often
        answers.parts(text, list(range(len(text))))
    assert time.process_time() - started < 20, "a quadratic reader would take minutes"


def test_arguments_stream_as_they_come() -> None:
    """Each token of a string is out with it, but for what may be its end."""
    marker = answers.STRING
    pieces = ["<|tool_call>", "call", ":", "weather", "{", "city", ":", marker, "New ", "Yo", "rk <", "3", marker, ",days", ":1", "2", "}"]
    reader = AnswerReader(thoughts=True, calls=True, tools={"weather": None})
    seen = ["".join(part.text for part in reader.read(piece)) for piece in pieces]
    assert seen[4:] == ["weather", "{", '"city": ', '"', "New ", "Yo", "rk ", "<3", "", '"', ', "days": ', "", "12}"]


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("02139", {"type": "string"}, '"02139"'),
        ("02139", {"type": "integer"}, "2139"),
        ("02139", {}, '"02139"'),
        ("true", {"type": "string"}, '"true"'),
        ("true", {"type": ["string", "boolean"]}, "true"),
        ("null", {"type": "string"}, "null"),
        ("None", {}, "null"),
        ("1", {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "number"}}}, "1"),
        ("1", {"enum": ["1", "2"]}, '"1"'),
        (".5", {}, "0.5"),
        ("5.", {}, "5.0"),
        ("+5", {}, "5"),
        ("-00.50e+3", {"type": "number"}, "-0.50e+3"),
        ("1" * 5000, {}, "1" * 5000),
        ("nan", {"type": "number"}, '"nan"'),
        ("٣", {"type": "integer"}, '"٣"'),
        ("1", {"$ref": "#"}, "1"),
        ("1", {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "1"),
    ],
)
def test_a_value_without_delimiters(text: str, schema: dict[str, Any], expected: str) -> None:
    assert bare(text, schema_types.whole(schema)) == expected


def test_a_schema_that_repeats_itself_costs_no_more_than_any() -> None:
    schema = {"anyOf": [{"$ref": "#"}] * 64}
    started = time.process_time()
    assert schema_types.types(schema_types.whole(schema)) is None
    assert time.process_time() - started < 20, "of each of 64 references another 64 would be followed, without end"


def test_unknown_tools_are_forwarded_where_sglang_is_told_so(in_child: InChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_FORWARD_UNKNOWN_TOOLS", "1")

    def child() -> Any:
        applied.apply([PATCH])
        seen = tool_answers.read(ANSWERS["an undeclared tool"])
        return seen if isinstance(seen, str) else [seen.calls, seen.text]

    assert in_child(child) == [[["dance", {}], ["weather", {"city": "Rome"}]], ""]


@pytest.mark.parametrize("streamed", [True, False])
def test_an_empty_answer_is_its_thought_where_the_request_says_so(streamed: bool, in_child: InChild) -> None:
    def child() -> Any:
        from types import SimpleNamespace

        from sglang.srt.parser.reasoning_parser import ReasoningParser

        applied.apply([PATCH])
        request: Any = SimpleNamespace(chat_template_kwargs={"enable_thinking": True, "force_nonempty_content": True})
        parser = ReasoningParser("gemma4", False, True, request)
        if not streamed:
            return parser.parse_non_stream("<|channel>thought\nRome")
        read = [parser.parse_stream_chunk("<|channel>thought\n"), parser.parse_stream_chunk("Rome"), parser.parse_stream_end()]
        return ["".join(part or "" for part in column) for column in zip(*read, strict=True)]

    assert in_child(child) == ["", "Rome"]


def test_half_a_character_in_a_key_can_be_sent() -> None:
    read = answers.parts('<|tool_call>call:time{"\\ud800":1}<tool_call|>')
    assert [part.text.encode() for part in read] == [b"time", '{"\ufffd": 1}'.encode()]


@pytest.mark.parametrize("tail", ["<|turn>model\n<|channel>thought\n", "<tool_response|><|channel>thought\n", "<|turn>model\n"])
def test_an_answer_goes_on_with_the_thought_that_its_prompt_opened(tail: str, in_child: InChild) -> None:
    def child() -> Any:
        from types import SimpleNamespace

        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        from sglang_gemma4.serving.answer_parser import remember_open_thought

        applied.apply([PATCH])
        request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}])
        prompt = "<|channel>thought\nx\n<channel|><turn|>\n" + tail
        server = SimpleNamespace(is_gemma4=True, tokenizer_manager=SimpleNamespace(tokenizer=None))
        remember_open_thought(SimpleNamespace(prompt=prompt, require_reasoning=True), server, request)
        whole = ReasoningParser("gemma4", False, True, request).parse_non_stream("Rome.\n<channel|>Yes.")
        streamed = ReasoningParser("gemma4", True, True, request)
        read = [streamed.parse_stream_chunk("Rome.\n<chan"), streamed.parse_stream_chunk("nel|>Yes."), streamed.parse_stream_end()]
        return [whole, ["".join(part or "" for part in column) for column in zip(*read, strict=True)]]

    expected = ["Rome.", "Yes."] if "channel" in tail else ["", "Rome.\nYes."]
    assert in_child(child) == [expected, expected]


def test_a_whole_answer_is_read_once_for_its_calls(in_child: InChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang asks whether there is a call, once or twice, and then for the calls."""

    def child() -> list[Any]:
        from sglang.srt.entrypoints.openai.protocol import Function, Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        applied.apply([PATCH])
        read: list[int] = []
        original = AnswerReader.read

        def counting(reader: AnswerReader, text: str) -> Any:
            read.append(len(text))
            return original(reader, text)

        monkeypatch.setattr(AnswerReader, "read", counting)
        seen = []
        for text in (tool_answers.ROME, "<|tool_call>no"):
            parser = FunctionCallParser([Tool(type="function", function=Function(name="weather", parameters={}))], "gemma4")
            has = parser.has_tool_call(text)
            rest, items = parser.parse_non_stream(text)
            seen.append([has, rest, [item.parameters for item in items], len(read)])
            other, _ = parser.parse_non_stream("<|tool_call>other")
            assert other == "<|tool_call>other"
            read.clear()
        return seen

    assert in_child(child) == [[True, "", ['{"city": "Rome"}'], 1], [False, "<|tool_call>no", [], 1]]


def test_a_continued_thought_goes_on(in_child: InChild) -> None:
    def child() -> Any:
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        applied.apply([PATCH])
        begun = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<|channel>thought\nRo"}]
        request = ChatCompletionRequest(model="m", messages=begun, continue_final_message=True)
        return ReasoningParser("gemma4", True, False, request).parse_non_stream("me.\n<channel|>Rome.")

    assert in_child(child) == ["me.", "Rome."]
