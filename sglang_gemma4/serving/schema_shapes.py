"""A JSON schema without references and combinations: the shapes a value may have, one of which it must have.

A shape is a plain schema of keywords that say something of the value itself. ``$ref`` and ``allOf`` are merged into the schema they
stand in, ``anyOf`` and ``oneOf`` become alternatives. What cannot be expressed (``not``, ``if``, ``uniqueItems``, ...) is left out and
named, so that more is allowed than the schema allows, never less.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import unquote

Schema = Mapping[str, Any] | bool
Shape = dict[str, Any]

LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
OF_OBJECTS = ("properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties")
OF_ARRAYS = ("items", "prefixItems", "minItems", "maxItems")
COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
NOT_ENFORCED = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "patternProperties", "minProperties"),
    *("maxProperties", "uniqueItems", "contains", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
)
"""Keywords that narrow what a value may be and that the grammar does not follow."""
COMBINATIONS = 256
LOOKED_AT = 4096
"""Schemas that are followed for one value; a schema that doubles at each reference would take the server's processor."""
"""Alternatives of one schema; where ``anyOf`` inside ``allOf`` makes more, the last of them are not followed."""

_KEPT = {"type", "enum", "const", "multipleOf", "pattern", *LOWER, *UPPER, *OF_OBJECTS, *OF_ARRAYS}


class SchemaError(ValueError):
    """A schema that nothing can be made of: the message says where and why."""


class Shapes:
    """Takes the schemas inside ``root`` apart.

    Attributes:
        widened: what was not followed, by keyword.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._looked_at = 0
        self.widened: set[str] = set()

    def of(self, schema: Schema) -> list[Shape]:
        """The shapes of ``schema``, which stands in the root; none where it allows nothing.

        Raises:
            SchemaError: a reference leads nowhere or out of the root, or alternatives refer to alternatives without end.
        """
        self._looked_at = 0
        return self._shapes(schema, ())

    def _shapes(self, schema: Schema, followed: tuple[str, ...]) -> list[Shape]:
        self._looked_at += 1
        if self._looked_at > LOOKED_AT:
            raise SchemaError(f"one value has more than {LOOKED_AT} schemas behind its references and alternatives; use fewer")
        if isinstance(schema, bool):
            return [{}] if schema else []
        self.widened.update(keyword for keyword in NOT_ENFORCED if keyword in schema)
        own = {key: value for key, value in schema.items() if key in _KEPT}
        if "const" in own:
            constant = own.pop("const")
            own["enum"] = [constant] if "enum" not in own or _among(constant, own["enum"]) else []
        shapes = [own]
        for parts in self._parts(schema, followed):
            if len(parts) * len(shapes) > COMBINATIONS:
                self.widened.add("anyOf")
                continue
            merged = [self._merged(one, other) for one in shapes for other in parts]
            shapes = [shape for shape in merged if shape is not None]
        return shapes

    def _parts(self, schema: Mapping[str, Any], followed: tuple[str, ...]) -> Iterable[list[Shape]]:
        """For each thing that must hold besides a schema's own keywords, the shapes that fulfil it."""
        if "$ref" in schema:
            reference = schema["$ref"]
            # A reference that leads back to itself before anything is said of the value allows nothing by that way.
            yield [] if reference in followed else self._shapes(self._resolved(reference), (*followed, reference))
        for part in schema.get("allOf", ()):
            yield self._shapes(part, followed)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                yield [shape for part in schema[keyword] for shape in self._shapes(part, followed)]

    def _resolved(self, reference: Any) -> Schema:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaError(
                f"$ref {reference!r} cannot be followed; refer to a place inside the tool's own parameters, as '#/$defs/name'"
            )
        place: Any = self._root
        for step in reference[2:].split("/") if len(reference) > 1 else ():
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(place, Mapping) and key in place:
                place = place[key]
            elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
                place = place[int(key)]
            else:
                raise SchemaError(f"$ref {reference!r} leads nowhere; the tool's parameters have no {key!r} there")
        if not isinstance(place, Mapping | bool):
            raise SchemaError(f"$ref {reference!r} leads to {place!r:.40}, which is no schema")
        return cast(Schema, place)

    def _merged(self, one: Shape, other: Shape) -> Shape | None:
        """What fulfils both; None where nothing does."""
        both = {**one, **other}
        for keyword in one.keys() & other.keys():
            mine, its = one[keyword], other[keyword]
            if keyword == "type":
                both[keyword] = sorted(_common_types(types(one) or set(), types(other) or set()))
                if not both[keyword]:
                    return None
            elif keyword == "enum":
                both[keyword] = [value for value in mine if _among(value, its)]
            elif keyword in LOWER:
                both[keyword] = max(mine, its)
            elif keyword in UPPER:
                both[keyword] = min(mine, its)
            elif keyword == "required":
                both[keyword] = [*mine, *(key for key in its if key not in mine)]
            elif keyword in ("items", "additionalProperties", "unevaluatedProperties"):
                both[keyword] = every(mine, its)
            elif keyword == "prefixItems":
                both[keyword] = [every(a, b) for a, b in zip(mine, its, strict=False)]
                longer, shorter = (one, other) if len(mine) > len(its) else (other, one)
                for part in longer[keyword][len(both[keyword]) :]:
                    both[keyword].append(every(part, shorter.get("items", True)))
            elif keyword in ("pattern", "multipleOf", "patternProperties") and mine != its:
                self.widened.add(keyword)
        if "properties" in one or "properties" in other:
            both["properties"] = _properties(one, other)
        return both


def types(shape: Mapping[str, Any]) -> set[str] | None:
    """The types a shape names; None where it names none."""
    named = shape.get("type")
    return None if named is None else {named} if isinstance(named, str) else set(named)


def every(*schemas: Schema) -> Schema:
    """A schema that holds where all of these hold, in one spelling for the same schemas in any order."""
    parts: dict[str, Schema] = {}
    for schema in schemas:
        inner = schema["allOf"] if isinstance(schema, Mapping) and set(schema) == {"allOf"} else [schema]
        parts.update({json.dumps(part, sort_keys=True): part for part in inner})
    parts.pop("true", None)
    if "false" in parts:
        return False
    kept = [parts[key] for key in sorted(parts)]
    return True if not kept else kept[0] if len(kept) == 1 else {"allOf": kept}


def _properties(one: Shape, other: Shape) -> dict[str, Schema]:
    """The properties of two shapes: one that only the first declares must suit the second's rule for other properties."""
    mine, its = one.get("properties", {}), other.get("properties", {})
    found: dict[str, Schema] = {}
    for key in [*mine, *(key for key in its if key not in mine)]:
        parts = [properties[key] for properties in (mine, its) if key in properties]
        for shape, properties in ((one, mine), (other, its)):
            if key not in properties and "patternProperties" not in shape:
                parts.append(shape.get("additionalProperties", True))
        found[key] = every(*parts)
    return found


def _common_types(one: set[str], other: set[str]) -> set[str]:
    common = one & other
    for mine, its in ((one, other), (other, one)):
        if "integer" in mine and "number" in its:
            common.add("integer")
    return common


def _among(value: Any, values: Iterable[Any]) -> bool:
    """Whether ``value`` is one of ``values`` as JSON has it: 1 and 1.0 are one number, 1 and true are not."""
    return any(_same(value, other) for other in values)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
