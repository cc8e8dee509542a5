"""Blanks in a row in JSON answers, with SGLang's own backends and the tiny models' vocabulary."""

import importlib
import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sglang_gemma4 import patching
from sglang_gemma4.patches import load
from sglang_gemma4.serving import json_blanks
from sglang_gemma4.serving.blank_bound import BLANKS, BlankBound, Words
from tests.harness.child import InChild
from tests.harness.inputs.call_grammars import tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}, "c": {"type": "object"}},
    "required": ["a", "b"],
}
ANSWER = '{"a": 1, "b": ["x  y", "z"], "c": {"d": [true]}}'
OLD_TAG = {"structures": [{"begin": "call:", "schema": SCHEMA, "end": ";"}], "triggers": ["call:"]}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}}
XGRAMMAR: list[tuple[str, str, str]] = [
    ("json", json.dumps(SCHEMA), ""),
    ("json", '{"type": "object"}', ""),
    ("json", "{}", ""),
    ("json", "$$ANY$$", ""),
    ("structural_tag", json.dumps(TAG), ""),
    ("structural_tag", json.dumps(OLD_TAG), "call:"),
]
GUIDED = [XGRAMMAR[0], XGRAMMAR[1], XGRAMMAR[5]]
MANY = 60
"""Blanks that count as no bound."""


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    for backend in ("xgrammar", "llguidance", "outlines"):
        importlib.import_module(f"sglang.srt.constrained.{backend}_backend")
    words()


def backend(name: str, most: int | None = None, pattern: str | None = None, none: bool = False) -> Any:
    """SGLang's backend with the patch, as the operator's options make it."""
    from sglang.srt import runtime_context
    from sglang.srt.constrained.llguidance_backend import GuidanceBackend
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

    patching.apply([load("json_blanks")], {"SGLANG_GEMMA4_STRICT": "1"})
    runtime_context.get_serving = lambda: SimpleNamespace(constrained_json_max_whitespace_cnt=most)
    size = len(tokenizer())
    if name == "xgrammar":
        made: Any = XGrammarGrammarBackend(tokenizer(), size, tokenizer().eos_token_id and [1], not none, most)
    else:
        made = GuidanceBackend(tokenizer(), not none, pattern, size, {1})
    json_blanks.bound(made)
    return made


@cache
def words() -> list[str]:
    return [tokenizer().decode([n]) for n in range(len(tokenizer()))]


def blank_tokens(grammar: Any) -> list[tuple[int, int]]:
    """Of the tokens that may come next, those of blanks alone: how many blanks, and the token."""
    mask = grammar.allocate_vocab_mask(len(tokenizer()), 1, "cpu")
    grammar.fill_vocab_mask(mask, 0)
    bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")
    return [(len(word), n) for n, word in enumerate(words()) if word and not word.strip(" \n\r\t") and bits[n]]


def run(grammar: Any, begun: str, before: str = "") -> int:
    """The most blanks in a row that the answer may have where it has come to ``begun``, the longest tokens first."""
    grammar = grammar.copy()
    for token in tokenizer().encode(before + begun, add_special_tokens=False):
        grammar.accept_token(token)
    count = len(begun) - len(begun.rstrip())
    while count < MANY and (blanks := blank_tokens(grammar)):
        length, token = max(blanks)
        grammar.accept_token(token)
        count += length
    return count


def runs(made: Any, kind: str, text: str, before: str) -> tuple[list[int], list[int]]:
    """The most blanks at each place of an answer, outside and inside strings."""
    grammar = getattr(made, f"dispatch_{kind}")(text)
    places = [ANSWER[:length] for length in range(len(ANSWER)) if ANSWER[:length][-1:] in '{":,[ x']
    outside = {run(grammar, begun, before) for begun in places if not begun.count('"') % 2}
    inside = {run(grammar, begun, before) for begun in places if begun.count('"') % 2 and begun.endswith("x ")}
    return sorted(outside), sorted(inside)


def tried(name: str, cases: list[tuple[str, str, str]], options: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    made = backend(name, **options)
    return [runs(made, *case) for case in cases]


@pytest.mark.parametrize("options", [{}, {"most": 5}, {"none": True}, {"most": 1000}], ids=str)
def test_no_more_than_the_bound_outside_strings(options: dict[str, Any], in_child: InChild) -> None:
    bound = options.get("most", BLANKS)
    for outside, inside in in_child(lambda: tried("xgrammar", XGRAMMAR, options)):
        assert max(outside) <= bound
        assert max(outside) == min(bound, MANY) or "none" in options
        assert inside == [MANY]


def test_llguidance(in_child: InChild) -> None:
    expected: list[tuple[dict[str, Any], int]] = [({}, BLANKS), ({"most": 5}, 5), ({"pattern": "[ ]{0,3}"}, 3)]
    found = in_child(lambda: [tried("llguidance", GUIDED, options) for options, _ in expected])
    for (_, bound), cases in zip(expected, found, strict=True):
        assert [(max(outside), inside) for outside, inside in cases] == len(GUIDED) * [(bound, [MANY])]


def test_free_text_may_have_any(in_child: InChild) -> None:
    """Before a structural tag's JSON; and a literal of blanks, beyond the bound, can be written."""
    literal = {"type": "structural_tag", "format": {"type": "const_string", "value": "{" + " " * 40 + "}"}}

    def child() -> list[int]:
        made = backend("xgrammar")
        return [run(made.dispatch_structural_tag(json.dumps(tag)), begun) for tag, begun in ((OLD_TAG, "a "), (literal, "{"))]

    assert in_child(child) == [MANY, 40]


def test_what_is_rolled_back_does_not_count(in_child: InChild) -> None:
    def child() -> list[int]:
        grammar = backend("xgrammar").dispatch_json(json.dumps(SCHEMA))
        found = []
        for token in tokenizer().encode('{"a":', add_special_tokens=False):
            grammar.accept_token(token)
        for _ in range(2):
            for _ in range(BLANKS):
                grammar.accept_token(min(blank_tokens(grammar))[1])
            found.append(len(blank_tokens(grammar)))
            grammar.rollback(BLANKS)
            found.append(len(blank_tokens(grammar)))
        return found

    none, some, *again = in_child(child)
    assert (none, again) == (0, [none, some])
    assert some > 0


def test_other_servers_are_left_alone(in_child: InChild) -> None:
    def child() -> list[int]:
        made = backend("xgrammar")
        del made.gemma4_blanks
        return runs(made, *XGRAMMAR[0])[0]

    assert max(in_child(child)) == MANY


def test_a_vocabulary_without_the_signs_is_left_alone() -> None:
    mask: Words = np.full(1, -1, np.int32)
    BlankBound([b" ", b"  ", b"{"], 1, 1).apply(mask, [1, 1])
    assert mask.tolist() == [-1]


def test_the_bound_is_strict_for_any_tokens() -> None:
    """A token may not begin with more blanks than are left, whatever follows them."""
    vocabulary = [b"\n", b"q", b" ", b"   ", b'   "', b'"', b'", ', b"{"]
    no_blanks = {b'"', b'", ', b"{"}
    for written, kept in (
        ([7], {*vocabulary} - {b"q"}),
        ([7, 2], {b"\n", b" ", *no_blanks}),
        ([7, 3], no_blanks),
        ([6, 2, 2], no_blanks),
    ):
        mask = np.array([0b11111101], np.int32)  # all but q, which may not come between values
        BlankBound(vocabulary, 3, 1).apply(mask, written)
        assert {word for n, word in enumerate(vocabulary) if mask[0] >> n & 1} == kept
