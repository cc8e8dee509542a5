"""Completes call arguments that were cut off or are absent, in a conversation's history and where an endpoint sends whole objects."""

import json
from typing import Any

from sglang_gemma4.serving.arguments_json import without_halves


def whole_arguments(arguments: Any) -> Any:
    """Arguments that a template can render: ``{}`` for absent ones; those that ``max_tokens`` cut off are closed where they end.

    Text that does not begin as JSON is returned unchanged, and SGLang refuses it.
    """
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return {} if json.loads(arguments) is None else without_halves(arguments)
    except (ValueError, RecursionError):
        return closed(arguments)


def closed(text: str) -> Any:
    """The object that truncated JSON holds; ``text`` itself if it holds no object."""
    from partial_json_parser import Allow, loads  # type: ignore[import-untyped]

    if not text.lstrip().startswith("{"):
        return text
    try:
        found = loads(without_halves(text), Allow.ALL)
    except Exception:  # the parser raises AssertionError for some texts
        return text
    return found if isinstance(found, dict) else text


def close_last(calls: list[Any] | None) -> None:
    """Close the arguments of an answer's last call, in place, if the answer ended inside it."""
    if calls and isinstance(arguments := calls[-1].function.arguments, str):
        found = whole_arguments(arguments)
        calls[-1].function.arguments = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def repair(messages: list[Any]) -> None:
    """Complete the arguments of all past calls, in place."""
    for message in messages:
        for call in getattr(message, "tool_calls", None) or []:
            if (function := getattr(call, "function", None)) is not None:
                function.arguments = whole_arguments(function.arguments)
