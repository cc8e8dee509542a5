"""Character classes against xgrammar: exactly their characters, and no byte after which nothing is allowed."""

from collections.abc import Iterator

import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_gemma4.serving.grammar_rules import Range, all_but, any_but, characters
from tests.harness.inputs.call_grammars import allows, compiler, tokenizer

EDGES = (0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xCFFF, 0xD000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0xFFFFF, 0x10FFFF)
SURROGATES = range(0xD800, 0xE000)
points = st.sampled_from(EDGES) | st.integers(0, 0x10FFFF) | st.integers(0, 0xFFFF)
ranges = st.lists(st.tuples(points, points).map(lambda ends: (min(ends), max(ends))), min_size=1, max_size=3)


def matcher(expression: str) -> xgrammar.GrammarMatcher:
    return xgrammar.GrammarMatcher(compiler().compile_grammar(f"root ::= {expression}"))


def next_bytes(matcher: xgrammar.GrammarMatcher) -> list[int]:
    """The bytes whose tokens may come next; no other token begins with a byte beyond ASCII in the tiny vocabulary."""
    words = xgrammar.allocate_token_bitmask(1, len(tokenizer()))
    matcher.fill_next_token_bitmask(words)
    tokens = [tokenizer().convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256)]
    return [byte for byte, token in enumerate(tokens) if words[0][token // 32] >> (token % 32) & 1]


def matches(expression: str, character: str) -> bool:
    reader = matcher(expression)
    for byte in character.encode():
        if byte not in next_bytes(reader):
            return False
        assert reader.accept_token(tokenizer().convert_tokens_to_ids(f"<0x{byte:02X}>"))
    return bool(reader.is_completed())


def dead_ends(reader: xgrammar.GrammarMatcher, begun: bytes = b"") -> Iterator[bytes]:
    """Bytes that ``reader`` accepts and cannot go on from; of each byte's successors the first and the last are followed."""
    if reader.is_completed():
        return
    found = next_bytes(reader)
    if not found:
        yield begun
    for byte in found if not begun else {found[0], found[-1]}:
        other = reader.fork()
        assert other.accept_token(tokenizer().convert_tokens_to_ids(f"<0x{byte:02X}>"))
        yield from dead_ends(other, begun + bytes([byte]))


@settings(max_examples=8, deadline=None)
@given(ranges, st.lists(points, max_size=4))
def test_a_class_matches_its_characters_and_no_others(ranges: list[Range], others: list[int]) -> None:
    if all(first in SURROGATES and last in SURROGATES for first, last in ranges):
        return
    expression = characters(ranges).ebnf
    for point in {*others, *(end + step for one in ranges for end in one for step in (-1, 0, 1))}:
        if 0 <= point <= 0x10FFFF and point not in SURROGATES:
            assert matches(expression, chr(point)) == any(first <= point <= last for first, last in ranges), hex(point)
    assert not list(dead_ends(matcher(expression)))


def test_the_others() -> None:
    assert all_but([]) == [(0, 0xD7FF), (0xE000, 0x10FFFF)]
    assert all_but([(0, 9), (5, 0xE000)]) == [(0xE001, 0x10FFFF)]
    assert all_but(all_but([(8, 9), (3, 0xDFFF)])) == [(3, 0xD7FF)]


@pytest.mark.parametrize("expression", [any_but('<|">').ebnf, any_but("{}", 0x21).ebnf])
def test_any_other_character_ends(expression: str) -> None:
    """Written as one range up to U+D7FF, xgrammar allows the byte ED and then nothing: the sampler's probabilities are NaN."""
    assert not list(dead_ends(matcher(expression)))
    assert all(matches(expression, character) for character in "한\u0800\uffff\U0010ffff")


def test_text_of_limited_length_is_in_any_script() -> None:
    accepts = allows({"properties": {"a": {"type": "string", "maxLength": 4}}})
    assert all(accepts({"a": text}) for text in ("서울", "Zoé", "日本", "🚢a"))
    assert not accepts({"a": "서울서울서"})
