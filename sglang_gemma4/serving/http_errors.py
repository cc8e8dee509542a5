"""Makes SGLang's HTTP server answer an exception that the request's own data caused with status 400."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.exceptions import ExceptionMiddleware

from sglang_gemma4.serving.client_errors import KINDS, STAGE, Stage, cause, in_thread, logger, was_sent
from sglang_gemma4.serving.media import image_budget
from sglang_gemma4.serving.request_body import BodyError, check_shape, check_size

QUICK = 1 << 16
"""Largest body, in bytes, whose shape is checked on the event loop."""
ERRORS = 8
"""Most errors of one body that the answer shows."""
_PARSERS = ("/parse_function_call", "/separate_reasoning")


def install(app: FastAPI) -> None:
    """Make ``app``, which may be running already, answer its handlers' exceptions."""
    layer: Any = app.middleware_stack
    while layer is not None and not isinstance(layer, ExceptionMiddleware):
        layer = getattr(layer, "app", None)
    for kind in KINDS:
        app.add_exception_handler(kind, _answer)
        if layer is not None:
            layer.add_exception_handler(kind, _answer)
    app.add_exception_handler(RequestValidationError, wrong := _first_errors(app.exception_handlers[RequestValidationError]))
    if layer is not None:
        layer.add_exception_handler(RequestValidationError, wrong)
    for route in app.routes:
        if getattr(route, "path", "") in _PARSERS:
            dependant: Any = route.dependant  # type: ignore[attr-defined]
            dependant.call = _in_thread(dependant.call)


def _first_errors(handler: Any) -> Callable[..., Any]:
    """SGLang's answer to an invalid body, limited to the first errors, because it prints each error twice."""

    async def answer(request: Request, error: Any) -> Any:
        shown = RequestValidationError(error._errors[:ERRORS], body=None)
        return await handler(request, shown)

    return answer


def _in_thread(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Run a handler in a thread: it awaits nothing, and its texts may be long."""

    @functools.wraps(handler)
    async def call(**values: Any) -> Any:
        return await in_thread(handler(**values))

    return call


async def _answer(request: Request, error: Exception) -> Any:
    """Answer an unhandled error with status 400 if the request was not yet sent to a scheduler, or if its query is wrong."""
    if was_sent() and not _is_of_query(request, error):
        raise error
    logger.warning("a request cannot be read", exc_info=error)
    handler: Any = request.app.exception_handlers[AnyHTTPException]
    return await handler(request, HTTPException(400, cause(error)))


def _is_of_query(request: Request, error: Exception) -> bool:
    """Whether a handler raised a ValueError and its only input was the query, as in /v1/loads?include=x."""
    return isinstance(error, ValueError) and STAGE.get() is None and bool(request.query_params)


async def judged_body(original: Callable[..., Any], request: Any) -> Any:
    """Around ``ORJSONRequest.json``: the parsed body.

    Raises:
        HTTPException: with status 400, if the body is refused.
    """
    if hasattr(request, "_json"):
        return await original(request)
    STAGE.set(Stage())
    try:
        raw = await request.body()
        check_size(raw)
        body = await original(request)
        if len(raw) <= QUICK:
            check_shape(body)
        else:
            from starlette.concurrency import run_in_threadpool

            await run_in_threadpool(check_shape, body)
        if dropped := image_budget.dropped_by(_route(request.scope), body):
            raise BodyError(dropped)
    except BodyError as error:
        raise HTTPException(400, str(error)) from error
    return body


def _route(scope: Any) -> str:
    """The path without the prefix of ``--fastapi-root-path``."""
    return str(scope["path"]).removeprefix(scope.get("root_path", "").rstrip("/"))


def error_response(
    original: Callable[..., Any],
    server: Any,
    message: str,
    err_type: str = "BadRequestError",
    status_code: int = 400,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Around ``OpenAIServingBase.create_error_response``: status 400 for a caught error that the request's data caused."""
    error = sys.exc_info()[1]
    if status_code == 500 and isinstance(error, KINDS) and not was_sent():
        return original(server, cause(error), "BadRequestError", 400, *args, **kwargs)
    return original(server, message, err_type, status_code, *args, **kwargs)
