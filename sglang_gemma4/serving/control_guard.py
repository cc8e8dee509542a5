"""An administrative request that fails in the scheduler is answered with its error, and the server goes on.

In the scheduler's process, :func:`guarded` wraps the handlers. In the tokenizer's, :func:`raise_failures` reads the answers. The error
is sent in the answer's ``rid``, which administrative answers do not use, because some have no other field.

One case cannot be guarded: a handler that fails on only one tensor-parallel rank leaves the other ranks in a collective.
"""

import importlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import HTTPException

logger = logging.getLogger(__name__)

FAILED = "sglang-gemma4 failure: "
NOT_GUARDED = ("Tokenized", "BatchTokenized", "ShutdownReq", "RpcReqInput")
"""Generation requests, which isolation guards, and two requests whose handlers end the server or catch errors themselves."""
MODULE = "sglang.srt.managers.io_struct"


class RefusedError(HTTPException):
    """An answer of a route, with its status. ``str`` gives only the detail, for routes that put an exception's text into their answer."""

    def __str__(self) -> str:
        return str(self.detail)


def guarded(name: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the handler of requests of type ``name``: if it raises, it returns a failure, or None if no one waits for an answer."""

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
    """The answer to a request of type ``name`` that failed; None if its sender waits for none.

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
    """Raise the first failure among answers whose type has no ``success`` field to report it.

    Raises:
        RefusedError: with status 400 and what the scheduler's handler raised.
    """
    for answer in answers:
        said = getattr(answer, "rid", None)
        if isinstance(said, str) and said.startswith(FAILED) and not hasattr(answer, "success"):
            raise RefusedError(400, said.removeprefix(FAILED))
