"""Ollama's routes on SGLang's HTTP server, in place of SGLang's own."""

import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError

from sglang_gemma4.serving.client_errors import ClientError
from sglang_gemma4.serving.ollama import answers, model_card, requests
from sglang_gemma4.serving.ollama.requests import Asked

logger = logging.getLogger(__name__)
_SINCE = answers.stamp()
_SHOWN = 3
"""Most errors of a body that the answer shows."""


def install(app: FastAPI) -> None:
    """Replace the routes of SGLang's Ollama endpoints, whatever paths the environment gave them; dependencies and access stay the same."""
    for number, route in enumerate(app.router.routes):
        ours = ENDPOINTS.get(getattr(getattr(route, "endpoint", None), "__name__", ""))
        if ours is not None and isinstance(route, APIRoute) and route.endpoint is not ours:
            if (level := getattr(route.endpoint, "_auth_level", None)) is not None:  # SGLang's middleware reads it from the endpoint
                setattr(ours, "_auth_level", level)  # noqa: B010 - a function has no such attribute of its own
            methods = list(route.methods or ())
            made = app.router.route_class(route.path, ours, methods=methods, response_model=None, dependencies=route.dependencies)
            app.router.routes[number] = made


def _named(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
    """Wrap a handler: errors are answered as in Ollama, with an object that has the field ``error``.

    Checking and translating a request raises :class:`ClientError` or HTTPException; any other exception is the server's error.
    """

    async def answer(raw_request: Request) -> Any:
        try:
            return await handler(raw_request)
        except HTTPException as error:
            return _error(error.status_code, str(error.detail))
        except ClientError as error:
            return _error(400, str(error))
        except Exception:
            logger.exception("%s failed", raw_request.url.path)
            return _error(500, "Internal server error")

    answer.__name__ = handler.__name__
    answer.__doc__ = handler.__doc__
    return answer


@contextlib.contextmanager
def _judging() -> Iterator[None]:
    """Turn a ValueError inside the ``with`` body into a ClientError."""
    try:
        yield
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:_SHOWN])
        raise ClientError(said) from error
    except ValueError as error:
        raise ClientError(str(error)) from error


def _json(value: Any, status: int = 200) -> Response:
    return Response(answers.written(value), status, media_type="application/json")


def _error(status: int, said: str) -> Response:
    return _json({"error": said}, status)


async def _body(raw_request: Request) -> Any:
    """The parsed body, whatever its content type: Ollama's clients often send none.

    Raises:
        ClientError: the body is not JSON.
    """
    try:
        return await raw_request.json()
    except (ValueError, RecursionError) as error:
        raise ClientError(f"the body is not JSON: {error}") from error


async def chat(raw_request: Request) -> Any:
    """Answer /api/chat."""
    return await _answer(requests.of_chat, answers.of_chat, raw_request)


async def generate(raw_request: Request) -> Any:
    """Answer /api/generate."""
    return await _answer(requests.of_generate, answers.of_generate, raw_request)


async def tags(raw_request: Request) -> Any:
    """Answer /api/tags."""
    manager = raw_request.app.state.openai_serving_chat.tokenizer_manager
    return _json(model_card.tags(manager.served_model_name, manager.model_config.hf_config, _SINCE))


async def show(raw_request: Request) -> Any:
    """Answer /api/show."""
    body = await _body(raw_request)
    name = (body.get("model") or body.get("name")) if isinstance(body, dict) else None
    if not isinstance(name, str):
        raise ClientError("model: give the name of a model, a string")
    serving = raw_request.app.state.openai_serving_chat
    parsers = serving.tool_call_parser, serving.reasoning_parser
    return _json(model_card.show(name, serving.tokenizer_manager.model_config, _SINCE, *map(bool, parsers)))


ENDPOINTS = {
    "ollama_chat": _named(chat),
    "ollama_generate": _named(generate),
    "ollama_tags": _named(tags),
    "ollama_show": _named(show),
}
"""Our handlers by the name of SGLang's handler."""


async def _answer(judge: Callable[[Any, int], Asked], part: answers.Part, raw_request: Request) -> Any:
    """Answer a request: ``judge`` turns the body into the request, and ``part`` gives each part of the answer its form."""
    started, state, body = time.perf_counter_ns(), raw_request.app.state, await _body(raw_request)
    with _judging():
        asked = judge(body, state.openai_serving_chat.tokenizer_manager.model_config.context_len)
        if asked.path == "load":
            return _json(answers.line(asked.model, part(answers.Piece()), {"done_reason": "load"}))
        raw = asked.path == "raw"
        server = state.openai_serving_completion if raw else state.openai_serving_chat
        request = _completion(asked, server, state.openai_serving_chat.default_sampling_params) if raw else _chat(asked, server)
    found = await server.handle_request(request, raw_request)
    if hasattr(found, "model_dump"):
        return _json(answers.whole(found.model_dump(), asked.model, part, started))
    if not isinstance(found, StreamingResponse):
        return _error(found.status_code, _said(found.body))
    lines = answers.streamed(found.body_iterator, asked.model, part, started)
    return StreamingResponse(lines, media_type="application/x-ndjson", background=found.background)


def _chat(asked: Asked, server: Any) -> Any:
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    if asked.fields.get("tools") and not server.tool_call_parser:
        raise ClientError("tools: this server reads no calls; start it with --tool-call-parser, or leave tools out")
    request = ChatCompletionRequest(**_common(asked, server))
    if asked.thinking is not None:
        if asked.thinking and not server.reasoning_parser:
            raise ClientError("think: this server reads no thoughts; start it with --reasoning-parser, or leave think out")
        server.apply_reasoning_enabled(request, asked.thinking)
    return request


def _completion(asked: Asked, server: Any, defaults: dict[str, Any]) -> Any:
    from sglang.srt.entrypoints.openai.protocol import CompletionRequest

    request = CompletionRequest(**{**defaults, **_common(asked, server)})
    if "max_tokens" not in asked.fields:
        request.max_tokens = None  # SGLang ends the answer with the context; a completion's own default is 16
    return request


def _common(asked: Asked, server: Any) -> dict[str, Any]:
    streams = {"stream": True, "stream_options": {"include_usage": True}} if asked.stream else {}
    return {"model": _model(asked.model, server.tokenizer_manager), **asked.fields, **streams}


def _model(asked: str, manager: Any) -> str:
    """The served model, with the adapter in the asked name if the server knows that adapter.

    SGLang serves one model. Any other text after the colon is a tag of Ollama, such as ``26b`` or ``latest``.
    """
    served = str(manager.served_model_name)
    adapter = asked.removesuffix(":latest").removeprefix(f"{served}:")
    if not getattr(manager, "enable_lora", False) or not asked.startswith(f"{served}:"):
        return served
    known = adapter in manager.lora_registry.get_all_adapters() or adapter in manager.lora_ref_cache
    return f"{served}:{adapter}" if known else served


def _said(body: bytes) -> str:
    """The message in the body of SGLang's error."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    inner = found.get("error") if isinstance(found.get("error"), dict) else found
    return str(inner.get("message", body.decode(errors="replace")))
