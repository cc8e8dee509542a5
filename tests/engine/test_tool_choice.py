"""Calls that must come, and those of strict tools, through the chat endpoint of real engines: with MTP and without, streamed and not."""

import json
import re
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from sglang_gemma4.tiny import checkpoints, dialogues
from tests.harness.engine_fork import Group, Nursery
from tests.harness.inputs.drafting import with_assistant

TOWN = {"type": "string", "minLength": 1, "maxLength": 12}
DAYS = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 14}, "minItems": 1, "maxItems": 3}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": TOWN, "unit": {"enum": ["celsius", "kelvin"]}, "days": DAYS, "wind": {"type": ["boolean", "null"]}},
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
TRIP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "minItems": 1, "maxItems": 2},
        "price": {"type": "number", "minimum": 0, "maximum": 500},
        "by": {"anyOf": [{"const": "ship"}, {"type": "object", "properties": {"horses": {"enum": [1, 2]}}, "required": ["horses"]}]},
    },
    "required": ["stops", "price", "by"],
    "$defs": {"stop": {"type": "object", "properties": {"town": TOWN, "nights": {"enum": [1, 2, None]}}, "required": ["town", "nights"]}},
}
PARAMETERS = {"get_weather": WEATHER, "plan_trip": TRIP, "now": {}}
MODES: dict[str, dict[str, Any]] = {"plain": {}, "v1": {"SGLANG_FROZEN_KV_MTP_V2": "0"}, "v2": {"SGLANG_FROZEN_KV_MTP_V2": "1"}}
ASKS = ("What is the weather in Belm?", "Who rules Belm?", "Tell me a story about Anka.")
CALL_END_ID = 18
FACTS = ("Who rules Corin?", "Which flag flies over Rask?", "What is the food of Dask?", "Which river runs through Hild?")


def tool(kind: str, **more: Any) -> dict[str, Any]:
    function = {"name": kind, "description": f"Will {kind}."}
    return {"type": "function", "function": {**function, **({"parameters": PARAMETERS[kind]} if PARAMETERS[kind] else {}), **more}}


def request(ask: str, tool_choice: Any, *, thinking: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": ask}],
        "tools": [tool(name) for name in PARAMETERS],
        "tool_choice": {"type": "function", "function": {"name": tool_choice}} if tool_choice in PARAMETERS else tool_choice,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": thinking}, **more.pop("extra_body", {})},
        **more,
    }


MUST = [request(ask, choice, stream=stream) for ask in ASKS for choice in ("required", "plan_trip") for stream in (False, True)]
THINKING = [request(ask, "required", thinking=True, max_tokens=150, stream=stream) for ask in FACTS for stream in (False, True)]
STOPPED = [request(ask, "auto", thinking=True, max_tokens=150, stop=stop) for ask in FACTS for stop in (" the", "e")]
STRICT = [
    {**request(ask.format("Belm"), "auto", stream=stream), "tools": [tool("get_weather", strict=True)]}
    for ask in dialogues.WEATHER_ASKS
    for stream in (False, True)
]
ALONE = [request(ASKS[0], "required", parallel_tool_calls=False)]
SAMPLED = [
    request(ask, choice, temperature=1.0, max_tokens=300, extra_body={"sampling_seed": seed}, stream=seed == 0)
    for ask in ASKS
    for choice in ("required", "get_weather", "plan_trip")
    for seed in range(2)
]
NOTE = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 40}}, "required": ["text"]}
ENDS = [
    {
        **request(ask, "required", stream=stream, max_tokens=200, parallel_tool_calls=False),
        "tools": [tool("now", name="note", parameters=NOTE)],
        "logit_bias": {str(CALL_END_ID): 100},
    }
    for ask in ASKS
    for stream in (False, True)
]
"""The model would end the call in each place where it may."""
OUT = {"properties": {"a": {"$ref": "https://example.org/a.json"}}}
NOTHING = {"properties": {"a": {"enum": []}}, "required": ["a"]}
BAD: list[tuple[dict[str, Any], str]] = [
    ({**request("?", "required"), "tools": [tool("now", parameters=OUT)]}, "tool 'now'.*'https://example.org/a.json' cannot be followed"),
    ({**request("?", "auto"), "tools": [tool("now", parameters=OUT, strict=True)]}, "tool 'now'.*cannot be followed"),
    ({**request("?", "required"), "tools": [tool("now", parameters=NOTHING)]}, "tool 'now': no arguments satisfy"),
    ({**request("?", "required"), "tools": [tool("now", name="a b")]}, "tool 'a b'"),
    ({**request("?", "now"), "tools": [tool("get_weather")]}, "'now' not found"),
    ({**request("?", "required"), "tools": []}, "Tools cannot be empty"),
    ({**request("?", "required", extra_body={"regex": "a"})}, "cannot be combined"),
]


@cache
def answers(nursery: Nursery, family: str, mode: str) -> list[dict[str, Any]]:
    """All the requests, in one engine."""
    model = checkpoints.SHIPPED / family
    engine = with_assistant(model) if mode != "plain" else {}
    requests = [*MUST, *THINKING, *STOPPED, *STRICT, *ALONE, *SAMPLED, *ENDS, *(one for one, _ in BAD)]
    group = Group([], client="chat_client:send", extra={"requests": requests})
    options = {"tool_call_parser": "gemma4", "reasoning_parser": "gemma4", "max_total_tokens": 8192}
    (outputs,) = nursery.run(model, [group], env=MODES[mode], time_limit=400, **options, **engine)
    return [json.loads(output.text) for output in outputs]


