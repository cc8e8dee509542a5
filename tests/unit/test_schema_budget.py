"""What a tool's JSON schema costs: counted calls, which are the same on every machine, for schemas made to be expensive."""

import contextlib
import json
import logging
import sys
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]

from sglang_gemma4.serving import schema_check
from sglang_gemma4.serving.json_values import canonical
from sglang_gemma4.serving.schema_shapes import Shapes
from sglang_gemma4.serving.schema_types import ToolSchemas, element, member
from sglang_gemma4.serving.tool_grammar import Markers, ToolGrammar, ToolGrammarError, ToolSchema
from sglang_gemma4.serving.work_budget import PARSER, Work
from tests.harness.inputs.nasty_schemas import NASTY, combined
from tests.harness.inputs.tool_schemas import values

SIZE = 100_000
CALLS = 1_500_000
"""Calls of Python and C functions that a grammar may take: about 0.3 s; an answer may take a fifth of them, on the event loop."""
ORDER = Random(56).sample(sorted(NASTY), len(NASTY))


def calls_of(work: Callable[[], object]) -> int:
    """The calls of functions that ``work`` makes."""
    count = 0

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def build(schema: Any) -> None:
    """The grammar of a tool's calls, or the client's error."""
    with contextlib.suppress(ToolGrammarError):
        ToolGrammar([ToolSchema("f", schema)], Markers.of()).inside_call()


def look_everywhere(schema: Any) -> None:
    """As an answer does whose values are everywhere that the schema speaks of."""
    todo = [ToolSchemas({"f": schema})["f"]]
    for _ in range(300):
        if todo:
            one = todo.pop()
            one.types()
            todo += [member(one, key) for key in ("a", "p1", "k1", "inner", "l", "zz")] + [element(one, index) for index in (0, 1, 10**6)]


@pytest.mark.parametrize("name", NASTY)
def test_a_schema_of_any_shape_costs_no_more_than_its_budget(name: str) -> None:
    schema = NASTY[name](SIZE)
    assert calls_of(lambda: build(schema)) < CALLS
    assert calls_of(lambda: look_everywhere(schema)) < CALLS // 5
    assert calls_of(lambda: schema_check.fault(schema)) < CALLS // 5


@pytest.mark.parametrize("names", list(pairwise(ORDER))[::3], ids=" in ".join)
def test_one_in_another(names: tuple[str, str]) -> None:
    schema = combined(*names, SIZE)
    assert calls_of(lambda: build(schema)) < CALLS
    assert calls_of(lambda: look_everywhere(schema)) < CALLS // 5


def test_many_tools_share_one_budget() -> None:
    schema = NASTY["wide allOf"](5_000)
    tools = [ToolSchema(f"f{n}", schema) for n in range(200)]

    def work() -> None:
        with pytest.raises(ToolGrammarError, match=r"need more than \d+ (steps of work|grammar rules)"):
            ToolGrammar(tools, Markers.of())

    assert calls_of(work) < CALLS


def test_a_large_schema_as_clients_have_them_is_enforced() -> None:
    """Forty tools of twelve parameters, some of them nested, with enums and references."""
    place = {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F", None]}}, "required": ["city"]}
    kinds = [{"type": "string"}, {"type": "integer", "minimum": 0, "maximum": 500}, {"$ref": "#/$defs/place"}, {"enum": list(range(50))}]
    kinds += [{"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 9}, {"anyOf": [{"type": "number"}, {"type": "null"}]}]
    schema = {"$defs": {"place": place}, "type": "object", "properties": {f"p{n}": kinds[n % 6] for n in range(12)}, "required": ["p0"]}
    grammar = ToolGrammar([ToolSchema(f"tool_{n}", schema) for n in range(40)], Markers.of())
    assert not grammar.widened


def test_an_answer_over_budget_is_read_without_schemas_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tools = ToolSchemas({"f": NASTY["enum by references"](SIZE), "g": {"properties": {"a": {"type": "string"}}}})
    assert member(tools["g"], "a").types() == frozenset({"string"})
    assert member(tools["f"], "a").types() is None
    with caplog.at_level(logging.WARNING):
        tools.say()
    assert f"need more than {PARSER} steps" in caplog.text


def test_a_long_answer_costs_no_more_than_its_schema() -> None:
    schema = {"properties": {"a": {"type": "array", "items": {"properties": {"b": {"type": ["string", "null"]}}}}}}
    tools, left = ToolSchemas({"f": schema}, budget := Work(PARSER)), []
    for index in range(10_000):
        assert member(element(member(tools["f"], "a"), index), "b").types() == frozenset({"string", "null"})
        left.append(budget.left)
    assert left[0] == left[-1] > 0


@settings(max_examples=300, deadline=None)
@given(values, values)
def test_values_are_equal_as_json_schema_has_it(one: Any, other: Any) -> None:
    for a, b in ((one, other), (one, json.loads(json.dumps(one))), ([one, 1, True], [one, 1.0, True]), ({"a": 1}, {"a": True})):
        assert (canonical(a, Work()) == canonical(b, Work())) == Draft202012Validator({"const": a}).is_valid(b)


def test_common_values_of_enums() -> None:
    schema = {"allOf": [{"enum": [1, True, "1", [1, {"a": 2}], None]}, {"enum": [[1.0, {"a": 2.0}], 1.0, "1", False]}]}
    assert Shapes(schema).of(schema) == [{"enum": [1, "1", [1, {"a": 2}]]}]


_WORDS = st.sampled_from([*schema_check._CHECKS, *schema_check._OF_ONE, *schema_check._OF_SOME, *schema_check._OF_NAMED, "default", "x"])
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5), st.sampled_from([1.0, 2.5, -0.5, "string", "a", "a#b", "a#", "", "[", "1a"])
)
_ANY = st.recursive(
    _SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_WORDS, inner, max_size=3)), max_leaves=12
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(_WORDS, _ANY, max_size=3))
def test_what_is_a_schema_is_what_jsonschema_says(schema: Any) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        assert schema_check.fault(schema) is not None
    else:
        assert schema_check.fault(schema) is None
