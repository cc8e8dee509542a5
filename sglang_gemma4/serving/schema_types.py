"""The types of a value and the schemas of its parts, according to a tool's JSON schema.

This much is needed to convert answers; they are not validated.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

Schemas = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] | None
"""The schemas that a value may have, each with its root schema (for ``$ref``); None if nothing is known."""

_REFERENCES = 16  # most references followed for one value; more would be a circle
_LOOKED_AT = 256  # most schemas visited for one value


def whole(schema: object) -> Schemas:
    """The schemas of a tool's parameters."""
    return _expanded([(schema, schema)]) if isinstance(schema, Mapping) else None


def member(schemas: Schemas, key: str) -> Schemas:
    """The schemas of an object's value under ``key``."""
    found: list[tuple[Any, Mapping[str, Any]]] = []
    for schema, root in schemas or ():
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            found.append((properties[key], root))
        else:
            found.append((schema.get("additionalProperties"), root))
    return _expanded(found)


def element(schemas: Schemas, index: int) -> Schemas:
    """The schemas of an array's value at ``index``."""
    found: list[tuple[Any, Mapping[str, Any]]] = []
    for schema, root in schemas or ():
        first = _listed(schema.get("prefixItems"))
        found.append((first[index] if index < len(first) else schema.get("items"), root))
    return _expanded(found)


def types(schemas: Schemas) -> frozenset[str] | None:
    """The JSON types that the schemas name; None if one of them names none."""
    named: set[str] = set()
    for schema, _ in schemas or ():
        kind = schema.get("type")
        if isinstance(kind, str):
            named.add(kind.lower())
        elif isinstance(kind, Sequence):
            named.update(str(one).lower() for one in kind)
        elif values := _values(schema):
            named.update(values)
        else:
            return None
    return frozenset(named) or None


def _values(schema: Mapping[str, Any]) -> set[str]:
    """The types of an enumeration's or constant's values."""
    values = [*_listed(schema.get("enum"))]
    if "const" in schema:
        values.append(schema["const"])
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return {names.get(type(value), "object") for value in values}


def _expanded(found: list[tuple[Any, Mapping[str, Any]]]) -> Schemas:
    """The schemas with references resolved and ``anyOf``, ``oneOf`` and ``allOf`` expanded; None if nothing is left."""
    result: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    todo = [(schema, root, 0) for schema, root in reversed(found)]
    for _ in range(_LOOKED_AT):
        if not todo:
            break
        schema, root, depth = todo.pop()
        if not isinstance(schema, Mapping) or depth > _REFERENCES:
            continue
        reference = schema.get("$ref")
        if isinstance(reference, str):
            with suppress(KeyError):
                todo.append((pointed(reference, root), root, depth + 1))
            continue
        parts = [part for name in ("anyOf", "oneOf", "allOf") for part in _listed(schema.get(name))]
        todo += [(part, root, depth + 1) for part in reversed(parts)]
        if not parts or any(name in schema for name in ("type", "properties", "items")):
            result.append((schema, root))
    return result or None


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def pointed(reference: str, root: Any) -> Any:
    """What a reference such as "#/$defs/name" points to in ``root``.

    Raises:
        KeyError: the step of the path that does not exist.
    """
    place = root
    for step in reference.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and key in place:
            place = place[key]
        elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
            place = place[int(key)]
        else:
            raise KeyError(key)
    return place
