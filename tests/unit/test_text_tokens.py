"""Special tokens are no text of a constrained answer's strings, with SGLang's own backend and the tiny models' vocabulary."""

import importlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sglang_gemma4 import patching
from sglang_gemma4.patches import load
from sglang_gemma4.serving import json_blanks
from sglang_gemma4.serving.constrained_calls import call_tag, json_tag
from sglang_gemma4.serving.markers import CALL_END, CALL_START, LABEL, STRING, THOUGHT_END, THOUGHT_START
from sglang_gemma4.serving.text_tokens import TextTokens, special_tokens
from tests.harness.child import InChild
from tests.harness.inputs.call_grammars import tokenizer

CALL = f"{CALL_START}call:f{{a:{STRING}"
TEXTS: dict[str, dict[str, Any]] = {
    "any": {"type": "string"},
    "short": {"type": "string", "maxLength": 90},
    "long": {"type": "string", "minLength": 2},
    "a pattern": {"type": "string", "pattern": "^[^~]*$"},
}
MARKED = "a}" + CALL_END + "b"
JSON: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"const": MARKED}}, "required": ["a", "b"]}
MARKERS = (CALL_START, CALL_END, THOUGHT_START, THOUGHT_END, STRING)


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.constrained.xgrammar_backend")
    importlib.import_module("sglang.srt.entrypoints.openai.protocol")


def backend(ours: bool = True) -> Any:
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

    patching.apply([load("json_blanks")], {"SGLANG_GEMMA4_STRICT": "1"})
    made = XGrammarGrammarBackend(tokenizer(), len(tokenizer()), [1, 11])
    if ours:
        json_blanks.keep_special_tokens_out(made, tokenizer())
    return made


def ids(text: str, spelled: bool = False) -> list[int]:
    """The tokens of a text; ``spelled``: of its characters, each alone."""
    pieces = list(text) if spelled else [text]
    return [token for piece in pieces for token in tokenizer().encode(piece, add_special_tokens=False)]


def tag(schema: dict[str, Any], choice: str = "required", thought: bool = False) -> str:
    from sglang.srt.entrypoints.openai.protocol import Function, Tool

    tool = Tool(function=Function(name="f", parameters={"type": "object", "properties": {"a": schema}, "required": ["a"]}, strict=True))
    found = call_tag([tool], choice, True, tokenizer(), 0, lambda _: None)
    assert found is not None
    return (found.behind("may") if thought else found).model_dump_json()


def allowed(grammar: Any, begun: list[int]) -> list[str]:
    """The markers and end tokens that may come behind ``begun``, whose tokens were all allowed."""
    grammar = grammar.copy()
    for token in [*begun, None]:
        mask = grammar.allocate_vocab_mask(len(tokenizer()), 1, "cpu")
        grammar.fill_vocab_mask(mask, 0)
        bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")
        if token is not None:
            assert bits[token], f"{tokenizer().decode([token])!r} is not allowed"
            grammar.accept_token(token)
    return [text for text in (*MARKERS, "<eos>", "<|image|>") if bits[tokenizer().convert_tokens_to_ids(text)]]


@pytest.mark.parametrize("name", TEXTS)
def test_a_call_s_string_ends_with_its_delimiter_only(name: str, in_child: InChild) -> None:
    """Before, the marker that ends a call was text of the string, and the call went on."""
    literal = ids(CALL) + ids(MARKED, spelled=True)

    def child() -> Any:
        text = tag(TEXTS[name])
        before, after = backend(ours=False).dispatch_structural_tag(text), backend().dispatch_structural_tag(text)
        begun = [ids(CALL + "ab"), ids(CALL + "ab}"), literal]
        behind = allowed(after, literal + ids(STRING + "}"))
        return [allowed(before, one) for one in begun], [allowed(after, one) for one in begun], behind

    before, after, behind = in_child(child)
    assert all(CALL_END in one for one in before)
    assert [set(one) - {THOUGHT_END} for one in after] == [{STRING}] * 3  # in a call a thought's end is text to the parser
    assert behind == [CALL_END]


def test_what_a_marker_is_for_stays_allowed(in_child: InChild) -> None:
    def child() -> Any:
        made = backend()
        must, free = (made.dispatch_structural_tag(tag(TEXTS["any"], choice, choice != "auto")) for choice in ("required", "auto"))
        whole = f"{CALL}b{STRING}}}{CALL_END}"
        return {
            "begin": allowed(must, []),
            "thought": allowed(must, ids(THOUGHT_START + LABEL + "I")),
            "call": allowed(must, ids(whole)),
            "free": allowed(free, ids("I")),
            "free call": allowed(free, ids("I" + CALL + "b")),
            "behind": allowed(free, ids("I" + whole)),
        }

    found = in_child(child)
    assert found["begin"] == [CALL_START, THOUGHT_START]
    assert found["thought"] == [THOUGHT_END, STRING]
    assert found["call"] == [CALL_START, "<eos>"]
    assert {CALL_START, THOUGHT_START, "<eos>"} <= set(found["free"]) & set(found["behind"])
    assert set(found["free call"]) - {THOUGHT_END} == {STRING}


