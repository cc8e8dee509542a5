"""Single JSON schemas of tools: what the grammar of their calls accepts, what it refuses, and what it reports as not enforced."""

from typing import Any

import pytest

from sglang_gemma4.serving.tool_grammar import LIMIT, ToolGrammar, ToolGrammarError, ToolSchema
from tests.harness.inputs.call_grammars import allows, markers

SCHEMAS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "allOf": (
        {
            "allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"$ref": "#/$defs/b"}],
            "$defs": {"b": {"properties": {"b": True}}},
        },
        [{"a": 1}, {"a": 1, "b": "x"}],
        [{"b": 1}, {"a": "x"}, {"a": 1, "c": 1}],
    ),
    "one of several shapes": (
        {
            "type": "object",
            "properties": {
                "by": {"enum": ["name", "place"]},
                "name": {"type": "string"},
                "lat": {"type": "number"},
                "lon": {"type": "number"},
            },
            "required": ["by"],
            "oneOf": [
                {"properties": {"by": {"const": "name"}}, "required": ["name"]},
                {"properties": {"by": {"const": "place"}}, "required": ["lat", "lon"]},
            ],
        },
        [{"by": "name", "name": "Rome"}, {"by": "place", "lat": 1, "lon": 2.5}],
        [{"by": "name"}, {"by": "place", "lat": 1}, {"name": "Rome"}],
    ),
    "nothing else": ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    "anything": ({"type": "object"}, [{}, {"a": {"b": [1, None]}}], []),
    "additionalProperties": (
        {"type": "object", "properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
        [{"ab": 1}, {"ab": 1, "a": None, "abc": None, "b": None}],
        [{"ab": None}, {"a": 1}],
    ),
    "tuple": (
        {"properties": {"a": {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 1}}},
        [{"a": ["x"]}, {"a": ["x", 1]}],
        [{"a": []}, {"a": [1]}, {"a": ["x", 1, 2]}],
    ),
    "null stays null": ({"properties": {"a": {"type": ["string", "null"]}}}, [{"a": None}, {"a": "null"}], [{"a": 0}]),
    "constants": (
        {"properties": {"a": {"const": {"b": [1, "x"], "A": None}}, "c": {"const": ""}}},
        [{"a": {"b": [1, "x"], "A": None}, "c": ""}],
        [{"a": {"b": [1, "x"]}}, {"c": " "}],
    ),
    "types of an enum": ({"properties": {"a": {"type": "string", "enum": ["x", 1, None]}}}, [{"a": "x"}], [{"a": 1}, {"a": None}]),
    "a pattern": (
        {"properties": {"a": {"type": "string", "pattern": "^[A-Z]{2}(-[0-9]+)?$"}}},
        [{"a": "AB"}, {"a": "AB-12"}],
        [{"a": "ab"}, {"a": ""}],
    ),
    "a pattern of characters beyond ASCII": (
        {"properties": {"a": {"type": "string", "pattern": "^[가-힣]{1,5}$"}}},
        [{"a": "서울"}, {"a": "부산시"}, {"a": "힣"}],
        [{"a": "Seoul"}, {"a": ""}, {"a": "서é"}],
    ),
    "a pattern that may match anywhere": (
        {"properties": {"a": {"type": "string", "pattern": "b"}}},
        [{"a": "abc"}, {"a": "x"}],
        [{"a": 1}],
    ),
    "a pattern with text around the delimiter": (
        {"properties": {"a": {"type": "string", "pattern": "^[^@]+$"}}},
        [{"a": "x"}, {"a": "@"}],
        [],
    ),
    "strings count characters": (
        {"properties": {"a": {"type": "string", "minLength": 2, "maxLength": 3}}},
        [{"a": "éé"}, {"a": "日本x"}],
        [{"a": "é"}, {"a": "日本語!"}],
    ),
    "recursion": (
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": []}}},
        [{}, {"n": {"n": {"n": {}}}}],
        [{"n": None}],
    ),
    "not, if, uniqueItems and the like allow more": (
        {"properties": {"a": {"type": "array", "uniqueItems": True, "not": {"maxItems": 1}}}, "if": True, "then": False},
        [{"a": [1, 1]}, {"a": []}],
        [{"a": {}}],
    ),
    "required of what is not declared": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
        [{"b": "x"}],
        [{"a": 1}],
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    schema, right, wrong = SCHEMAS[name]
    accepts = allows(schema)
    for arguments in right:
        assert accepts(arguments), arguments
    for arguments in wrong:
        assert not accepts(arguments), arguments


REFUSED: dict[str, tuple[Any, str]] = {
    "a reference out": (
        {"properties": {"a": {"$ref": "https://example.org/a.json"}}},
        r"\$ref 'https://example.org/a.json' cannot be followed",
    ),
    "a reference to nothing": ({"properties": {"a": {"$ref": "#/$defs/a"}}}, r"\$ref '#/\$defs/a' leads nowhere"),
    "no value": ({"properties": {"a": {"enum": []}}, "required": ["a"]}, "no arguments satisfy"),
    "no object": ({"type": "string"}, "no arguments satisfy"),
    "false": (False, "no arguments satisfy"),
    "no end": ({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}}, "none that end"),
    "a circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "no arguments satisfy"),
    "too large": (
        {"properties": {f"p{n}": {"enum": [{"x": [n, m]} for m in range(99)]} for n in range(99)}},
        f"more than {LIMIT} grammar rules",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_followed_is_refused(name: str) -> None:
    schema, message = REFUSED[name]
    with pytest.raises(ToolGrammarError, match=f"tool 'f'.*{message}"):
        ToolGrammar([ToolSchema("f", schema)], markers())


def test_a_schema_nested_too_deeply_is_refused() -> None:
    schema: Any = {"type": "string"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ToolGrammarError, match=r"tool 'f'.*nested too deeply"):
        ToolGrammar([ToolSchema("f", {"properties": {"a": schema}})], markers())


def test_a_name_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ToolGrammarError, match=r"tool 'a\{b'"):
        ToolGrammar([ToolSchema("a{b", None)], markers())


def test_what_is_not_enforced_is_named() -> None:
    schema, _, _ = SCHEMAS["not, if, uniqueItems and the like allow more"]
    grammar = ToolGrammar([ToolSchema("f", schema), ToolSchema("g", {"properties": {"a": {"type": "string", "pattern": "b"}}})], markers())
    assert grammar.widened == {"not": "f", "if": "f", "uniqueItems": "f", "pattern": "g"}
    assert not ToolGrammar([ToolSchema("now", None)], markers()).widened
