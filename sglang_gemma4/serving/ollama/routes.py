"""Ollama's routes on SGLang's HTTP server, in place of SGLang's own."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from sglang_gemma4.serving.client_errors import ClientError
from sglang_gemma4.serving.ollama import answers, model_card, requests
from sglang_gemma4.serving.ollama.requests import Asked

_SINCE = answers.stamp()
_SHOWN = 3
"""Errors of a body that its answer shows."""


def install(app: FastAPI) -> None:
    """Replace the routes of SGLang's Ollama endpoints, wherever the environment has put them."""
    for number, route in enumerate(app.router.routes):
        ours = ENDPOINTS.get(getattr(getattr(route, "endpoint", None), "__name__", ""))
        if ours is not None and route.endpoint is not ours:  # type: ignore[attr-defined]
            made = app.router.route_class(route.path, ours, methods=list(route.methods), response_model=None)  # type: ignore[attr-defined]
            app.router.routes[number] = made


def _named(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
    """A handler whose errors are answered as Ollama's are: an object with the field ``error``."""

    async def answer(raw_request: Request) -> Any:
        try:
            return await handler(raw_request)
        except HTTPException as error:
            return _error(error.status_code, str(error.detail))
        except ValidationError as error:
            return _error(400, "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:_SHOWN]))
        except ValueError as error:
            return _error(400, str(error))

    answer.__name__ = handler.__name__
    answer.__doc__ = handler.__doc__
    return answer


def _error(status: int, said: str) -> JSONResponse:
    return JSONResponse({"error": said}, status)


async def _body(raw_request: Request) -> Any:
    """The parsed body, whatever its content type says: Ollama's clients often give none.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return await raw_request.json()
    except ValueError as error:
        raise ClientError(f"the body is not JSON: {error}") from error


async def chat(raw_request: Request) -> Any:
    """Answer /api/chat."""
    context = raw_request.app.state.openai_serving_chat.tokenizer_manager.model_config.context_len
    return await _answer(requests.of_chat(await _body(raw_request), context), answers.of_chat, raw_request)


async def generate(raw_request: Request) -> Any:
    """Answer /api/generate."""
    context = raw_request.app.state.openai_serving_chat.tokenizer_manager.model_config.context_len
    return await _answer(requests.of_generate(await _body(raw_request), context), answers.of_generate, raw_request)


async def tags(raw_request: Request) -> Any:
    """Answer /api/tags."""
    manager = raw_request.app.state.openai_serving_chat.tokenizer_manager
    return JSONResponse(model_card.tags(manager.served_model_name, manager.model_config.hf_config, _SINCE))


async def show(raw_request: Request) -> Any:
    """Answer /api/show."""
    body = await _body(raw_request)
    name = (body.get("model") or body.get("name")) if isinstance(body, dict) else None
    if not isinstance(name, str):
        raise ClientError("model: give the name of a model, a string")
    serving = raw_request.app.state.openai_serving_chat
    parsers = serving.tool_call_parser, serving.reasoning_parser
    return JSONResponse(model_card.show(name, serving.tokenizer_manager.model_config, _SINCE, *map(bool, parsers)))


ENDPOINTS = {
    "ollama_chat": _named(chat),
    "ollama_generate": _named(generate),
    "ollama_tags": _named(tags),
    "ollama_show": _named(show),
}
"""By the name of SGLang's handler."""


async def _answer(asked: Asked, part: answers.Part, raw_request: Request) -> Any:
    """The answer to ``asked``, each part of it in the form that ``part`` gives."""
    started, state = time.perf_counter_ns(), raw_request.app.state
    if asked.path == "load":
        return JSONResponse(answers.line(asked.model, part(answers.Piece()), {"done_reason": "load"}))
    raw = asked.path == "raw"
    server = state.openai_serving_completion if raw else state.openai_serving_chat
    request = _completion(asked, server, state.openai_serving_chat.default_sampling_params) if raw else _chat(asked, server)
    found = await server.handle_request(request, raw_request)
    if hasattr(found, "model_dump"):
        return JSONResponse(answers.whole(found.model_dump(), asked.model, part, started))
    if not isinstance(found, StreamingResponse):
        return _error(found.status_code, _said(found.body))
    lines = answers.streamed(found.body_iterator, asked.model, part, started)
    return StreamingResponse(lines, media_type="application/x-ndjson", background=found.background)


def _chat(asked: Asked, server: Any) -> Any:
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

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
    return {"model": _model(asked.model, server.tokenizer_manager.served_model_name), **asked.fields, **streams}


def _model(asked: str, served: str) -> str:
    """The served model, with the adapter that the name asks for; SGLang serves one model, and Ollama's names have tags behind a colon."""
    return asked if asked.startswith(f"{served}:") and asked != f"{served}:latest" else served


def _said(body: bytes) -> str:
    """What an error of SGLang says."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    inner = found.get("error") if isinstance(found.get("error"), dict) else found
    return str(inner.get("message", body.decode(errors="replace")))
