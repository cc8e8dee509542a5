"""JSON schemas whose answers cannot end are refused with the place, and recursive ones that can end are not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from sglang_gemma4.serving import grammar_trial_process
from sglang_gemma4.serving.printed_grammar import without_end
from sglang_gemma4.serving.schema_ends import reason_against, reason_against_tag
from sglang_gemma4.serving.tool_grammar import Markers, ToolGrammar, ToolGrammarError, ToolSchema
from tests.harness.inputs.tool_schemas import schemas

Schema = dict[str, Any]
LOOP = {"type": "object", "properties": {"again": {"$ref": "#/$defs/loop"}}, "required": ["again"]}


def record(*required: str, **properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


ENDLESS: list[tuple[Any, str]] = [
    ({"$ref": "#"}, "#: no value"),
    (False, "#: no value"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "#: no value"),
    (record("a", a={"$ref": "#"}), "#/properties/a: its values contain another"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#/items: its values contain"),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2}, "#/prefixItems/1: its values"),
    ({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1}, "#/additionalProperties: its values"),
    (record("a", a={"$ref": "#/$defs/b"}) | {"$defs": {"b": record("c", c={"$ref": "#"})}}, "#/properties/a: its values"),
    (record("a", a={"anyOf": [{"$ref": "#"}, record("b", b={"$ref": "#"})]}), "#/properties/a: its values"),
    (record(a={"$ref": "#/$defs/loop"}) | {"$defs": {"loop": LOOP}}, "#/$defs/loop/properties/again: its values"),  # optional, but begun
    ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/loop"}], "$defs": {"loop": LOOP}}, "#/$defs/loop/properties/again: its values"),
    (record("a/b~", **{"a/b~": {"enum": []}}), "#/properties/a~1b~0: no value"),
    (record("x", y={}, x=False), "#/properties/x: no value"),
    (record("x", y={}) | {"additionalProperties": False}, "#/additionalProperties: no value"),
    (record("x", x={"const": 1, "enum": [2]}), "#/properties/x: no value"),
    (record("x", x={"type": "string", "enum": [1]}), "#/properties/x: no value"),
    (record("x", x={"enum": [1, "abc"], "minimum": 2, "maxLength": 2}), "#/properties/x: no value"),
    (record("x", x={"allOf": [{"type": "string"}, {"type": "integer"}]}), "#/properties/x: no value"),
    (record("x", x={"type": "array", "items": {"enum": []}, "minItems": 2}), "#/properties/x/items: no value"),
    (record("x", x={"type": "array", "minItems": 3, "maxItems": 2}), "#/properties/x: no value"),
    (record("x", x={"type": "string", "minLength": 3, "maxLength": 2}), "#/properties/x: no value"),
    (record("x", x={"type": "number", "exclusiveMinimum": 1, "maximum": 1}), "#/properties/x: no value"),
    (record("x", x={"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}), "#/properties/x: no value"),
    (record("x", x={"type": "integer", "minimum": 5, "maximum": 6, "multipleOf": 7}), "#/properties/x: no value"),
    (record("x", x={"type": "object", "maxProperties": 0, "required": ["y"]}), "#/properties/x: no value"),
    (record("x", x=record(a={}) | {"additionalProperties": False, "minProperties": 2}), "#/properties/x: no value"),
]
ENDING: list[Any] = [
    True,
    {},
    record(a={"$ref": "#"}),
    record("value", "next", value={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    record("next", next={"type": ["object", "null"], "properties": {"n": {"$ref": "#"}}, "required": ["n"]}),
    {"type": "array", "items": {"$ref": "#"}},
    record("children", children={"type": "array", "items": {"$ref": "#"}}),
    {"type": "object", "additionalProperties": {"$ref": "#"}},
    {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
    record(a={"type": "integer"}) | {"$defs": {"loop": LOOP}},  # which nothing uses
    record("a", a={"enum": [0, 1]}, b=False),
    {"type": "object", "required": ["a"], "anyOf": [{"type": "null"}, record("b", b={})]},
    {"type": "number", "minimum": 1, "maximum": 1},
    {"type": "integer", "minimum": 5, "multipleOf": 7, "maximum": 7},
    {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
    {"$ref": "https://example.org/a.json"},
    {"type": 7},
]


@pytest.mark.parametrize(("schema", "said"), ENDLESS, ids=str)
def test_what_cannot_end(schema: Any, said: str) -> None:
    assert (reason_against(schema) or "none").startswith(said)
    for tag in ({"structures": [{"begin": "a", "schema": schema, "end": "b"}]}, {"format": {"type": "json_schema", "json_schema": schema}}):
        assert (reason_against_tag(tag) or "none").startswith(said)


@pytest.mark.parametrize("schema", ENDING, ids=str)
def test_what_can_end(schema: Any) -> None:
    assert reason_against(schema) is None


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance", "outlines"])
def test_each_backend_and_a_conversion_refuse_it(backend: str) -> None:
    for kind in ("json", "convert"):
        found = grammar_trial_process.attempt({"backend": backend, "kind": kind, "text": json.dumps(ENDLESS[3][0])})
        assert found["refused"].startswith("is refused: #/properties/a: its values contain")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "old"], "additionalProperties": False},
        record("a", a={"type": "string", "enum": [1, 2]}),
        record("a", a={"type": "string", "const": 1}),
    ],
    ids=str,
)
def test_a_contradiction_whose_grammar_ends_is_served(schema: Schema) -> None:
    assert reason_against(schema, contradictions=False) is None
    assert grammar_trial_process.attempt({"backend": "xgrammar", "kind": "json", "text": json.dumps(schema)}) == {}


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance", "outlines"])
def test_a_contradiction_whose_grammar_never_ends_is_refused(backend: str) -> None:
    for kind in ("json", "convert"):
        found = grammar_trial_process.attempt({"backend": backend, "kind": kind, "text": '{"$ref": "#"}'})
        assert found["refused"] == "is refused: #: no value satisfies it"


def test_a_tool_is_refused_with_the_place() -> None:
    with pytest.raises(ToolGrammarError, match=r"tool 'f': .* that end: #/properties/a: its values contain"):
        ToolGrammar([ToolSchema("f", record("a", a={"$ref": "#"}))], Markers.of())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(schemas)
def test_schemas_of_trees_and_lists_are_served(schema: Schema) -> None:
    assert reason_against(schema) is None


NAMES = ("a", "b", "c")


@st.composite
def parts(draw: DrawFn, depth: int = 0) -> Schema:
    """Objects, arrays, alternatives, leaves and references to the definitions."""
    kind = draw(st.integers(0, 5 if depth < 2 else 1))
    if kind == 0:
        return {"type": draw(st.sampled_from(["null", "integer"]))}
    if kind == 1:
        return {"$ref": f"#/$defs/{draw(st.sampled_from(NAMES))}"}
    if kind == 2:
        return {"anyOf": draw(st.lists(parts(depth + 1), min_size=1, max_size=2))}
    return draw(containers(depth + 1))


@st.composite
def containers(draw: DrawFn, depth: int = 0) -> Schema:
    if draw(st.booleans()):
        return {"type": "array", "items": draw(parts(depth + 1)), "minItems": draw(st.integers(0, 1))}
    properties = draw(st.dictionaries(st.sampled_from("xy"), parts(depth + 1), min_size=1, max_size=2))
    return record(*draw(st.lists(st.sampled_from(sorted(properties)), unique=True)), **properties)


whole = st.tuples(parts(), *[containers() for _ in NAMES]).map(lambda made: {**made[0], "$defs": dict(zip(NAMES, made[1:], strict=True))})


def inner(schema: Schema, definitions: Schema) -> Iterator[Schema]:
    yield from ([definitions[schema["$ref"][-1]]] if "$ref" in schema else [])
    yield from schema.get("anyOf", ())
    yield from schema.get("properties", {}).values()
    yield from ([schema["items"]] if "items" in schema else [])


def ends(schema: Schema, definitions: Schema, levels: int) -> bool:
    """Whether a value of ``schema`` exists that follows no more than ``levels`` references one in another."""
    if "$ref" in schema:
        return levels > 0 and ends(definitions[schema["$ref"][-1]], definitions, levels - 1)
    if "anyOf" in schema:
        return any(ends(one, definitions, levels) for one in schema["anyOf"])
    if "items" in schema:
        return not schema["minItems"] or ends(schema["items"], definitions, levels)
    return all(ends(schema["properties"][key], definitions, levels) for key in schema.get("required", ()))


def endless(schema: Schema) -> bool:
    """Whether an answer may come to a part that has no end."""
    reached: list[Schema] = []
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not any(one is other for other in reached):
            reached.append(one)
            waiting += inner(one, schema["$defs"])
    return not all(ends(one, schema["$defs"], len(NAMES) + 1) for one in reached)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(whole)
def test_refused_if_and_only_if_an_answer_may_come_to_what_has_no_end(schema: Schema) -> None:
    assert (reason_against(schema) is not None) == endless(schema)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(whole)
def test_the_same_of_what_xgrammar_makes_of_it(schema: Schema) -> None:
    printed = str(xgrammar.Grammar.from_json_schema(json.dumps(schema)))
    assert (without_end(printed) is not None) == endless(schema)
