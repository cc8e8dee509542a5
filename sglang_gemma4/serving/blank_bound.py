"""Limits how many consecutive blanks a JSON answer may have between its keys, values and brackets.

A model that may write unlimited blanks after a key or a value often does, until ``max_tokens``. The grammars stay as they are. Tokens that
would exceed the limit are removed from the masks instead: xgrammar's own limit in a grammar makes each mask between values take 0.2 ms
longer with the released vocabulary. Blanks inside strings are text.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

BLANKS = 16
"""Enough for a line break and seven levels of indentation of two blanks."""
_BLANK = b" \n\r\t"
_BETWEEN_VALUES = b'{}[]",:-0123456789tfn' + _BLANK
"""First bytes of what JSON may have between strings."""

Words = np.ndarray[Any, np.dtype[np.int32]]
"""A bit for each token, as xgrammar lays out a row of its mask."""


class BlankBound:
    """The limit for one vocabulary.

    Args:
        vocabulary: each token's bytes.
        most: the most consecutive blanks.
        words: int32 words in a row of the mask.
    """

    def __init__(self, vocabulary: Sequence[bytes], most: int, words: int) -> None:
        self.most = most
        self._leading = np.array([len(one) - len(one.lstrip(_BLANK)) for one in vocabulary], np.int32)
        self._trailing = np.array([len(one) - len(one.rstrip(_BLANK)) for one in vocabulary], np.int32)
        self._length = np.array([len(one) for one in vocabulary], np.int32)
        # A line break is allowed between values and not in strings; a letter such as q is allowed in strings and not between values.
        self._break = next((n for n, one in enumerate(vocabulary) if one and one in (b"\n", b"\r", b"\t")), None)
        self._letter = next((n for n, one in enumerate(vocabulary) if len(one) == 1 and one.isalpha() and one not in _BETWEEN_VALUES), None)
        self._kept = [_bits(self._leading <= left, words) for left in range(min(most, int(self._leading.max(initial=0))) + 1)]

    def apply(self, mask: Words, written: Sequence[int]) -> None:
        """Remove the tokens that would exceed the limit from ``mask``, in place; if no token would be left, it is unchanged.

        Args:
            written: the answer's tokens so far.
        """
        if not _has(mask, self._break) or _has(mask, self._letter):
            return
        left = min(self.most - self._run(written), len(self._kept) - 1)
        kept = mask & self._kept[max(left, 0)]
        if kept.any():
            mask[:] = kept

    def _run(self, written: Sequence[int]) -> int:
        """Number of blanks at the end of ``written``; counting stops at the limit."""
        run = 0
        for token in reversed(written):
            run += int(self._trailing[token])
            if run >= self.most or self._trailing[token] < self._length[token]:
                break
        return run


def _has(mask: Words, token: int | None) -> bool:
    return token is not None and bool(mask[token >> 5] >> (token & 31) & 1)


def _bits(tokens: np.ndarray[Any, np.dtype[np.bool_]], words: int) -> Words:
    """A mask with the bits of ``tokens``; all later bits are set."""
    bits: np.ndarray[Any, np.dtype[np.bool_]] = np.ones(32 * words, np.bool_)
    bits[: len(tokens)] = tokens
    packed: Words = np.packbits(bits, bitorder="little").view(np.int32)
    return packed


def pattern(most: int) -> str:
    """The limit as llguidance's ``whitespace_pattern``."""
    return f"[ \\n\\r\\t]{{0,{most}}}"


def guided_tag(text: str, whitespace: str, any_whitespace: bool) -> str:
    """A structural tag for llguidance whose schemas follow the server's options for blanks, as JSON answers do."""
    try:
        tag = json.loads(text)
        for one in tag["structures"]:
            options = {"whitespace_flexible": any_whitespace, "whitespace_pattern": whitespace}
            one["schema"] = {**(one["schema"] or {}), "x-guidance": options}
        return json.dumps(tag)
    except (ValueError, TypeError, LookupError, RecursionError):
        return text  # SGLang reports what is wrong with it
