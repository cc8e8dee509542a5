"""What strict clients of OpenAI and Anthropic read, on SGLang's real HTTP application with a scripted engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import client_protocols  # type: ignore[import-not-found]
import ollama_answers  # type: ignore[import-not-found]
import pytest
import scripted_http  # type: ignore[import-not-found]

from sglang_gemma4.patches import load
from sglang_gemma4.serving.protocols import messages, openai, responses
from sglang_gemma4.serving.protocols.stream_start import Opened
from tests.harness import applied
from tests.harness.child import InChild

PATCHES = [load(name) for name in ("answer_parser", "tool_grammar", "client_errors", "client_protocols")]


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    applied.import_entry_points(applied.APPLICATION, PATCHES)


def server(switch: str = "1") -> Any:
    """The application, with the package unless ``switch`` is "0"."""
    applied.apply(PATCHES, switch)
    return scripted_http.Server()


def test_strict_clients_are_served(in_child: InChild) -> None:
    def child() -> Any:
        made = server()
        return {name: ollama_answers.outcome(ask, made) for name, (ask, _) in client_protocols.CASES.items()}

    assert in_child(child) == {name: wanted for name, (_, wanted) in client_protocols.CASES.items()}


def test_stock_does_not_serve_them(in_child: InChild) -> None:
    def child() -> list[str]:
        made = server("0")
        return [name for name, (ask, wanted) in client_protocols.CASES.items() if ollama_answers.outcome(ask, made) == wanted]

    assert in_child(child) == [], "SGLang has repaired some of these: see whether the patch can go"


SAID = [{"role": "user", "content": "?"}]
MESSAGE = client_protocols.MESSAGE
RESPONSE = client_protocols.RESPONSE
CALL = client_protocols.CALL


def answers_of_another_model(made: Any) -> Any:
    """What SGLang answers for a model that is no Gemma 4, with the package."""
    made.engine.model_config.hf_config = SimpleNamespace(model_type="llama", architectures=["LlamaForCausalLM"])
    made.endpoints.chat.is_gemma4 = False
    return {name: ollama_answers.outcome(ask, made) for name, (ask, _) in client_protocols.CASES.items()}


def test_servers_of_other_models_are_left_alone(in_child: InChild) -> None:
    found = [in_child(lambda switch=switch: answers_of_another_model(server(switch))) for switch in ("0", "1")]  # type: ignore[misc]
    assert found[1] == found[0]
    assert [name for name, (_, wanted) in client_protocols.CASES.items() if found[1][name] == wanted] == []


def counted(made: Any) -> list[int]:
    """A list that grows with each output of the scripted engine."""
    generate, seen = made.engine.generate_request, []

    async def counting(*args: Any) -> AsyncIterator[Any]:
        async for output in generate(*args):
            seen.append(1)
            yield output

    made.engine.generate_request = counting
    return seen


def test_a_stream_begins_while_the_engine_has_more_to_write(in_child: InChild) -> None:
    async def begin(made: Any, seen: list[int]) -> Any:
        from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
        from sglang.srt.entrypoints.openai.protocol import ResponsesRequest

        tools = [{"type": "function", **client_protocols.TOOL}]
        made.write("Rome is the capital.", size=1)
        events = await made.endpoints.responses.create_responses(ResponsesRequest(**RESPONSE, stream=True, tools=tools), None)
        first = [(await anext(events)).partition("\n")[0], len(seen)]
        kinds = [event.partition("\n")[0] async for event in events]
        seen.clear()
        made.write(CALL, size=1)
        used = [{"name": "weather", "input_schema": client_protocols.TOOL["parameters"]}]
        answer = await made.endpoints.messages.handle_messages(AnthropicMessagesRequest(**MESSAGE, stream=True, tools=used), None)
        begun = len(seen)
        frames = [frame.partition("\n")[0] async for frame in answer.body_iterator]
        return [*first, kinds[0], kinds[-1], begun, frames[0], frames[-1]]

    def child() -> Any:
        made = server()
        return asyncio.run(begin(made, counted(made)))

    assert in_child(child) == [
        *("event: response.created", 1, "event: response.in_progress", "event: response.completed"),
        *(1, "event: message_start", "event: message_stop"),
    ]


def test_what_fails_before_the_first_token_has_its_status(in_child: InChild) -> None:
    def child() -> Any:
        made, found = server(), []
        for error in (RuntimeError("secret"), ValueError("too long")):
            made.write("Rome", error=error)
            for path, body in (("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE)):
                status, said = made.post(path, {**body, "stream": True})
                found.append([status, json.loads(said)["error"]["message"]])
        return found

    assert in_child(child) == [[500, "Internal server error"]] * 2 + [[400, "too long"]] * 2


def test_versions_are_a_text_and_a_list(in_child: InChild) -> None:
    def child() -> Any:
        made, found = server(), []
        made.write("Rome.")
        for path, body in (("chat/completions", {"messages": SAID}), ("completions", {"prompt": "?"})):
            answer = made.ask(f"/v1/{path}", model="tiny", return_cached_tokens_details=True, **body)[1]
            found.append([json.loads(answer["metadata"]["weight_versions"]), answer["sglext"]["weight_versions"], answer["object"]])
        return found

    versions = [{"version": "default", "start": 0, "end": 5}]
    assert in_child(child) == [[versions, versions, "chat.completion"], [versions, versions, "text_completion"]]


def test_a_stop_of_the_template_is_no_stop_sequence(in_child: InChild) -> None:
    def child() -> Any:
        made, found = server(), []
        for size in (0, 2):
            made.write("Rome", size=size, matched="<end>")
            asked = {**MESSAGE, "stop_sequences": ["END"]}
            whole = made.lines("/v1/messages", **asked) if size else [{"delta": made.ask("/v1/messages", **asked)[1]}]
            found += [one["delta"] for one in whole if "stop_reason" in one.get("delta", {})]
        return [[one["stop_reason"], one.get("stop_sequence")] for one in found]

    assert in_child(child) == [["end_turn", None]] * 2


def test_a_format_of_older_clients(in_child: InChild) -> None:
    def child() -> Any:
        made = server()
        made.write("{}")
        given = {"type": "json_schema", "schema": ollama_answers.SCHEMA}
        status, _ = made.ask("/v1/messages", **MESSAGE, output_format=given)
        schema = made.engine.request.sampling_params.get("json_schema")
        twice = made.ask("/v1/messages", **MESSAGE, output_format=given, output_config={"format": given})
        other = made.ask("/v1/messages", **MESSAGE, output_format={"type": "yaml"})
        counts = {key: value for key, value in MESSAGE.items() if key != "max_tokens"}
        counted = [made.ask("/v1/messages/count_tokens", **counts, **more)[0] for more in ({}, {"thread": {"type": "create"}})]
        return [status, json.loads(schema), *([one[0], one[1]["error"]["message"][:14]] for one in (twice, other)), counted]

    assert in_child(child) == [200, ollama_answers.SCHEMA, *[[400, "output_format:"]] * 2, [200, 400]]


def test_allowed_tools(in_child: InChild) -> None:
    def child() -> Any:
        made = server()
        made.write(CALL)
        tools = [{"type": "function", **client_protocols.TOOL}, {"type": "function", "name": "time", "parameters": {"type": "object"}}]
        text = {"format": {"type": "json_schema", **client_protocols.FORMAT}}
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
        status, answer = made.ask("/v1/responses", **RESPONSE, tools=tools, tool_choice=choice, text=text)
        grammar = str(made.engine.request.sampling_params.get("structural_tag") or made.engine.request.sampling_params)
        missing = made.ask("/v1/responses", **RESPONSE, tools=tools, tool_choice={**choice, "tools": [{"type": "function", "name": "x"}]})
        return [status, [item["type"] for item in answer["output"]], "time" in grammar, "weather" in grammar, missing[0]]

    assert in_child(child) == [200, ["function_call"], False, True, 400]


def test_a_schema_that_is_dropped_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    openai.say_dropped.cache_clear()
    manager = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"])))
    for _ in range(2):
        request = SimpleNamespace(response_format=SimpleNamespace(type="json_object"), tools=[1], tool_choice="required")
        openai.drop_schema(SimpleNamespace(tokenizer_manager=manager), request)
        assert request.response_format is None
    assert [record.getMessage()[:24] for record in caplog.records] == ["response_format is left "]


@pytest.mark.parametrize("field", ["compaction", "container", "mcp_servers"])
def test_what_is_not_served_is_named(field: str) -> None:
    refused = messages.refusal({"model": "tiny", field: {"type": "a"}})
    assert refused is not None
    assert refused["error"]["message"].startswith(f"{field}: not served")
    assert messages.refusal({"model": "tiny", field: None}) is None


@pytest.mark.parametrize(
    ("status", "given", "expected"),
    [
        (400, "BadRequest", "invalid_request_error"),
        (422, "", "invalid_request_error"),
        (404, "NotFoundError", "not_found_error"),
        (408, "request_timeout_error", "timeout_error"),
        (413, "", "request_too_large"),
        (500, "InternalServerError", "api_error"),
        (503, "SERVICE_UNAVAILABLE", "overloaded_error"),
        (400, "not_found_error", "not_found_error"),
    ],
)
def test_types_of_errors(status: int, given: str, expected: str) -> None:
    assert messages.error_type(status, given) == expected


async def _given(items: list[Any]) -> AsyncIterator[Any]:
    for item in items:
        if isinstance(item, Exception):
            raise item
        yield item


def refused(items: list[Any], refusal_of: Callable[[Any], Any] = messages.refusal_of) -> Any:
    """What refuses a stream of ``items``."""

    async def read() -> Any:
        opened = Opened()
        lines = opened.take(_given(items))
        await opened.begin(refusal_of)
        if opened.refused is None:
            assert await anext(lines) == items[0]
        return opened.refused

    return asyncio.run(read())


def test_only_what_comes_first_refuses_a_stream() -> None:
    line = 'data: {"choices": [{"delta": {}}]}'
    busy = 'data: {"error": {"message": "full", "code": 503}}'
    assert refused([ValueError("too long")]) == (400, "too long")
    assert refused([KeyError("lost")]) == (500, "Internal server error")
    assert refused([busy]) == (503, "full")
    assert refused([busy.replace("503", '"overloaded"')]) == (500, "full")
    assert refused([line, busy]) is None
    assert refused([line, ValueError("lost")]) is None
    abort = {"meta_info": {"finish_reason": {"type": "abort", "status_code": 503, "message": "full"}}}
    assert refused([SimpleNamespace(last_output=abort)], responses.refusal_of) == (503, "full")


def test_an_error_in_the_middle_of_a_stream_has_a_known_type() -> None:
    frame = f"event: error\ndata: {json.dumps({'type': 'error', 'error': {'type': 'request_timeout_error', 'message': 'late'}})}\n\n"

    async def read() -> list[str]:
        return [one async for one in messages.completed(_given([frame]), messages.Ended(), ())]

    (answered,) = asyncio.run(read())
    assert json.loads(answered.partition("data: ")[2])["error"] == {"type": "api_error", "message": "late"}


def test_a_token_that_ends_an_answer_is_no_stop_sequence() -> None:
    answer = SimpleNamespace(content=[], stop_reason="end_turn", stop_sequence=None)
    messages.complete(answer, 106, ("END",))
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    called = SimpleNamespace(content=[], stop_reason="tool_use", stop_sequence=None)
    messages.complete(called, "END", ("END",))
    assert (called.stop_reason, called.stop_sequence) == ("tool_use", None)
