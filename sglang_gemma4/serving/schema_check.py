"""Checks whether a value is a JSON schema of draft 2020-12, in microseconds per subschema.

``jsonschema`` interprets the draft's meta-schema instead, which takes a second for 100 kB.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from sglang_gemma4.serving.json_values import TYPES, types_of

_PATTERNS = 10_000
"""Most characters of regular expressions that are checked; further ones are assumed correct."""
_ANCHOR = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z")

_ONE = ("items", "contains", "additionalProperties", "propertyNames", "if", "then", "else", "not", "contentSchema")
_OF_ONE = frozenset((*_ONE, "unevaluatedItems", "unevaluatedProperties"))
_OF_SOME = frozenset(("prefixItems", "allOf", "anyOf", "oneOf"))
_OF_NAMED = frozenset(("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies"))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and len(set(value)) == len(value)


def _type(value: Any) -> bool:
    return value in TYPES if isinstance(value, str) else _texts(value) and bool(value) and set(value) <= set(TYPES)


def _count(value: Any) -> bool:
    return "integer" in types_of(value) and value >= 0


_Check = tuple[Callable[[Any], bool], str]
_TEXT: _Check = (lambda value: isinstance(value, str), "a string")
_TRUTH: _Check = (lambda value: isinstance(value, bool), "true or false")
_LIST: _Check = (lambda value: isinstance(value, list), "an array")
_NUMBER: _Check = (lambda value: "number" in types_of(value), "a number")
_COUNT: _Check = (_count, "an integer that is not negative")
_NAMED_TEXTS: _Check = (lambda value: isinstance(value, dict) and all(map(_texts, value.values())), "an object of arrays of names")
_NAMED_TRUTHS: _Check = (
    lambda value: isinstance(value, dict) and all(isinstance(one, bool) for one in value.values()),
    "an object of true and false",
)
_CHECKS: dict[str, _Check] = {
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef", "$schema", "$comment", "title", "description", "format"), _TEXT),
    **dict.fromkeys(("contentEncoding", "contentMediaType", "pattern"), _TEXT),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), _TRUTH),
    **dict.fromkeys(("enum", "examples"), _LIST),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), _NUMBER),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _COUNT),
    **dict.fromkeys(("maxContains", "minContains"), _COUNT),
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$recursiveAnchor"),
        (lambda value: isinstance(value, str) and bool(_ANCHOR.match(value)), "a name of letters, digits, '-', '_' and '.'"),
    ),
    "$id": (lambda value: isinstance(value, str) and "#" not in value[:-1], "an address without fragment"),
    "$vocabulary": _NAMED_TRUTHS,
    "type": (_type, f"one or several of {', '.join(TYPES)}"),
    "multipleOf": (lambda value: "number" in types_of(value) and value > 0, "a number above 0"),
    "required": (_texts, "an array of different names"),
    "dependentRequired": _NAMED_TEXTS,
}


def fault(schema: Any) -> str | None:
    """What keeps ``schema`` from being a JSON schema, with its place in it; None if nothing does."""
    waiting, patterns = [(schema, "#")], 0
    while waiting:
        one, place = waiting.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            return f"{place}: {str(one)[:60]} is no schema; give an object, true or false"
        for keyword, value in one.items():
            if keyword in _CHECKS and not _CHECKS[keyword][0](value):
                return f"{place}/{keyword}: {str(value)[:60]} is not {_CHECKS[keyword][1]}"
            if keyword == "pattern":
                patterns += len(value)
                if patterns < _PATTERNS and (wrong := _no_pattern(value)):
                    return f"{place}/pattern: {value:.60} is no regular expression: {wrong}"
            elif (inner := _inside(keyword, value)) is None:
                return f"{place}/{keyword}: {str(value)[:60]} is not {'an object' if keyword in _OF_NAMED else 'an array'} of schemas"
            else:
                waiting += [(part, f"{place[-200:]}/{keyword}{name}") for name, part in inner]
    return None


def _inside(keyword: str, value: Any) -> list[tuple[str, Any]] | None:
    """The schemas under ``keyword``, each with the rest of its place; None if ``value`` does not have the schemas that it must."""
    if keyword in _OF_ONE:
        return [("", value)]
    if keyword in _OF_SOME:
        return [(f"/{n}", part) for n, part in enumerate(value)] if isinstance(value, list) and value else None
    if keyword not in _OF_NAMED:
        return []
    if not isinstance(value, dict):
        return None
    return list(_named(keyword, value))


def _named(keyword: str, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, part in value.items():
        if not (keyword == "dependencies" and _texts(part)):
            yield f"/{name}", part


def _no_pattern(expression: str) -> str | None:
    try:
        re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return None
