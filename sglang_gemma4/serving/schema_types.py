"""The types of a value and the schemas of its parts, according to a tool's JSON schema.

This much is needed to convert answers; they are not validated. Schemas that are wrong or too large say nothing of a value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sglang_gemma4.serving.schema_shapes import TYPES, Schema, Shape, Shapes, is_type

_LOOKED_AT = 256
"""Most schemas visited for one value: this many are visited for each value of an answer."""


class Schemas(NamedTuple):
    """The shapes that a value may have, and the resolver of their references; no shape means that nothing is known."""

    root: Shapes
    shapes: Sequence[Shape]

    def part(self, schema_of: Callable[[Shape], Schema]) -> "Schemas":
        """The schemas of a part of the value, which ``schema_of`` takes from each shape."""
        try:
            return self._replace(shapes=[found for shape in self.shapes for found in self.root.of(schema_of(shape))])
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            return self._replace(shapes=[])


UNKNOWN = Schemas(Shapes(True), [])


def whole(schema: object) -> Schemas:
    """The schemas of a tool's parameters."""
    if not isinstance(schema, Mapping):
        return UNKNOWN
    return Schemas(Shapes(schema, _LOOKED_AT), [{}]).part(lambda _: schema)


def member(schemas: Schemas, key: str) -> Schemas:
    """The schemas of an object's value under ``key``."""
    return schemas.part(lambda shape: shape.get("properties", {}).get(key, shape.get("additionalProperties", True)))


def element(schemas: Schemas, index: int) -> Schemas:
    """The schemas of an array's value at ``index``."""

    def at(shape: Shape) -> Schema:
        first: Sequence[Schema] = shape.get("prefixItems", ())
        other: Schema = shape.get("items", True)
        return first[index] if index < len(first) else other

    return schemas.part(at)


def types(schemas: Schemas) -> frozenset[str] | None:
    """The JSON types that the schemas name; None if one of them names none."""
    named: set[str] = set()
    for shape in schemas.shapes:
        kind = shape.get("type")
        found = {kind} if isinstance(kind, str) else set(kind or ())
        found = found or {one for one in TYPES if any(is_type(value, one) for value in shape.get("enum", ()))}
        if not found:
            return None
        named.update(str(one).lower() for one in found)
    return frozenset(named) or None
