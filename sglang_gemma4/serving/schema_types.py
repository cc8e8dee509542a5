"""What a tool's JSON schema says of one value: which types it may have, and which schemas its parts follow.

Only that much of JSON schema is read here: answers are converted by it, not validated.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Schemas = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] | None
"""The schemas a value may follow, each with the whole it is a part of (for ``$ref``); None where nothing is known."""

_REFERENCES = 16  # references followed for one value; more are a circle
_LOOKED_AT = 256  # schemas looked at for one value


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
    """The JSON types the schemas name; None where one of them names none."""
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
    """With references followed and ``anyOf``, ``oneOf`` and ``allOf`` taken apart; None where nothing is left."""
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
            todo.append((_resolved(reference, root), root, depth + 1))
            continue
        parts = [part for name in ("anyOf", "oneOf", "allOf") for part in _listed(schema.get(name))]
        todo += [(part, root, depth + 1) for part in reversed(parts)]
        if not parts or any(name in schema for name in ("type", "properties", "items")):
            result.append((schema, root))
    return result or None


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _resolved(reference: str, root: Any) -> Any:
    place: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        if not isinstance(place, Mapping):
            return None
        place = place.get(name.replace("~1", "/").replace("~0", "~")) if name else place
    return place
