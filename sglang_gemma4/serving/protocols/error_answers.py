"""Hooks that answer a client's mistake with status 400 and its cause, on every endpoint."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.serving.client_errors import ClientError, mark_sent, reading


def answer_errors(*_args: Any, **_kwargs: Any) -> None:
    """Before ``_setup_and_run_http_server``, and after ``init_multi_tokenizer`` in each further process: install the error answers."""
    from sglang.srt.entrypoints.http_server import app

    from sglang_gemma4.serving.http_errors import install

    install(app)


def after_start(result: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After ``init_multi_tokenizer``: as :func:`answer_errors`."""
    answer_errors()
    return result


def note_sent(*_args: Any, **_kwargs: Any) -> None:
    """Before one or several requests are sent to a scheduler: later exceptions are not the client's error."""
    mark_sent()


def without_schemas(original: Callable[..., Any], server: Any, request: Any) -> Any:
    """Around ``OpenAIServingChat._validate_request``, on the event loop: skip tools' schemas, which :func:`judged_chat` checks in a thread.

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
    """Around ``OpenAIServingChat._process_messages``: check tools, template arguments and the length of the texts.

    Raises:
        ClientError: a check failed; a ValueError, which all chat endpoints answer with status 400.
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
