"""Hooks around the methods of SGLang's handler of /v1/messages, which apply :mod:`messages`."""

import copy
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.responses import JSONResponse, StreamingResponse

from sglang_gemma4.serving.protocols import messages, serves_gemma4
from sglang_gemma4.serving.protocols.stream_start import Opened

STOPS = "gemma4_stops"
"""Attribute of a request's own copy of the handler: the stop sequences that the client gave."""


def ours(server: Any) -> bool:
    """Whether ``AnthropicServing`` answers for a Gemma 4."""
    return serves_gemma4(server.openai_serving_chat.tokenizer_manager)


async def judged(original: Callable[..., Awaitable[Any]], server: Any, request: Any, raw_request: Any) -> Any:
    """Around ``AnthropicServing.handle_messages`` and ``handle_count_tokens``.

    Fields that are not served are refused by name, also those that SGLang's request does not have.
    """
    if not ours(server):
        return await original(server, request, raw_request)
    body = await raw_request.json() if raw_request is not None else None
    refused = messages.refusal(body)
    if refused is None:
        try:
            messages.take_format(body, request)
        except ValueError as error:
            refused = messages.error(f"output_format: {error}")
    if refused is not None:
        return JSONResponse(refused, 400)
    own = copy.copy(server)
    setattr(own, STOPS, tuple(getattr(request, "stop_sequences", None) or ()))
    return await original(own, request, raw_request)


def typed(original: Callable[..., Any], server: Any, status_code: int, error_type: str, *args: Any, **kwargs: Any) -> Any:
    """Around ``AnthropicServing._error_response``: give an error one of Anthropic's types instead of SGLang's own."""
    named = messages.error_type(status_code, error_type) if ours(server) else error_type
    return original(server, status_code, named, *args, **kwargs)


def complete(answer: Any, server: Any, response: Any, *_args: Any) -> Any:
    """After ``AnthropicServing._convert_response``: add signatures of thoughts and the stop sequence."""
    if ours(server):
        messages.complete(answer, response.choices[0].matched_stop if response.choices else None, getattr(server, STOPS, ()))
    return answer


async def streamed(original: Callable[..., Awaitable[Any]], server: Any, chat_request: Any, request: Any, raw_request: Any) -> Any:
    """Around ``AnthropicServing._handle_streaming``.

    A request that is refused before its first token is answered with the refusal's status, as without streaming.
    """
    if not ours(server):
        return await original(server, chat_request, request, raw_request)
    opened, ended, own, chat = Opened(), messages.Ended(), copy.copy(server), copy.copy(server.openai_serving_chat)
    own.openai_serving_chat = chat
    generate, frames_of = chat._generate_chat_stream, own._generate_anthropic_stream

    def frames(adapted: Any, processed: Any, *others: Any) -> Any:
        lines = opened.take(generate(adapted, processed, raw_request))
        chat._generate_chat_stream = lambda *_args: ended.over(lines)
        return frames_of(adapted, processed, *others)

    own._generate_anthropic_stream = frames
    response = await original(own, chat_request, request, raw_request)
    if not isinstance(response, StreamingResponse):
        return response
    await opened.begin(messages.refusal_of)
    events: Any = response.body_iterator
    if opened.refused is not None:
        await events.aclose()
        return _refused(server, *opened.refused)
    response.body_iterator = messages.completed(events, ended, tuple(request.stop_sequences or ()))
    return response


def _refused(server: Any, status: int, said: str) -> Any:
    """The answer to a request that was refused; details of a server error stay in the server's log."""
    from sglang.srt.entrypoints.anthropic.serving import _scrub_error_message

    return server._error_response(status_code=status, error_type="", message=_scrub_error_message(said, status))
