"""Finds JSON schemas whose values can never be completed, and the place in the schema that is the cause.

Such a schema allows nothing (contradictions), or only values that contain another of the same schema without end. Grammars of both
compile, and an answer goes on until ``max_tokens``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sglang_gemma4.serving.grammar_rules import Ref, Rules, Sequence_
from sglang_gemma4.serving.json_values import types_of
from sglang_gemma4.serving.schema_shapes import OF_ARRAYS, OF_OBJECTS, Schema, Shape, Shapes, types
from sglang_gemma4.serving.work_budget import Work

STEPS = 50_000
"""Steps of work for one schema. A schema that needs more is checked only by its grammar."""
_PARTS = 10_000  # most different subschemas in a schema
_PLACE = 300  # most characters of a place in a message

Part = tuple[str, Schema]
"""A step from a schema to one of its parts, and the part."""


def reason_against(schema: Schema, contradictions: bool = True) -> str | None:
    """Why answers of ``schema`` may never end, with the place in it; None if each can end, or if that is not known.

    Args:
        contradictions: also report schemas that no value satisfies. Some of their grammars end nevertheless, such as one whose required
            key is no property.
    """
    try:
        return _Ends(schema).reason_against(contradictions)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError):
        return None  # no schema, a reference that leads nowhere, or too much work


def reason_against_tag(tag: Any, contradictions: bool = True) -> str | None:
    """As :func:`reason_against`, for the schemas in a structural tag."""
    waiting = [tag]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            schemas = [one[key] for key in ("json_schema", "schema") if isinstance(one.get(key), Mapping | bool)]
            if reason := next(filter(None, (reason_against(schema, contradictions) for schema in schemas)), None):
                return reason
            waiting += [value for key, value in one.items() if key not in ("json_schema", "schema")]
        elif isinstance(one, list):
            waiting += one
    return None


class _Ends:
    """One schema's parts as rules of a grammar that has no texts, only references."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._shapes = Shapes(root, Work(STEPS))
        self._rules = Rules(_PARTS, Work(STEPS))
        self._refs: dict[str, Ref] = {}
        self._ways: dict[str, list[list[tuple[Part, Ref]]]] = {}  # by rule: for each way to write a value, the parts it must contain
        self._waiting: list[tuple[Ref, Schema]] = []
        self._whole = self._of(root)
        while self._waiting:
            self._fill(*self._waiting.pop())
        self._ended = self._rules.completable()

    def _of(self, schema: Schema) -> Ref:
        key = self._shapes.written(schema)
        if key not in self._refs:
            self._refs[key] = self._rules.reserve("part")
            self._waiting.append((self._refs[key], schema))
        return self._refs[key]

    def _fill(self, rule: Ref, schema: Schema) -> None:
        shapes = self._shapes.of(schema)
        ways = [[(part, self._of(part[1])) for part in way] for shape in shapes for way in _ways(shape)]
        for shape in shapes:
            for part in _may_contain(shape):
                self._of(part)
        self._ways[rule.name] = ways
        self._rules.fill(rule, [_references(way) for way in ways])

    def reason_against(self, contradictions: bool) -> str | None:
        if self._whole.name not in self._ended:
            place, endless = self._culprit("#", self._whole, self._ways[self._whole.name])
            if not endless and not contradictions:
                return None
            return f"{place[:_PLACE]}: {_ENDLESS if endless else 'no value satisfies it'}"
        for name, ways in self._ways.items():  # an answer may reach this part, and then not end
            for way in ways:
                if any(ref.name not in self._ended for _, ref in way):
                    place, endless = self._culprit("", Ref(name), [way])
                    if endless:
                        return f"{place[:_PLACE]}: {_ENDLESS}"
        return None

    def _culprit(self, place: str, rule: Ref, ways: list[list[tuple[Part, Ref]]]) -> tuple[str, bool]:
        """The innermost part without an end, and whether values of it contain another without end."""
        seen: dict[str, str] = {}
        while ways and rule.name not in seen:
            seen[rule.name] = place
            (step, part), rule = next(one for one in ways[0] if one[1].name not in self._ended)
            place = self._place(part) or place + step
            ways = self._ways[rule.name]
        return seen.get(rule.name) or place, rule.name in seen

    def _place(self, part: Schema) -> str | None:
        """The place of ``part`` in the whole schema; None for a part that was merged from several."""
        waiting: list[tuple[str, Any]] = [("#", self._root)]
        while waiting:
            self._shapes.work.spend(1)
            place, one = waiting.pop()
            if one is part and not isinstance(one, bool):
                return place
            children = one.items() if isinstance(one, Mapping) else enumerate(one) if isinstance(one, list) else ()
            waiting += [(f"{place}/{str(key).replace('~', '~0').replace('/', '~1')}", child) for key, child in children]
        return None


