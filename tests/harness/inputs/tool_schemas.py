"""Hypothesis strategies: JSON schemas of tools, values that satisfy them, and values that are close to it."""

import copy
import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from sglang_gemma4.serving.markers import STRING

NAMES = ("city", "City", "days", "a", "ab", "unit", "x_1", "max-price", "where.to", "größe")
_STOPS = ("<turn|>", "<eos>", "<|tool_response>")  # tokens that end an answer are never part of one

texts: SearchStrategy[str] = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="▁\0"), max_size=12),
    st.lists(
        st.sampled_from(
            ["a", '"', "{", "}", "]", ",", ":", "<|", '<|"|', "|>", "\n", " ", "<tool_call|>", "<|tool_call>", "<|channel>", "é"]
        ),
        max_size=6,
    ).map("".join),
).filter(lambda text: STRING not in text and not any(stop in text for stop in _STOPS))
numbers = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6).filter(lambda x: x != int(x) and "e" not in repr(x)))
scalars: SearchStrategy[Any] = st.one_of(texts, st.integers(-200, 200), numbers, st.booleans(), st.none())
values: SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)),
    max_leaves=5,
)


@st.composite
def strings(draw: DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if draw(st.booleans()):
        schema["minLength"] = draw(st.integers(0, 4))
    if draw(st.booleans()):
        schema["maxLength"] = schema.get("minLength", 0) + draw(st.integers(0, 8))
    return schema


@st.composite
def bounded(draw: DrawFn) -> dict[str, Any]:
    """Numbers and integers between whole bounds."""
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    low = draw(st.integers(-1200, 1200))
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + draw(st.integers(2, 2000))
    return schema


@st.composite
def arrays(draw: DrawFn, inner: SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": draw(inner)}
    if draw(st.integers(0, 3)) == 0:
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        schema["maxItems"] = schema.get("minItems", 0) + draw(st.integers(0, 3))
    return schema


@st.composite
def objects(draw: DrawFn, inner: SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(st.sampled_from(NAMES), inner, max_size=6))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    others = draw(st.one_of(st.just(False), st.just(False), st.just(True), inner))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": others}


leaves: SearchStrategy[Any] = st.one_of(
    strings(),
    bounded(),
    st.just({"type": "boolean"}),
    st.just({}),
    st.lists(scalars, min_size=1, max_size=4).map(lambda some: {"enum": some}),
    scalars.map(lambda one: {"const": one}),
    st.lists(st.sampled_from(["string", "integer", "number", "boolean", "null"]), min_size=1, max_size=3, unique=True).map(
        lambda some: {"type": some}
    ),
    st.just({"$ref": "#/$defs/node"}),
    st.just({"$ref": "#/$defs/tree"}),
)
nested: SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner), arrays(inner), st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some, "description": "either"})
    ),
    max_leaves=6,
)
NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value"],
    "additionalProperties": False,
}
TREE = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}
schemas: SearchStrategy[dict[str, Any]] = objects(nested).map(lambda schema: {**schema, "$defs": {"node": NODE, "tree": TREE}})


@st.composite
def valid(draw: DrawFn, schema: Any, root: dict[str, Any], depth: int = 0) -> Any:
    """A value that most likely satisfies ``schema``."""
    if schema is True or schema == {}:
        return draw(scalars)
    if "$ref" in schema:
        return draw(valid(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, depth + 1))
    if "anyOf" in schema:
        return draw(valid(draw(st.sampled_from(schema["anyOf"][:: 1 if depth < 6 else -1])), root, depth + 1))
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "const" in schema:
        return schema["const"]
    kind = schema["type"] if isinstance(schema["type"], str) else draw(st.sampled_from(schema["type"]))
    if kind == "object":
        return draw(_object(schema, root, depth))
    if kind == "array":
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", least + 2), least + (2 if depth < 4 else 0))
        first = schema.get("prefixItems", [])
        count = draw(st.integers(least, most))
        return [draw(valid(first[n] if n < len(first) else schema["items"], root, depth + 1)) for n in range(count)]
    if kind == "string":
        least, most = schema.get("minLength", 0), schema.get("maxLength", 99)
        return draw(texts.filter(lambda text: least <= len(text) <= most))
    if kind in ("integer", "number"):
        low = max(schema.get("minimum", -(10**6)), schema.get("exclusiveMinimum", -(10**6)))
        high = min(schema.get("maximum", 10**6), schema.get("exclusiveMaximum", 10**6))
        whole = st.integers(low, high)
        part = st.integers(1, 999).map(lambda thousandths: thousandths / 1000)
        return draw(whole if kind == "integer" else st.one_of(whole, st.builds(lambda a, b: a + b, whole, part)))
    return draw(st.booleans()) if kind == "boolean" else None


@st.composite
def _object(draw: DrawFn, schema: dict[str, Any], root: dict[str, Any], depth: int) -> dict[str, Any]:
    found = {}
    for key, inner in schema["properties"].items():
        if key in schema["required"] or (depth < 4 and draw(st.booleans())):
            found[key] = draw(valid(inner, root, depth + 1))
    if schema["additionalProperties"] is not False and depth < 3:
        for key in draw(st.lists(st.sampled_from(["c", "cit", "cityx", "other", "zz"]), max_size=2, unique=True)):
            found[key] = draw(valid(schema["additionalProperties"], root, depth + 1))
    return found


@st.composite
def mutated(draw: DrawFn, value: dict[str, Any]) -> dict[str, Any]:
    """``value`` with one place of it changed: another value, or a key or item more or less."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = [([value], 0)]
    for holder, key in places:
        inner = holder[key]
        if isinstance(inner, dict | list):
            places += [(inner, each) for each in (inner if isinstance(inner, dict) else range(len(inner)))]
    holder, key = draw(st.sampled_from(places))
    inner, kind = holder[key], draw(st.integers(0, 3))
    if kind == 0 and holder is not places[0][0]:
        del holder[key]
    elif kind == 1 and isinstance(inner, dict):
        inner[draw(st.sampled_from([*NAMES, "zz"]))] = draw(values)
    elif kind == 1 and isinstance(inner, list):
        inner.append(draw(values))
    elif holder is not places[0][0]:
        holder[key] = draw(values)
    changed: dict[str, Any] = places[0][0][0]
    return changed


def twins(value: Any) -> bool:
    """Whether an object in ``value`` has keys that differ by case alone, which the chat template leaves in the order in which they came:
    the grammar of an object with many keys has them in the schema's."""
    if isinstance(value, list):
        return any(twins(one) for one in value)
    if not isinstance(value, dict):
        return False
    return len({key.lower() for key in value}) < len(value) or any(twins(one) for one in value.values())


def cut_in_a_character(schema: Any, value: Any) -> bool:
    """Whether xgrammar may count a character that is several tokens beyond a ``maxLength`` where it is the last that fits."""
    return "maxLength" in json.dumps(schema) and not json.dumps(value, ensure_ascii=False).isascii()
