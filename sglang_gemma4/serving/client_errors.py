"""An exception while a request is read, before it is sent to a scheduler, is the client's error: status 400 with the cause.

Reading is validation, rendering of the chat template, normalisation and tokenisation. Their only input is the request's own data.
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
"""Exceptions that Python and Jinja raise for unexpected data."""
_KEPT = 300


class ClientError(ValueError):
    """A request cannot be read; SGLang answers a ValueError with status 400."""


class Stage:
    """How far a request has come.

    Attributes:
        sent: whether a part of the request was sent to a scheduler.
    """

    def __init__(self) -> None:
        self.sent = False


STAGE: contextvars.ContextVar[Stage | None] = contextvars.ContextVar("STAGE", default=None)
"""Stage of the request that the running task serves."""


def was_sent() -> bool:
    """Whether the running task's request was sent to a scheduler; True if the task has no stage."""
    stage = STAGE.get()
    return stage is None or stage.sent


def mark_sent() -> None:
    """Note that a part of the running task's request is about to be sent to a scheduler; no effect without a stage."""
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
        ClientError: for any of ``KINDS`` except a ValueError, which SGLang already answers with status 400.
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
