"""SGLang's handler of /v1/messages with what :mod:`messages` knows: hooks around its methods."""

import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi.responses import JSONResponse, StreamingResponse

from sglang_gemma4.serving.protocols import messages


async def judged(original: Callable[..., Awaitable[Any]], server: Any, request: Any, raw_request: Any) -> Any:
    """Around ``AnthropicServing.handle_messages``: what is not served is refused by name, also what SGLang's request has no field for."""
    body = await raw_request.json() if raw_request is not None else None
    if (refused := messages.refusal(body)) is not None:
        return JSONResponse(refused, 400)
    return await original(server, request, raw_request)


def typed(original: Callable[..., Any], server: Any, status_code: int, error_type: str, *args: Any, **kwargs: Any) -> Any:
    """Around ``AnthropicServing._error_response``: an error's type is one of Anthropic's, not SGLang's own."""
    return original(server, status_code, messages.error_type(status_code, error_type), *args, **kwargs)


def complete(answer: Any, _server: Any, response: Any, *_args: Any) -> Any:
    """After ``AnthropicServing._convert_response``."""
    messages.complete(answer, response.choices[0].matched_stop if response.choices else None)
    return answer


async def streamed(original: Callable[..., Awaitable[Any]], server: Any, chat_request: Any, request: Any, raw_request: Any) -> Any:
    """Around ``AnthropicServing._handle_streaming``.

    A request that is refused before its first token is answered with its status, as a whole one is.
    """
    watched, own, chat = messages.Watched(), copy.copy(server), copy.copy(server.openai_serving_chat)
    generate = chat._generate_chat_stream
    chat._generate_chat_stream = lambda *args: watched.over(generate(*args))
    own.openai_serving_chat = chat
    response = await original(own, chat_request, request, raw_request)
    if not isinstance(response, StreamingResponse):
        return response
    frames: Any = response.body_iterator
    first = await anext(frames, None)
    if watched.refused is not None:
        await frames.aclose()
        return _refused(server, *watched.refused)
    response.body_iterator = messages.completed(_behind(first, frames), watched)
    return response


def _refused(server: Any, status: int, said: str) -> Any:
    """The answer to a request that was refused; what the server failed with is kept in its log."""
    from sglang.srt.entrypoints.anthropic.serving import _scrub_error_message

    return server._error_response(status_code=status, error_type="", message=_scrub_error_message(said, status))


async def _behind(first: str | None, frames: AsyncIterator[str]) -> AsyncIterator[str]:
    if first is not None:
        yield first
    async for frame in frames:
        yield frame
