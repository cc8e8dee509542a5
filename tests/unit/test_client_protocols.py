"""What strict clients of OpenAI and Anthropic read, on SGLang's real HTTP application with a scripted engine."""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import client_protocols  # type: ignore[import-not-found]
import ollama_answers  # type: ignore[import-not-found]
import pytest
import scripted_http  # type: ignore[import-not-found]

from sglang_gemma4 import hooks, patching
from sglang_gemma4.patches import load
from sglang_gemma4.serving.protocols import messages, openai

InChild = Callable[[Callable[[], Any]], Any]
PATCHES = [load(name) for name in ("answer_parser", "tool_grammar", "client_errors", "client_protocols")]


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    """What the patches change and what the application is made of, once, not in every child."""
    for name in ("openai.serving_chat", "openai.serving_responses", "openai.serving_completions", "anthropic.serving", "http_server"):
        importlib.import_module(f"sglang.srt.entrypoints.{name}")
    for hook in (hook for patch in PATCHES for hook in patch.hooks):
        hooks.target_of(hook)


def server(switch: str = "1") -> Any:
    """The application, with the package unless ``switch`` is "0"."""
    patching.apply(PATCHES, {**{patch.switch: switch for patch in PATCHES}, "SGLANG_GEMMA4_STRICT": "1"})
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


@pytest.mark.parametrize("field", ["compaction", "container", "mcp_servers", "output_format"])
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


def watched(items: list[Any]) -> messages.Watched:
    """What is seen of a chat stream."""

    async def read() -> messages.Watched:
        found = messages.Watched()
        try:
            async for _ in found.over(_given(items)):
                pass
        except ValueError:
            pass
        return found

    return asyncio.run(read())


def test_only_what_comes_first_refuses_a_stream() -> None:
    line = 'data: {"choices": [{"delta": {}}]}'
    busy = 'data: {"error": {"message": "full", "code": 503}}'
    assert watched([ValueError("too long")]).refused == (400, "too long")
    assert watched([busy]).refused == (503, "full")
    assert watched([line, busy]).refused is None
    assert watched([line, ValueError("lost")]).refused is None


def test_an_error_in_the_middle_of_a_stream_has_a_known_type() -> None:
    frame = f"event: error\ndata: {json.dumps({'type': 'error', 'error': {'type': 'request_timeout_error', 'message': 'late'}})}\n\n"

    async def read() -> list[str]:
        return [one async for one in messages.completed(_given([frame]), messages.Watched())]

    (answered,) = asyncio.run(read())
    assert json.loads(answered.partition("data: ")[2])["error"] == {"type": "api_error", "message": "late"}


def test_a_token_that_ends_an_answer_is_no_stop_sequence() -> None:
    answer = SimpleNamespace(content=[], stop_reason="end_turn", stop_sequence=None)
    messages.complete(answer, 106)
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    called = SimpleNamespace(content=[], stop_reason="tool_use", stop_sequence=None)
    messages.complete(called, "END")
    assert (called.stop_reason, called.stop_sequence) == ("tool_use", None)


def test_versions_are_kept_as_a_text() -> None:
    versions = [{"version": "a", "start": 0, "end": 3}, {"version": "b", "start": 3, "end": 9}]
    found = openai.texts_only({"weight_version": "b", "weight_versions": versions})
    assert json.loads(found["weight_versions"]) == versions
    assert openai.texts_only(found) == found
    assert openai.texts_only({"weight_version": "b"}) == {"weight_version": "b"}