def kinds(nursery: Nursery, family: str, mode: str) -> dict[str, list[dict[str, Any]]]:
    found, left = {}, answers(nursery, family, mode)
    for name, requests in (
        ("must", MUST),
        ("thinking", THINKING),
        ("stopped", STOPPED),
        ("strict", STRICT),
        ("alone", ALONE),
        ("sampled", SAMPLED),
        ("ends", ENDS),
        ("bad", BAD),
    ):
        found[name], left = left[: len(requests)], left[len(requests) :]
    return found


def check(answer: dict[str, Any], asked: dict[str, Any]) -> None:
    """A whole answer of calls, each by its schema, and nothing else but a thought."""
    assert answer.get("finish") == "tool_calls", answer
    assert not answer["content"]
    assert answer["calls"]
    for name, arguments in answer["calls"]:
        jsonschema.validate(json.loads(arguments), PARAMETERS[name])
        assert asked["tool_choice"] in ("auto", "required") or asked["tool_choice"]["function"]["name"] == name
    if answer["raw"] is not None:
        text = re.sub(r"^<\|channel>thought\n.*?<channel\|>", "", answer["raw"], flags=re.DOTALL)
        assert text.startswith("<|tool_call>call:")
        assert text.count("<|tool_call>call:") >= len(answer["calls"])


CASES = [("tiny-26b-a4b", "plain"), ("tiny-26b-a4b", "v1"), ("tiny-26b-a4b", "v2"), ("tiny-e2b", "v2")]


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_a_call_that_must_come_comes_and_follows_its_schema(family: str, mode: str, nursery: Nursery) -> None:
    found = kinds(nursery, family, mode)
    for answer, asked in zip(found["must"] + found["alone"], [*MUST, *ALONE], strict=True):
        check(answer, asked)
    assert [len(answer["calls"]) for answer in found["alone"]] == [1]


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_a_call_of_a_strict_tool_follows_its_schema(family: str, mode: str, nursery: Nursery) -> None:
    """The models call it with a town alone, where they may."""
    found = kinds(nursery, family, mode)["strict"]
    called = [(answer, asked) for answer, asked in zip(found, STRICT, strict=True) if answer["calls"]]
    for answer, asked in called:
        check(answer, asked)
    assert called


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_a_call_comes_behind_a_thought(family: str, mode: str, nursery: Nursery) -> None:
    """The models' thoughts before calls, which they were not trained on, are not all short: those that go on are only thoughts."""
    found = kinds(nursery, family, mode)["thinking"]
    whole = [(answer, asked) for answer, asked in zip(found, THINKING, strict=True) if answer["finish"] != "length"]
    for answer, asked in whole:
        check(answer, asked)
    assert sum(bool(answer["thought"]) for answer, _ in whole) >= 2, "none thought first"
    assert all(answer["thought"] and not answer["calls"] and not answer["content"] for answer in found if answer["finish"] == "length")


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_reasoning_tokens_are_those_of_thoughts(family: str, mode: str, nursery: Nursery) -> None:
    """Also where a stop ends an answer inside a thought, amid the tokens of an MTP step."""
    found = kinds(nursery, family, mode)
    whole = [answer for kind in ("must", "thinking", "stopped") for answer in found[kind] if answer["raw"] is not None]
    for thoughts, completed in (answer["counts"] for answer in whole):
        assert 0 <= thoughts <= completed
    assert [answer["counts"][0] > 0 for answer in whole] == [bool(answer["thought"]) for answer in whole]
    assert any(answer["thought"] and not answer["content"] for answer in found["stopped"]), "no stop came inside a thought"


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_streamed_and_whole_are_one_answer(family: str, mode: str, nursery: Nursery) -> None:
    found = kinds(nursery, family, mode)
    for group in (found["must"], found["thinking"], found["strict"]):
        for whole, streamed in zip(group[::2], group[1::2], strict=True):
            assert [streamed[key] for key in ("calls", "finish")] == [whole[key] for key in ("calls", "finish")]
            assert (streamed["thought"] or None) == whole["thought"]


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_sampled_answers_follow_their_schemas(family: str, mode: str, nursery: Nursery) -> None:
    found = kinds(nursery, family, mode)["sampled"]
    whole = [(answer, asked) for answer, asked in zip(found, SAMPLED, strict=True) if answer.get("finish") != "length"]
    for answer, asked in whole:
        check(answer, asked)
    assert len(whole) > 0.8 * len(SAMPLED), "calls go on without end"
    assert len({json.dumps(answer["calls"]) for answer, _ in whole}) > 0.6 * len(whole), "answers hardly differ: this shows little"


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_a_call_s_end_marker_is_no_text_of_its_strings(family: str, mode: str, nursery: Nursery) -> None:
    """A model that would end the call at once ends it behind its last bracket; its grammar took the marker for text of the string."""
    found = kinds(nursery, family, mode)["ends"]
    for answer in found:
        assert answer["finish"] == "tool_calls", answer
        ((name, arguments),) = answer["calls"]
        assert name == "note"
        jsonschema.validate(json.loads(arguments), NOTE)
        assert "<tool_call|>" not in arguments
    assert [answer["calls"] for answer in found[1::2]] == [answer["calls"] for answer in found[::2]]


@pytest.mark.parametrize("mode", ["v1", "v2"])
def test_mtp_writes_what_plain_decoding_writes(mode: str, nursery: Nursery) -> None:
    plain, drafted = kinds(nursery, "tiny-26b-a4b", "plain"), kinds(nursery, "tiny-26b-a4b", mode)
    for name in ("must", "thinking", "strict", "alone"):
        assert drafted[name] == plain[name]


@pytest.mark.parametrize(("family", "mode"), CASES)
def test_bad_input_is_refused(family: str, mode: str, nursery: Nursery) -> None:
    for answer, (_, message) in zip(kinds(nursery, family, mode)["bad"], BAD, strict=True):
        assert answer.get("status") == 400, answer
        assert re.search(message, answer["error"]), answer
