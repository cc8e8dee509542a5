"""When SGLang's tool-call parser is given a grammar, and which."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.patches import load
from tests.harness.child import InChild

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}}


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.entrypoints.openai.serving_chat")


def constraint(choice: Any, backend: str = "xgrammar", parser: str = "gemma4", strict: bool = False, level: int = 0) -> tuple[Any, bool]:
    """What constrains an answer to a request with one tool, and whether it is read in the model's own format."""
    from sglang.srt import runtime_context
    from sglang.srt.entrypoints.openai.protocol import Function, Tool
    from sglang.srt.environ import envs
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    patches = [load("answer_parser"), load("tool_grammar")]
    patching.apply(patches, {"SGLANG_GEMMA4_STRICT": "1"})
    runtime_context.get_exec = lambda: SimpleNamespace(kernel=SimpleNamespace(grammar_backend=backend))
    with envs.SGLANG_TOOL_STRICT_LEVEL.override(level):
        asked = FunctionCallParser([Tool(function=Function(name="f", parameters=SCHEMA, strict=strict))], parser)
        return asked.get_structure_constraint(choice), asked.owns_tool_format()


def kind(*args: Any, **kwargs: Any) -> tuple[str, bool]:
    found, owns = constraint(*args, **kwargs)
    return (type(found[1]).__name__ if found else "none", owns)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"choice": "required"}, ["CallTag", True]),
        ({"choice": "auto"}, ["none", True]),
        ({"choice": "auto", "strict": True}, ["CallTag", True]),
        ({"choice": "auto", "level": 1}, ["CallTag", True]),
        ({"choice": "required", "backend": "llguidance"}, ["dict", False]),
        ({"choice": "required", "parser": "pythonic"}, ["dict", False]),
    ],
)
def test_what_constrains(asked: dict[str, Any], expected: Any, in_child: InChild) -> None:
    assert in_child(lambda: kind(**asked)) == expected


def test_what_is_not_enforced_is_said_once(in_child: InChild) -> None:
    def child() -> list[str]:
        for _ in range(2):
            constraint("required")
        return next(outcome.notes for outcome in patching.report() if outcome.name == "tool_grammar")

    assert in_child(child) == ["'not' in a tool's parameters is not enforced"]


@pytest.mark.parametrize(
    ("prompt", "thought"),
    [
        ("<|turn>user\n?<turn|>\n<|turn>model\n", "may"),
        ("<|turn>model\n<|channel>thought\n\n<channel|>", "may"),
        ("<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:f{value:1}<tool_response|><|channel>thought\n", "open"),
        ("<|turn>user\n<|channel><turn|>\n<|turn>model\n", "may"),
    ],
)
def test_whether_the_prompt_has_begun_a_thought(prompt: str, thought: str) -> None:
    from sglang_gemma4.serving.constrained_calls import thought_of

    assert thought_of(prompt) == thought
