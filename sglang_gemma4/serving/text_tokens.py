"""Keeps special tokens out of the strings of a constrained answer. The model may still spell their characters with ordinary tokens.

A grammar matches a token by its characters. Without this mask, a string accepts the marker that ends a call, and the call does not end.
Detokenising removes special tokens from the text, and the answer then no longer follows its schema.
"""

from collections.abc import Iterable, Sequence, Set
from typing import Any, Literal

import numpy as np

from sglang_gemma4.serving.blank_bound import Words
from sglang_gemma4.serving.markers import STRING, THOUGHT_END

SIGN = "# strings without markers\n"
"""The first line of this package's grammars, whose markers are tokens."""
_BETWEEN_VALUES = b"tfn"  # letters that may begin a value
_NOT_BEHIND = {0xE0: range(0x80, 0xA0), 0xED: range(0xA0, 0xC0), 0xF0: range(0x80, 0x90), 0xF4: range(0x90, 0xC0)}
"""By first byte: invalid second bytes (overlong forms, surrogates, and code points beyond the last one)."""
Where = Literal["everywhere", "strings", "nowhere"]


class TextTokens:
    """The special tokens of one vocabulary.

    Args:
        vocabulary: each token's bytes.
        special: tokens that detokenising removes from the text.
        stops: tokens that end an answer.
        words: int32 words in a row of the mask.
    """

    def __init__(self, vocabulary: Sequence[bytes], special: Set[int], stops: Set[int], words: int) -> None:
        dropped = {token: vocabulary[token].decode(errors="replace") for token in special if token not in stops}
        self._text = _without(dropped, words)
        self._json_strings = _without([token for token, text in dropped.items() if text != STRING], words)
        self._strings = _without([token for token, text in dropped.items() if text not in (STRING, THOUGHT_END)], words)
        self._letters = _Bits([n for n, one in enumerate(vocabulary) if len(one) == 1 and one.isalpha() and one not in _BETWEEN_VALUES])
        self._characters = _characters(vocabulary, words)
        self._stops, self._break = _Bits(stops), _Bits([n for n, one in enumerate(vocabulary) if one == b"\n"])

    def apply(self, mask: Words, where: Where, written: Sequence[int] = ()) -> None:
        """Remove special tokens from ``mask``: always, only where a string's text may go on, or never. They stay if nothing else
        is allowed.

        Args:
            written: the answer's tokens. In any grammar, after the first byte of a character, invalid second bytes are removed too.
        """
        if written and (behind := self._characters.get(written[-1])) is not None and (mask & behind).any():
            mask &= behind
        if where == "nowhere":
            return
        if where == "everywhere":
            kept = mask & self._text
        elif not self._letters.any(mask) or self._stops.any(mask):  # text that may end is free text
            return
        else:  # line breaks are allowed in a thought, which its marker ends, and not in a JSON string
            kept = mask & (self._strings if self._break.any(mask) else self._json_strings)
        if kept.any():
            mask[:] = kept


class _Bits:
    """The bits of a set of tokens in a mask."""

    def __init__(self, tokens: Iterable[int]) -> None:
        bits: dict[int, int] = {}
        for token in tokens:
            bits[token >> 5] = bits.get(token >> 5, 0) | 1 << (token & 31)
        self._words = np.array(list(bits), np.int64)
        self._bits = np.array(list(bits.values()), np.uint32).view(np.int32)

    def any(self, mask: Words) -> bool:
        return bool((mask[self._words] & self._bits).any())


def _characters(vocabulary: Sequence[bytes], words: int) -> dict[int, Words]:
    """By the token of a first byte: a mask without the tokens of bytes that cannot follow it in UTF-8.

    xgrammar allows a surrogate's bytes in strings of limited length, although they are not text.
    """
    single = {one[0]: token for token, one in enumerate(vocabulary) if len(one) == 1 and one[0] >= 0x80}
    return {
        single[first]: _without([single[second] for second in seconds if second in single], words)
        for first, seconds in _NOT_BEHIND.items()
        if first in single
    }


def _without(tokens: Iterable[int], words: int) -> Words:
    """A mask of all but ``tokens``."""
    bits: np.ndarray[Any, np.dtype[np.bool_]] = np.ones(32 * words, np.bool_)
    bits[list(tokens)] = False
    packed: Words = np.packbits(bits, bitorder="little").view(np.int32)
    return packed


def special_tokens(tokenizer: Any) -> set[int]:
    """The ids of a transformers tokenizer's special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return {int(number) for number, token in added.items() if token.special} | set(getattr(tokenizer, "all_special_ids", None) or ())
