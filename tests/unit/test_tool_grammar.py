"""The grammar of tool calls against JSON schema: what the chat template renders is accepted where the schema allows it, and only there."""

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import xgrammar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_gemma4.serving.tool_grammar import LIMIT, MARKERS, Markers, Thought, ToolGrammar, ToolGrammarError, ToolSchema
from sglang_gemma4.tiny import chat_format, checkpoints
from sglang_gemma4.tiny.dialogues import Dialogue
from tests.unit import tool_schemas

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "100"))
"""Generated schemas of each property; each comes with several values."""
COMPILED_WITHIN = 10.0
"""Seconds that a generated schema's grammar may take to be built and compiled, with the tiny models' vocabulary."""
USUAL = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoints.SHIPPED / "tiny-31b")


@cache
def compiler() -> Any:
    stops = json.loads((checkpoints.SHIPPED / "tiny-31b" / "generation_config.json").read_text())["eos_token_id"]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer(), vocab_size=len(tokenizer()), stop_token_ids=stops)
    return xgrammar.GrammarCompiler(info, cache_enabled=False)


@cache
def markers() -> Markers:
    ids = {marker: tokenizer().convert_tokens_to_ids(marker) for marker in MARKERS}
    return Markers.of(ids.get)


def answers(tools: Sequence[ToolSchema], parallel: bool = True, thought: Thought = "none") -> Callable[[str], bool]:
    """Whether an answer to a request that must call one of ``tools`` is allowed, and complete."""
    compile_grammar, tokens = compiler().compile_grammar, markers()
    began = time.perf_counter()
    grammar = compile_grammar(ToolGrammar(tools, tokens).required(parallel, thought))
    assert time.perf_counter() - began < COMPILED_WITHIN

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar)
        return all(matcher.accept_token(token) for token in tokenizer().encode(text, add_special_tokens=False)) and matcher.is_completed()

    return accepts


def rendered(*calls: tuple[str, Any], thought: str = "") -> str:
    """Calls as the chat template writes them into the model's turn."""
    message = {
        "role": "assistant",
        "content": "",
        "reasoning": thought,
        "tool_calls": [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls],
    }
    return chat_format.render(Dialogue([{"role": "user", "content": "?"}, message])).split(chat_format.MODEL_START)[-1]


def allows(schema: Any) -> Callable[[Any], bool]:
    """Whether the arguments of a tool with these parameters are accepted."""
    accepts = answers([ToolSchema("f", schema)])
    return lambda arguments: accepts(rendered(("f", arguments)))


@USUAL
@given(st.data())
def test_a_call_is_accepted_where_its_schema_allows_it_and_only_there(data: st.DataObject) -> None:
    schema = data.draw(tool_schemas.schemas)
    validator = jsonschema.Draft202012Validator(schema)
    try:
        accepts = allows(schema)
    except ToolGrammarError:
        for _ in range(3):
            assert not validator.is_valid(data.draw(tool_schemas.valid(schema, schema))), "there is a value after all"
        return
    for _ in range(4):
        arguments = data.draw(tool_schemas.valid(schema, schema))
        other = data.draw(tool_schemas.mutated(arguments))
        for one in (arguments, other):
            if accepts(one):
                assert validator.is_valid(one), rendered(("f", one))
            elif not tool_schemas.cut_in_a_character(schema, one):
                assert not validator.is_valid(one), rendered(("f", one))


CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TWO = [ToolSchema("weather", CITY), ToolSchema("now", None)]


def test_calls_one_after_the_other_or_one_alone() -> None:
    one, two = rendered(("weather", {"city": "Rome"})), rendered(("now", {}), ("weather", {"city": "Oslo", "days": 3}))
    accepts, alone = answers(TWO), answers(TWO, parallel=False)
    assert accepts(one)
    assert accepts(two)
    assert alone(one)
    assert not alone(two)
    for wrong in (
        "",
        "hello",
        one + "hello",
        "hello" + one,
        one[:-1],
        one.replace("weather", "whether"),
        '[{"name": "now"}]',
        one + "\n" + one,
    ):
        assert not accepts(wrong), wrong


@pytest.mark.parametrize("thought", ["none", "may", "open"])
def test_a_thought_before_the_calls(thought: Thought) -> None:
    call = rendered(("now", {}))
    accepts = answers(TWO, thought=thought)
    thinks = rendered(("now", {}), thought='Let me see: {<|"|>}')
    assert accepts(call) == (thought != "open")
    assert accepts(thinks) == (thought == "may")
    assert accepts(thinks.removeprefix("<|channel>thought\n")) == (thought == "open")
    for wrong in (
        "<|channel>thought\nhm",
        "<|channel>thought\nhm" + call,
        "<|channel>answer\nhm<channel|>" + call,
        "hm<channel|><channel|>" + call,
    ):
        assert not accepts(wrong), wrong


def test_the_markers_are_the_models_own_tokens() -> None:
    """Spelled in other tokens they would read the same and not be what the model was trained on."""
    grammar = compiler().compile_grammar(ToolGrammar(TWO, markers()).required(True, "none"))
    matcher = xgrammar.GrammarMatcher(grammar)
    assert not matcher.accept_token(tokenizer().convert_tokens_to_ids("<0x3C>"))
    for token in tokenizer().encode("<|tool_call>call:weather{city:", add_special_tokens=False):
        assert matcher.accept_token(token)
    assert not matcher.accept_token(tokenizer().convert_tokens_to_ids("<0x3C>"))
    assert matcher.accept_token(tokenizer().convert_tokens_to_ids('<|"|>'))


def test_without_a_tokenizer_markers_are_text() -> None:
    matcher = xgrammar.GrammarMatcher(compiler().compile_grammar(ToolGrammar(TWO, Markers.of()).required(True, "may")))
    assert matcher.accept_string(rendered(("weather", {"city": "Rome"}), thought="hm"))
    assert matcher.is_completed()


def test_keys_in_any_order_where_there_are_few() -> None:
    accepts = answers([ToolSchema("f", {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}, "required": ["a"]})])
    for inside, right in (
        ("a:1,b:2", 1),
        ("b:2,a:1", 1),
        ("c:1,b:2,a:3", 1),
        ("b:2", 0),
        ("a:1,a:2", 0),
        ("a:1,", 0),
        (",a:1", 0),
        ("", 0),
    ):
        assert accepts(f"<|tool_call>call:f{{{inside}}}<tool_call|>") == bool(right), inside


def test_many_keys_in_the_templates_order() -> None:
    accepts = answers([ToolSchema("f", {"type": "object", "properties": {key: {"type": "integer"} for key in "DcbAe"}, "required": ["c"]})])
    for inside, right in (("A:1,b:2,c:3,D:4,e:5", 1), ("c:1", 1), ("b:2,c:1", 1), ("c:1,b:2", 0), ("A:1", 0), ("A:1,e:1", 0)):
        assert accepts(f"<|tool_call>call:f{{{inside}}}<tool_call|>") == bool(right), inside


def test_a_key_that_cannot_stand_bare_is_a_string() -> None:
    """The package's parser reads it; bare, its colon would end it."""
    accepts = answers([ToolSchema("f", {"type": "object", "properties": {"xml:lang": {"type": "string"}}, "required": ["xml:lang"]})])
    assert accepts('<|tool_call>call:f{<|"|>xml:lang<|"|>:<|"|>de<|"|>}<tool_call|>')
    assert not accepts('<|tool_call>call:f{xml:lang:<|"|>de<|"|>}<tool_call|>')


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
    assert not ToolGrammar(TWO, markers()).widened
