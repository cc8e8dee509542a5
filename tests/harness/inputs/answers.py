"""Answers for tests of the parser: generated calls with their schemas, texts of markers in any order, and long ones made to be slow."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sglang_gemma4 import tiny
from sglang_gemma4.serving.answer import AnswerReader
from sglang_gemma4.serving.answer_parts import Part

STRING = '<|"|>'
PIECES = [
    *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", STRING, "thought\n", "thought"),
    *("call:weather{", "call:dance{", "call:time<", "call:", "call", "x:", "a", "1", "-0.5e3", "007", "null", "true"),
    *("call:weather(", " call:time(a=", "\ncall:weather{x:", "x=", ",b:", "'", "=", "\\'", "True"),
    *("{", "}", "[", "]", "(", ")", ":", ",", " ", "\n", '"', "\\", "\\u00e9", "<", "<|", "|>"),
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=30).map("".join)
"""Anything a model can write, markers above all."""

LONGEST = "strings without an end and text"
REPEATED = {
    "end markers": "<tool_call|>",
    "start markers": "<|tool_call>",
    "thoughts": "<|channel>",
    "half markers": "<",
    "call, open arrays": "a:[",
    "call, open objects": "{a:",
    "call, closed arrays": "]",
    "call, a string of half delimiters": STRING + "<|" * 100,
    "call, bare text": "a",
    "call, digits": "9",
    "call, backslashes in quotes": '"\\',
    "call, mixed brackets": "a:[{b:1]",
    "call, keys": "a,",
    "call, strings": STRING,
    "call, colons": ":",
    "call, commas": ",",
    "call, equals signs": "=",
    "call, words behind commas": "a:1,b",
    "call, apostrophes": "'a,",
    "call, single quotes": "a:'b'c",
    "call, strings that go on": f"a:{STRING}b{STRING}c",
    "call, strings without an end": f"a:{STRING}b,c:",
    "call, brackets in strings": f"a:{STRING}}}}}",
    "call, ends in strings": f"a:{STRING}b}}<tool_call|>{STRING},",
    "call, ends in strings that go on": f"a:{STRING}b}}<tool_call|>",
    "strings without an end": f"<|tool_call>call:weather{{a:{STRING}b}}<tool_call|>",
    LONGEST: f"<|tool_call>call:weather{{a:{STRING}b}}<tool_call|>{'c' * 2000}",
    "unmarked calls": " call:weather(a",
    "unmarked calls of long names": " call:" + "w" * 200,
}
"""What can be repeated in an answer; what follows "call" stands inside a call's arguments."""


def repeated(name: str, length: int) -> str:
    """A text of about so many characters, but of one part at least."""
    text = REPEATED[name]
    return ("<|tool_call>call:weather{" if name.startswith("call") else "") + text * max(1, length // len(text))


_NAMES = st.from_regex(r"[A-Za-z_$][A-Za-z0-9_.$-]{0,11}", fullmatch=True)
_STRINGS = st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda text: STRING not in text + "|>" and not text.endswith("<"))


def _typed(kind: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[dict[str, Any], Any]]:
    return values.map(lambda value: ({"type": kind}, value))


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def joined(members: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        schema = {"type": "object", "properties": {key: schema for key, (schema, _) in members.items()}}
        return schema, {key: value for key, (_, value) in members.items()}

    return st.dictionaries(_NAMES, inner, max_size=4).map(joined)


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def joined(items: list[Any]) -> tuple[dict[str, Any], Any]:
        return {"type": "array", "prefixItems": [schema for schema, _ in items]}, [value for _, value in items]

    return st.lists(inner, max_size=4).map(joined)


VALUES = st.recursive(
    st.one_of(
        _typed("string", _STRINGS),
        _typed("integer", st.integers()),
        _typed("number", st.floats(allow_nan=False, allow_infinity=False)),
        _typed("boolean", st.booleans()),
        _typed("null", st.none()),
        _STRINGS.map(lambda text: ({"enum": [text, "other"]}, text)),
        st.one_of(st.integers(), _STRINGS).map(lambda value: ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, value)),
        st.one_of(st.integers(), st.booleans(), st.none(), _STRINGS).map(lambda value: ({}, value)),
    ),
    lambda inner: st.one_of(_objects(inner), _arrays(inner)),
    max_leaves=10,
)
"""A JSON schema and a value that follows it."""

CALLS = st.lists(st.tuples(_NAMES, _objects(VALUES)), min_size=1, max_size=3, unique_by=lambda call: call[0])
"""Tools' names with the schema of their parameters and arguments that follow it."""


@functools.cache
def _template() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = (Path(tiny.__file__).parent / "chat_template.jinja").read_text()
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)


def rendered(calls: list[tuple[str, Any]], thought: str = "", content: str = "") -> str:
    """What the model would have written for these calls, by the chat template."""
    made = [{"id": str(n), "function": {"name": name, "arguments": value}} for n, (name, value) in enumerate(calls)]
    message = {"role": "assistant", "content": content, "reasoning": thought, "tool_calls": made}
    user = {"role": "user", "content": "?"}
    whole: str = _template().render(messages=[user, message], bos_token="")
    return whole.partition("<|turn>model\n")[2].removesuffix("<turn|>\n")


def parts(text: str, cuts: list[int] | None = None, **reading: Any) -> list[Part]:
    """What the reader makes of ``text``, cut at ``cuts``; neighbours of one kind joined."""
    reader = AnswerReader(**{"thoughts": True, "calls": True, "tools": {"weather": None, "time": None}, **reading})
    at = sorted({0, len(text), *(cuts or [])})
    found = [part for begin, end in itertools.pairwise(at) for part in reader.read(text[begin:end])] + reader.finish()
    joined: list[tuple[str, list[str]]] = []
    for part in found:
        if joined and joined[-1][0] == part.kind != "call":
            joined[-1][1].append(part.text)
        else:
            joined.append((part.kind, [part.text]))
    return [Part(kind, "".join(texts)) for kind, texts in joined]  # type: ignore[arg-type]


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: 1 is not 1.0, True is not 1."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
