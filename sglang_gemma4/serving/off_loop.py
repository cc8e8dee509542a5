"""Moves SGLang's work on long prompts from the server's event loop to a thread, so that other clients' answers are not delayed."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sglang_gemma4.serving import prompt_length
from sglang_gemma4.serving.client_errors import in_thread, reading


async def tokenized(original: Callable[..., Any], manager: Any, texts: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``TokenizerManager._tokenize_texts``: tokenise long texts in a thread.

    Raises:
        ValueError: a text is too long for the context, however it is tokenised.
    """
    length = prompt_length.characters(texts)
    if length <= prompt_length.QUICK or manager.async_dynamic_batch_tokenizer is not None:
        return await original(manager, texts, *args, **kwargs)
    if not manager.allow_auto_truncate:
        for text in [texts] if isinstance(texts, str) else texts:
            if isinstance(text, str):
                prompt_length.check([text], manager.tokenizer, manager.context_len)
    return await in_thread(original(manager, texts, *args, **kwargs))


async def threaded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around a coroutine that awaits nothing: run it in a thread."""
    return await in_thread(original(*args, **kwargs))


async def messages(original: Callable[..., Awaitable[Any]], server: Any, request: Any, raw_request: Any) -> Any:
    """Around ``AnthropicServing.handle_messages``: its chat request is validated and rendered in a thread."""
    try:
        asked = server._convert_to_chat_completion_request(request)
    except Exception:
        return await original(server, request, raw_request)  # it answers the error
    chat, own = copy.copy(server.openai_serving_chat), copy.copy(server)
    error = await _thread(reading, chat._validate_request, asked)
    made = _Result() if error else await _Result.of(chat._convert_to_internal_request, asked, raw_request)
    own._convert_to_chat_completion_request = lambda _request: asked
    chat._validate_request, chat._convert_to_internal_request = lambda _asked: error, made.give
    own.openai_serving_chat = chat
    return await original(own, request, raw_request)


async def _thread(work: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, partial(work, *args))


class _Result:
    """What a call returned or raised, to be returned or raised again by ``give``."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self._value, self._error = value, error

    @classmethod
    async def of(cls, work: Callable[..., Any], *args: Any) -> "_Result":
        try:
            return cls(await _thread(work, *args))
        except Exception as error:
            return cls(error=error)

    def give(self, *_args: Any, **_kwargs: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._value
