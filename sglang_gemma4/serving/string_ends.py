"""Decides whether ``<tool_call|>`` inside a string ended the call (the string then lost its delimiter) or is text of the string.

The text after the marker decides. The string's own delimiter makes the marker text; another call makes it the end of this one.
"""

import re

from sglang_gemma4.serving.call_heads import HEAD, HEAD_BEGUN, may_become
from sglang_gemma4.serving.markers import CALL_START, STRING, partial
from sglang_gemma4.serving.tool_arguments import ArgumentsReader

LIMIT = 4096
"""Most characters after a marker that are held back and looked at."""
LATER_LIMIT = 64
"""The limit in a string that has reached ``LIMIT`` before and went on, so that its text is streamed."""
_NEXT = re.compile(f"{re.escape(CALL_START)}|{re.escape(STRING)}")
_KEY = rf"(?:{re.escape(STRING)}|[\w.$-]{{1,64}}\s{{0,8}}[:=])"  # or the next string of an array
_GOES_ON = re.compile(rf"\s{{0,8}}(?:[}}\])]|,\s{{0,8}}{_KEY})")
_BEGUN = re.compile(r"\s{0,8}(?:,\s{0,8}(?:[\w.$-]{1,64}\s{0,8})?)?")


class Doubt:
    """The text after one end marker in a string, until it is known whether the marker ended the call.

    Places count the characters of the answer. What was found after one marker is kept for later markers, so that the time is linear in
    the text.
    """

    _call: ArgumentsReader

    def __init__(self) -> None:
        self._place = self._limit = 0
        self._behind: list[str] = []
        self._clear = 0  # before this place there is no delimiter and no other call
        self._start = -1  # place of the last start marker before ``_clear``

    def begin(self, place: int, call: ArgumentsReader) -> None:
        """Begin with ``call``, which stopped before an end marker; ``place`` is that of the text after the marker."""
        self._place, self._call = place, call
        self._limit = place + (LATER_LIMIT if call.went_on and not call.closed else LIMIT)

    def read(self, text: str, at: int, place: int) -> tuple[int, bool | None]:
        """Read ``text`` from ``at``; ``place`` is that of ``text[0]``.

        Returns the end of the text that was taken, and whether the string goes on (None if more text is needed).
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
        """End of the text that decides nothing, and the decision there; None if there is none before the limit or the text's end."""
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
        """Whether a delimiter before ``at`` ends a call's string: a bracket or another value follows. None if more text is needed."""
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
        """Return the text that was taken, to be read again, and forget it."""
        behind, self._behind = "".join(self._behind), []
        return behind
