"""Compares JSON values as JSON schema does: 1 equals 1.0, true does not equal 1, also inside arrays and objects."""

import json
from typing import Any

from sglang_gemma4.serving.work_budget import Work

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def canonical(value: Any, work: Work) -> str:
    """A text that two JSON values share if and only if they are equal; nested values spend steps of ``work`` too.

    Raises:
        TooMuchWorkError: the budget is spent.
    """
    work.spend(2)
    if isinstance(value, str):
        work.spend(len(value) >> 5)
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join([canonical(one, work) for one in value])}]"
    if isinstance(value, dict):
        return f"{{{','.join(sorted([f'{json.dumps(key)}:{canonical(one, work)}' for key, one in value.items()]))}}}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def types_of(value: Any) -> tuple[str, ...]:
    """The JSON schema types of a value: two for an integer, none for a value that is not JSON."""
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int):
        return ("integer", "number")
    if isinstance(value, float):
        return ("integer", "number") if value.is_integer() else ("number",)
    for kind, one in (("string", str), ("object", dict), ("array", list)):
        if isinstance(value, one):
            return (kind,)
    return ("null",) if value is None else ()
