"""Limits a request's JSON body, before validation, which takes event-loop time for each value in the body."""

import re
from collections.abc import Iterator
from typing import Any

DEPTH = 128
"""Most arrays and objects around a value; the chat template and the validators recurse."""
CONTAINERS = 100_000
"""Most arrays and objects of a body: they take 0.1 s of the event loop."""
MIXED = 4096
"""Most elements of one array (messages, content parts, tools). Each wrong element costs 30 microseconds of the event loop or more."""
ELEMENTS = 50_000
"""Most prompts of one request, and most elements of an array inside a schema."""
VALUES = 500_000
"""Most elements of all arrays of a body."""
EMBEDDINGS = 16_000_000
"""Most numbers of a body with ``input_embeds``."""
_FREE = 5  # nesting depth from which on values belong to a schema or a message
_KINDS: dict[str, tuple[frozenset[type], ...]] = {
    **dict.fromkeys(("input_ids", "tokens", "token_ids_logprob"), (frozenset((int,)), frozenset((list,)))),
    **dict.fromkeys(("text", "prompt", "input"), (frozenset((int,)), frozenset((list,)), frozenset((str,)))),
    "input_embeds": (frozenset((int, float)), frozenset((float,)), frozenset((int,)), frozenset((list,))),
}
"""Fields whose arrays may have more than ``MIXED`` elements, and the sets of types that all elements must belong to."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')


class BodyError(ValueError):
    """The body is refused; the message is for the client."""


def check_size(raw: bytes) -> None:
    """Check an unparsed body, in a few milliseconds.

    Raises:
        BodyError: the body has too many arrays and objects, or too many values.
    """
    most = EMBEDDINGS if b'"input_embeds"' in raw else VALUES
    if _opened(raw) > CONTAINERS or raw.count(b",") > most:
        outside = _TEXT.sub(b"", raw)
        if _opened(outside) > CONTAINERS:
            raise BodyError(f"the body has {_opened(outside)} arrays and objects; at most {CONTAINERS} are read, send several requests")
        if outside.count(b",") > most:
            raise BodyError(f"the body has {outside.count(b',')} values; at most {most} are read, send several requests")


def _opened(raw: bytes) -> int:
    return raw.count(b"[") + raw.count(b"{")


def check_shape(body: Any) -> None:
    """Check a parsed body.

    Raises:
        BodyError: the body is nested too deeply, or an array or object in it is too long; the message names its field.
    """
    waiting = [(body, "the body", 1)] if isinstance(body, dict | list) else []
    while waiting:
        value, name, depth = waiting.pop()
        if depth > DEPTH:
            raise BodyError(f"{name} is nested deeper than {DEPTH} arrays and objects; nest less")
        if len(value) > MIXED:
            _check_length(value, name, depth)
        for key, inner in _inside(value):
            waiting.append((inner, key if isinstance(key, str) and depth == 1 else name, depth + 1))


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return ((key, inner) for key, inner in pairs if isinstance(inner, dict | list))


def _check_length(value: list[Any] | dict[str, Any], name: str, depth: int) -> None:
    if isinstance(value, dict):
        if depth < _FREE:
            raise BodyError(f"{name}: an object of {len(value)} members; at most {MIXED} are read, send fewer")
        return
    kinds = set(map(type, value))
    numbers = kinds <= {int, float}
    if any(kinds <= allowed for allowed in _KINDS.get(name, ())) or depth >= _FREE:
        most = VALUES if numbers and name in _KINDS else ELEMENTS
    else:
        most = MIXED
    if name == "input_embeds" and numbers:
        most = EMBEDDINGS
    if len(value) > most:
        raise BodyError(f"{name}: an array of {len(value)} elements; at most {most} of these are read, send fewer")
