"""An administrative request that fails in the scheduler is answered with its error, and ends nothing.

In the scheduler's process :func:`guarded` wraps its handlers; in the tokenizer's :func:`raise_failures` reads the answers. The error
travels in the answer's ``rid``, which administrative answers do not use, since some have no other field.

What cannot be guarded: a handler that fails on one tensor-parallel rank alone leaves the others in a collective.
"""

import importlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import HTTPException

logger = logging.getLogger(__name__)

FAILED = "sglang-gemma4 failure: "
NOT_GUARDED = ("Tokenized", "BatchTokenized", "ShutdownReq", "RpcReqInput")
"""Requests for tokens, which isolation guards, and two whose handlers end the server or catch errors themselves."""
MODULE = "sglang.srt.managers.io_struct"


class RefusedError(HTTPException):
    """What a route answers, with its status; routes that write an exception's text into their answer write what it says."""

    def __str__(self) -> str:
        return str(self.detail)


def guarded(name: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The handler of requests of the type ``name``; it answers where it raised, unless nobody waits for an answer."""

    def handle(request: Any) -> Any:
        try:
            return handler(request)
        except Exception as error:
            logger.exception("sglang-gemma4: %s failed; the server goes on", name)
            return failure(name, f"{type(error).__name__}: {error}")

    return handle


def guard_all(handlers: dict[type, Callable[[Any], Any]]) -> None:
    """Guard every administrative handler of a scheduler's table, in place."""
    for kind, handler in handlers.items():
        if not kind.__name__.startswith(NOT_GUARDED):
            handlers[kind] = guarded(kind.__name__, handler)


def failure(name: str, said: str) -> Any:
    """The answer to a request of the type ``name`` that failed; None where its sender waits for none.

    Args:
        said: what went wrong.
    """
    import msgspec

    kind = _answer_type(name)
    if kind is None:
        return None
    given: dict[str, Any] = {"success": False, "updated": False, "message": said, "error_message": said}
    fields = {field.name: field.required for field in msgspec.structs.fields(kind)}
    values = {field: given.get(field) for field, required in fields.items() if required or field in given}
    return kind(**{**values, "rid": f"{FAILED}{said}"})


def _answer_type(name: str) -> type | None:
    module = importlib.import_module(MODULE)
    known = {f"{name}Output", name.replace("ReqInput", "ReqOutput")} - {name}
    return next((getattr(module, one) for one in known if hasattr(module, one)), None)


def raise_failures(answers: Iterable[Any]) -> None:
    """Raise the first answer that is a failure without a field of its own for it.

    Raises:
        RefusedError: with status 400 and what the scheduler's handler raised.
    """
    for answer in answers:
        said = getattr(answer, "rid", None)
        if isinstance(said, str) and said.startswith(FAILED) and not hasattr(answer, "success"):
            raise RefusedError(400, said.removeprefix(FAILED))