_ENDLESS = "its values contain another one of it without end; let them end, with null, an empty array or an optional property"


def _references(way: Sequence[tuple[Part, Ref]]) -> Sequence_:
    return tuple(dict.fromkeys(ref for _, ref in way))


def _ways(shape: Shape) -> Iterator[list[Part]]:
    """For each way to write a value of ``shape``, the parts it must contain; none if there is no value."""
    allowed = types(shape)
    if "enum" in shape:
        if any((allowed is None or not allowed.isdisjoint(types_of(value))) and _fits(value, shape) for value in shape["enum"]):
            yield []
        return
    if allowed is None:  # grammar backends infer the type in the same way
        allowed = {kind for kind, words in (("object", OF_OBJECTS), ("array", OF_ARRAYS)) if any(word in shape for word in words)}
    if not allowed or allowed & {"null", "boolean"}:
        yield []
    if ("number" in allowed and _has_number(shape)) or ("integer" in allowed and _has_integer(shape)):
        yield []
    if "string" in allowed and shape.get("minLength", 0) <= shape.get("maxLength", math.inf):
        yield []
    if "array" in allowed:
        yield from _ways_of_arrays(shape)
    if "object" in allowed:
        yield from _ways_of_objects(shape)


def _fits(value: Any, shape: Shape) -> bool:
    """Whether a value of an enum is within the bounds of ``shape``."""
    if isinstance(value, str):
        return bool(shape.get("minLength", 0) <= len(value) <= shape.get("maxLength", math.inf))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return _has_number({**shape, "minimum": max(value, shape.get("minimum", value)), "maximum": min(value, shape.get("maximum", value))})


def _has_number(shape: Shape) -> bool:
    low, high = _bound(shape, "minimum", -math.inf), _bound(shape, "maximum", math.inf)
    above, below = _bound(shape, "exclusiveMinimum", -math.inf), _bound(shape, "exclusiveMaximum", math.inf)
    return low <= high and above < below and (above < high or above == -math.inf) and (low < below or below == math.inf)


def _has_integer(shape: Shape) -> bool:
    if not _has_number(shape):
        return False
    low, high = _bound(shape, "minimum", -math.inf), _bound(shape, "maximum", math.inf)
    above, below = _bound(shape, "exclusiveMinimum", -math.inf), _bound(shape, "exclusiveMaximum", math.inf)
    if math.isinf(max(low, above)) or math.isinf(min(high, below)):
        return True
    first = max(math.ceil(low) if math.isfinite(low) else -math.inf, math.floor(above) + 1 if math.isfinite(above) else -math.inf)
    step = shape.get("multipleOf", 1)
    if isinstance(step, int) and step > 0:
        first = -(-int(first) // step) * step
    return first <= high and first < below


def _bound(shape: Shape, word: str, default: float) -> float:
    found = shape.get(word, default)
    return default if isinstance(found, bool) else found  # in draft 4 exclusive bounds were booleans


def _ways_of_arrays(shape: Shape) -> Iterator[list[Part]]:
    least, first = int(shape.get("minItems", 0)), shape.get("prefixItems", [])
    if least > shape.get("maxItems", math.inf):
        return
    parts: list[Part] = [(f"/prefixItems/{n}", part) for n, part in enumerate(first[:least])]
    yield [*parts, *([("/items", shape.get("items", True))] if least > len(first) else [])]


def _ways_of_objects(shape: Shape) -> Iterator[list[Part]]:
    properties, required = shape.get("properties", {}), dict.fromkeys(shape.get("required", ()))
    others: Part = ("/additionalProperties", True if "patternProperties" in shape else shape.get("additionalProperties", True))
    needed = [(f"/properties/{key}", properties[key]) if key in properties else others for key in required]
    least = shape.get("minProperties", 0)
    if max(least, len(required)) > shape.get("maxProperties", math.inf):
        return
    if least <= len(required):
        yield needed
        return
    if others[1] is False and least > len({*properties, *required}):
        return
    for more in [(f"/properties/{key}", part) for key, part in properties.items() if key not in required] + [others]:
        yield [*needed, more]


def _may_contain(shape: Shape) -> Iterator[Schema]:
    """The parts that a value of ``shape`` may have."""
    if "enum" not in shape:
        yield from shape.get("properties", {}).values()
        yield from shape.get("prefixItems", ())
        yield from (shape[word] for word in ("items", "additionalProperties") if word in shape)