def test_json_is_spelled_in_characters(in_child: InChild) -> None:
    """A marker in a JSON answer's string or constant is its characters: texts leave special tokens out."""
    begun = '{"a": "b'

    def child() -> Any:
        text = json.dumps(JSON)
        before, after = backend(ours=False).dispatch_json(text), backend().dispatch_json(text)
        behind = backend().dispatch_structural_tag(json_tag(JSON, "", tokenizer()).model_dump_json())
        spelled = ids(f'{begun}", "b": "') + ids(MARKED, spelled=True)
        thought = ids(f"{THOUGHT_START}{LABEL}I\n{THOUGHT_END}")
        return [
            allowed(before, ids(begun)),
            allowed(after, ids(begun)),
            allowed(after, ids(f'{begun}", "b": "a}}')),
            allowed(after, spelled),
            allowed(behind, []),
            allowed(behind, thought[:-1]),
            allowed(behind, thought + ids(begun)),
        ]

    before, *after = in_child(child)
    assert {CALL_END, THOUGHT_START, "<|image|>"} <= set(before)
    assert after == [[], [], [], [THOUGHT_START], [THOUGHT_END, STRING], []]


def test_other_grammars_are_left_alone(in_child: InChild) -> None:
    """An operator's or client's own grammar may name markers by their characters."""

    def child() -> Any:
        tags = [{"type": "tag", "begin": CALL_START, "content": {"type": "any_text"}, "end": CALL_END}]
        own = {"type": "structural_tag", "format": tags[0]}
        made = backend()
        return [
            allowed(made.dispatch_structural_tag(json.dumps(own)), ids(f"{CALL_START}a")),
            allowed(made.dispatch_ebnf(f'root ::= [a-z]+ "{CALL_END}"'), ids("a")),
        ]

    tagged, grammar = in_child(child)
    assert CALL_END in tagged
    assert grammar == [CALL_END]


def test_a_token_without_an_alternative_stays() -> None:
    vocabulary = [b"a", CALL_END.encode(), b"\n"]
    for mask, where, kept in (
        (0b010, "everywhere", 0b010),
        (0b011, "everywhere", 0b001),
        (0b011, "strings", 0b001),
        (0b110, "strings", 0b110),
    ):
        row = np.array([mask], np.int32)
        TextTokens(vocabulary, {1}, set(), 1).apply(row, where)  # type: ignore[arg-type]
        assert row[0] == kept


NO_CHARACTERS = [b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80"]
CHARACTERS = [b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf"]


@pytest.mark.parametrize("kind", ["json", "call", "regex"])
def test_bytes_of_strings_are_characters(kind: str, in_child: InChild) -> None:
    """Before, a JSON string of bounded length took the bytes of a surrogate, and what reads the answer as JSON read another one."""

    def follows(grammar: Any, begun: list[int], bytes_: bytes) -> bool:
        grammar = grammar.copy()
        for token in [*begun, *tokenizer().convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in bytes_])]:
            mask = grammar.allocate_vocab_mask(len(tokenizer()), 1, "cpu")
            grammar.fill_vocab_mask(mask, 0)
            if not np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")[token]:
                return False
            grammar.accept_token(token)
        return True

    def child() -> Any:
        made = []
        for ours in (False, True):
            here = backend(ours)
            if kind == "json":
                grammar, begun = here.dispatch_json(json.dumps({"type": "string", "maxLength": 9})), ids('"')
            elif kind == "call":
                grammar, begun = here.dispatch_structural_tag(tag(TEXTS["short"])), ids(CALL)
            else:
                grammar, begun = here.dispatch_regex("[^a]{1,9}"), []
            made.append([[follows(grammar, begun, one) for one in all_] for all_ in (NO_CHARACTERS, CHARACTERS)])
        return made

    (taken, _), after = in_child(child)
    assert any(taken) is (kind != "call")  # our own grammar of calls takes none of them
    assert after == [[False] * len(NO_CHARACTERS), [True] * len(CHARACTERS)]


def test_which_tokens_are_special() -> None:
    assert {tokenizer().convert_tokens_to_ids(marker) for marker in MARKERS} <= special_tokens(tokenizer())
    assert special_tokens(SimpleNamespace()) == set()
