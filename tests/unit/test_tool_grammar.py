"""The grammar of tool calls against JSON schema: what the chat template renders is accepted where the schema allows it, and only there."""

import os

import jsonschema  # type: ignore[import-untyped]
import pytest
import xgrammar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_gemma4.serving.argument_grammar import ANY_ORDER
from sglang_gemma4.serving.tool_grammar import Markers, Thought, ToolGrammar, ToolGrammarError, ToolSchema
from tests.harness.inputs import tool_schemas
from tests.harness.inputs.call_grammars import allows, answers, compiler, markers, rendered, tokenizer

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "100"))
"""Generated schemas of each property; each comes with several values."""
USUAL = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


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
            elif not tool_schemas.cut_in_a_character(schema, one) and not tool_schemas.twins(one):
                assert not validator.is_valid(one), rendered(("f", one))


def test_names_that_differ_by_case_come_in_the_schema_s_order() -> None:
    """Where there are too many for any order."""
    names = ["city", "City", *(f"other_{number}" for number in range(ANY_ORDER))]
    accepts = allows({"type": "object", "properties": {name: {"type": "string"} for name in names}})
    assert accepts({"city": "Rome", "City": "Oslo"})
    assert not accepts({"City": "Oslo", "city": "Rome"})


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
