"""What raises while a request is read, before it is sent to a scheduler, is its client's error: status 400 with the cause, and no other's.

Reading is validation, rendering of the chat template, normalisation and tokenisation: the request's own data is all that goes in.
"""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from jinja2 import TemplateError

logger = logging.getLogger(__name__)
T = TypeVar("T")

KINDS = (TypeError, AttributeError, LookupError, ValueError, RecursionError, ArithmeticError, AssertionError, TemplateError)
"""What Python and Jinja raise of data that is not as expected."""
_KEPT = 300


class ClientError(ValueError):
    """A request cannot be read; SGLang answers a ValueError with status 400."""


class Stage:
    """How far a request has come.

    Attributes:
        sent: whether a part of it was sent to a scheduler.
    """

    def __init__(self) -> None:
        self.sent = False


STAGE: contextvars.ContextVar[Stage | None] = contextvars.ContextVar("STAGE", default=None)
"""Of the request that the running task serves."""


def was_sent() -> bool:
    """Whether the running task's request was sent to a scheduler; True where nothing is known of it."""
    stage = STAGE.get()
    return stage is None or stage.sent


def mark_sent() -> None:
    """Before a part of the running task's request, if it is one, is sent to a scheduler."""
    stage = STAGE.get()
    if stage is not None:
        stage.sent = True


def cause(error: BaseException) -> str:
    """An error as a sentence for the client."""
    if isinstance(error, ClientError):
        return str(error)
    text = " ".join(str(error).split())
    kind = "it is nested too deeply" if isinstance(error, RecursionError) else type(error).__name__
    return f"the request cannot be read: {kind}: {text[:_KEPT]}"


def reading(original: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a step of reading.

    Raises:
        ClientError: for any of ``KINDS`` but a ValueError, which is one already.
    """
    try:
        return original(*args, **kwargs)
    except KINDS as error:
        raise _as_client_error(error) from error


async def reading_async(original: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    """:func:`reading` for a coroutine."""
    try:
        return await original(*args, **kwargs)
    except KINDS as error:
        raise _as_client_error(error) from error


def _as_client_error(error: Exception) -> Exception:
    if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
        return error
    logger.warning("a request cannot be read", exc_info=error)
    return ClientError(cause(error))


async def in_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing, run in a thread so that the event loop goes on."""

    def whole() -> tuple[T]:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return (stop.value,)
        coroutine.close()
        raise RuntimeError(f"{coroutine} awaits something, for which there is no event loop in a thread")

    return (await asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, whole))[0]


OPENAI = "sglang.srt.entrypoints.openai"


CHAT = f"{OPENAI}.serving_chat.OpenAIServingChat"


ANTHROPIC = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"


SERVER = "sglang.srt.entrypoints.http_server"


MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


READING = "sglang_gemma4.serving.client_errors"


ERRORS = "sglang_gemma4.serving.http_errors"


THREADS = "sglang_gemma4.serving.off_loop"


def answer_errors(*_args: Any, **_kwargs: Any) -> None:
    """Before ``_setup_and_run_http_server``, and after ``init_multi_tokenizer`` in each further process."""
    from sglang.srt.entrypoints.http_server import app

    from sglang_gemma4.serving.http_errors import install

    install(app)


def after_start(result: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After ``init_multi_tokenizer``."""
    answer_errors()
    return result


def client_errors_mark_sent(*_args: Any, **_kwargs: Any) -> None:
    """Before a request, or a batch of them, is sent to a scheduler."""
    from sglang_gemma4.serving import client_errors

    client_errors.mark_sent()


def without_schemas(original: Callable[..., Any], server: Any, request: Any) -> Any:
    """Around ``OpenAIServingChat._validate_request``, on the event loop: tools' schemas are judged by :func:`judged_chat`, in a thread.

    ``jsonschema`` takes a second for 100 kB of schemas.
    """
    functions = [tool.function for tool in server._effective_tools(request)]
    schemas = [function.parameters for function in functions]
    try:
        for function in functions:
            function.parameters = None
        return original(server, request)
    finally:
        for function, schema in zip(functions, schemas, strict=True):
            function.parameters = schema


def judged_chat(original: Callable[..., Any], server: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``OpenAIServingChat._process_messages``.

    Raises:
        ClientError: a ValueError, which all chat endpoints answer with status 400.
    """
    from sglang.srt.function_call.utils import normalize_json_schema_types

    from sglang_gemma4.serving import chat_checks, prompt_length

    tools, manager = server._effective_tools(request), server.tokenizer_manager
    for tool in tools:
        reading(normalize_json_schema_types, tool.function.parameters)
    if reason := chat_checks.reason_against(tools, request.chat_template_kwargs):
        raise ClientError(reason)
    if not manager.allow_auto_truncate and manager.tokenizer is not None:
        prompt_length.check(prompt_length.of_messages(request.messages), manager.tokenizer, manager.context_len)
    return reading(original, server, request, *args, **kwargs)
