"""Turns a JSON schema into a list of shapes without references and combinations; a value must have one of the shapes.

A shape is a plain schema with keywords about the value itself. ``$ref`` and ``allOf`` are merged into the schema that has them; ``anyOf``
and ``oneOf`` become alternatives. Keywords that cannot be expressed (``not``, ``if``, ``uniqueItems``, ...) are left out and reported. The
shapes may therefore allow more than the schema, never less.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import unquote

from sglang_gemma4.serving.json_values import canonical
from sglang_gemma4.serving.work_budget import Work

Schema = Mapping[str, Any] | bool
Shape = dict[str, Any]

LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
OF_OBJECTS = ("properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties")
OF_ARRAYS = ("items", "prefixItems", "minItems", "maxItems")
NOT_ENFORCED = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "patternProperties", "minProperties"),
    *("maxProperties", "uniqueItems", "contains", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
)
"""Keywords that restrict a value and that the grammar does not enforce."""
COMBINATIONS = 256
"""Most alternatives of one schema. If ``anyOf`` inside ``allOf`` gives more, the last conditions are not enforced."""
_CHARACTERS = 32  # characters of written JSON, or of a followed reference, per step of work

_KEPT = {"type", "enum", "const", "multipleOf", "pattern", *LOWER, *UPPER, *OF_OBJECTS, *OF_ARRAYS}


class SchemaError(ValueError):
    """A schema that cannot be used; the message says where and why."""


class Shapes:
    """Computes the shapes of schemas inside ``root``.

    Attributes:
        widened: keywords that were not enforced.
        work: the budget of the request that has the schemas.
    """

    def __init__(self, root: Schema, work: Work | None = None) -> None:
        self._root = root
        self.work = work or Work()
        self.widened: set[str] = set()
        self._found: dict[int, tuple[Schema, list[Shape]]] = {}  # by ``id`` of a schema, which is kept so that its id is not reused
        self._members: dict[int, tuple[Any, dict[str, Any]]] = {}  # an enum's values, by the enum's ``id``

    def of(self, schema: Schema) -> list[Shape]:
        """The shapes of ``schema``, which is part of the root; none if it allows nothing.

        Raises:
            SchemaError: a reference leads nowhere or out of the root.
            TooMuchWorkError: the budget is spent.
        """
        if id(schema) not in self._found:
            self._found[id(schema)] = schema, self._shapes(schema, ())
        return self._found[id(schema)][1]

    def _shapes(self, schema: Schema, followed: tuple[str, ...]) -> list[Shape]:
        self.work.spend(8)
        if isinstance(schema, bool):
            return [{}] if schema else []
        self.work.spend(len(schema))
        self.widened.update(keyword for keyword in NOT_ENFORCED if keyword in schema)
        own = {key: value for key, value in schema.items() if key in _KEPT}
        if "const" in own:
            constant = own.pop("const")
            own["enum"] = [constant] if "enum" not in own or canonical(constant, self.work) in self._values(own["enum"]) else []
        shapes = [own]
        for parts in self._parts(schema, followed):
            if len(parts) * len(shapes) > COMBINATIONS:
                self.widened.add("anyOf")
                continue
            merged = [self._merged(one, other) for one in shapes for other in parts]
            shapes = [shape for shape in merged if shape is not None]
        return shapes

    def _parts(self, schema: Mapping[str, Any], followed: tuple[str, ...]) -> Iterable[list[Shape]]:
        """For each ``$ref``, ``allOf`` part, ``anyOf`` and ``oneOf`` of a schema, the shapes that meet it."""
        if "$ref" in schema:
            reference = schema["$ref"]
            # A reference that leads back to itself without a step into the value allows nothing.
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
        self.work.spend(len(reference) // _CHARACTERS)
        try:
            place = _pointed(reference, self._root)
        except KeyError as error:
            raise SchemaError(f"$ref {reference!r} leads nowhere; the tool's parameters have no {error} there") from error
        if not isinstance(place, Mapping | bool):
            raise SchemaError(f"$ref {reference!r} leads to {place!r:.40}, which is no schema")
        return cast(Schema, place)

    def _merged(self, one: Shape, other: Shape) -> Shape | None:
        """The shape of values that meet both shapes; None if no value does."""
        self.work.spend(16 + len(one) + len(other))
        both = {**one, **other}
        for keyword in one.keys() & other.keys():
            mine, its = one[keyword], other[keyword]
            if keyword == "type":
                both[keyword] = sorted(_common_types(types(one) or set(), types(other) or set()))
                if not both[keyword]:
                    return None
            elif keyword == "enum":
                both[keyword] = self._common(mine, its)
            elif keyword in LOWER:
                both[keyword] = max(mine, its)
            elif keyword in UPPER:
                both[keyword] = min(mine, its)
            elif keyword == "required":
                self.work.spend(len(mine) + len(its))
                both[keyword] = list(dict.fromkeys([*mine, *its]))
            elif keyword in ("items", "additionalProperties", "unevaluatedProperties"):
                both[keyword] = self._every(mine, its)
            elif keyword == "prefixItems":
                both[keyword] = [self._every(a, b) for a, b in zip(mine, its, strict=False)]
                longer, shorter = (one, other) if len(mine) > len(its) else (other, one)
                for part in longer[keyword][len(both[keyword]) :]:
                    both[keyword].append(self._every(part, shorter.get("items", True)))
            elif keyword in ("pattern", "multipleOf", "patternProperties") and mine != its:
                self.widened.add(keyword)
        if "properties" in one or "properties" in other:
            both["properties"] = self._properties(one, other)
        return both

    def _common(self, mine: list[Any], its: list[Any]) -> list[Any]:
        """The values that two enums share, as JSON compares them, in the first one's order."""
        self.work.spend(len(mine) + 1)
        both = self._values(mine).keys() & self._values(its).keys()
        return [value for key, value in self._values(mine).items() if key in both]

    def _values(self, values: list[Any]) -> dict[str, Any]:
        """An enum's values by their canonical forms."""
        if id(values) not in self._members:
            found: dict[str, Any] = {}
            for value in values:
                found.setdefault(canonical(value, self.work), value)
            self._members[id(values)] = values, found
        return self._members[id(values)][1]

    def _every(self, *schemas: Schema) -> Schema:
        """The conjunction of schemas, with the same result in any order."""
        parts: dict[str, Schema] = {}
        for schema in schemas:
            inner = schema["allOf"] if isinstance(schema, Mapping) and set(schema) == {"allOf"} else [schema]
            parts.update({self.written(part): part for part in inner})
        parts.pop("true", None)
        if "false" in parts:
            return False
        kept = [parts[key] for key in sorted(parts)]
        return True if not kept else kept[0] if len(kept) == 1 else {"allOf": kept}

    def written(self, schema: Schema) -> str:
        """``schema`` as JSON text; equal schemas give the same text."""
        self.work.spend(6)
        text = json.dumps(schema, sort_keys=True)
        self.work.spend(len(text) // _CHARACTERS)
        return text

    def _properties(self, one: Shape, other: Shape) -> dict[str, Schema]:
        """The properties of two shapes. A property that only one declares must also meet the other's ``additionalProperties``."""
        mine, its = one.get("properties", {}), other.get("properties", {})
        self.work.spend(len(mine) + len(its))
        found: dict[str, Schema] = {}
        for key in dict.fromkeys([*mine, *its]):
            parts = [properties[key] for properties in (mine, its) if key in properties]
            for shape, properties in ((one, mine), (other, its)):
                if key not in properties and "patternProperties" not in shape:
                    parts.append(shape.get("additionalProperties", True))
            found[key] = self._every(*parts)
        return found


def types(shape: Mapping[str, Any]) -> set[str] | None:
    """The types that a shape names; None if it names none."""
    named = shape.get("type")
    return None if named is None else {named} if isinstance(named, str) else set(named)


def _common_types(one: set[str], other: set[str]) -> set[str]:
    common = one & other
    for mine, its in ((one, other), (other, one)):
        if "integer" in mine and "number" in its:
            common.add("integer")
    return common


def _pointed(reference: str, root: Any) -> Any:
    """What a reference such as "#/$defs/name" points to in ``root``.

    Raises:
        KeyError: the step of the path that does not exist.
    """
    place: Any = root
    for step in reference.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and key in place:
            place = place[key]
        elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
            place = place[int(key)]
        else:
            raise KeyError(key)
    return place
