"""Decides whether ``<tool_call|>`` inside a string ended the call, whose string then has lost its delimiter, or is text of the string.

The text behind the marker decides. The string's own delimiter makes the marker text; another call makes it the end of this one.
"""

import re

from sglang_gemma4.serving.call_heads import HEAD, HEAD_BEGUN, may_become
from sglang_gemma4.serving.markers import CALL_START, STRING, partial
from sglang_gemma4.serving.tool_arguments import ArgumentsReader

LIMIT = 4096
"""Characters behind a marker that are held back at most. Nothing behind them is looked at."""
LATER_LIMIT = 64
"""The limit in a string that went on at ``LIMIT`` characters before, so that its text is streamed."""
_NEXT = re.compile(f"{re.escape(CALL_START)}|{re.escape(STRING)}")
_KEY = rf"(?:{re.escape(STRING)}|[\w.$-]{{1,64}}\s{{0,8}}[:=])"  # or the next string of an array
_GOES_ON = re.compile(rf"\s{{0,8}}(?:[}}\])]|,\s{{0,8}}{_KEY})")
_BEGUN = re.compile(r"\s{0,8}(?:,\s{0,8}(?:[\w.$-]{1,64}\s{0,8})?)?")


class Doubt:
    """What follows one end marker in a string, while it is not known whether the marker ended the call.

    Places count the characters of the answer. What was found behind one marker is kept for the markers behind it, so that the time is
    linear in the text.
    """

    _call: ArgumentsReader

    def __init__(self) -> None:
        self._place = self._limit = 0
        self._behind: list[str] = []
        self._clear = 0  # before this place is no delimiter, and no other call
        self._start = -1  # the last start marker before it

    def begin(self, place: int, call: ArgumentsReader) -> None:
        """``call`` stopped before an end marker, behind which ``place`` is."""
        self._place, self._call = place, call
        self._limit = place + (LATER_LIMIT if call.went_on and not call.closed else LIMIT)

    def read(self, text: str, at: int, place: int) -> tuple[int, bool | None]:
        """Read ``text`` from ``at``, where ``place`` is that of ``text[0]``.

        Returns up to where the text was taken, and whether the string goes on; None if more text is needed.
        """
        stop, goes_on = self._decided(text, max(at, self._clear - place), place)
        self._clear = max(self._clear, place + stop)
        stop = min(stop, self._limit - place)
        if goes_on is None and place + stop == self._limit:
            goes_on = self.at_end(text[at:stop])
        if goes_on is not None:
            return at, goes_on
        self._behind.append(text[at:stop])
        return stop, None

    def _decided(self, text: str, at: int, place: int) -> tuple[int, bool | None]:
        """Up to where nothing decides, and what is found there; None if nothing is found before the limit or the text's end."""
        closed, limit = self._call.closed, self._limit - place
        if closed and self._start >= self._place:
            return at, False
        while (found := _NEXT.search(text, at, limit + len(CALL_START))) and found.start() < limit:
            at = found.end()
            if found.group() == STRING:
                return found.start(), not closed or self._may_end(text, at)
            if closed or HEAD.match(text, at):
                return found.start(), False
            if may_become(HEAD_BEGUN, text, at):
                return found.start(), None
            self._start = place + found.start()
        return max(min(len(text) - partial(text, at, (CALL_START, STRING)), limit), at), None

    @staticmethod
    def _may_end(text: str, at: int) -> bool | None:
        """Whether a delimiter before ``at`` ends a string of a call: a bracket or another value follows."""
        if _GOES_ON.match(text, at):
            return True
        begun = _BEGUN.match(text, at)
        stop = begun.end() if begun else at
        return None if stop + partial(text, stop, (STRING,)) == len(text) else False

    def at_end(self, rest: str) -> bool:
        """Whether the string goes on if nothing but ``rest`` follows what was read: the answer's end or the limit cut it."""
        goes_on = not self._call.closed and any(map(str.strip, (*self._behind, rest)))
        self._call.went_on = self._call.went_on or goes_on
        return goes_on

    def behind(self) -> str:
        """What was taken, to be read again."""
        behind, self._behind = "".join(self._behind), []
        return behind
