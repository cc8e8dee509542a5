"""The pieces of an answer as they are written: text, thoughts, calls and their arguments."""

import itertools
from typing import Literal, NamedTuple

KEPT = 66
"""Number of last characters of the text to keep, to find line starts and code fences."""
FENCE = "```"


class Part(NamedTuple):
    """A piece of an answer: text for the user, a thought, the name of a call that begins, or JSON of its arguments."""

    kind: Literal["text", "thought", "call", "arguments"]
    text: str


class AnswerParts:
    """Collects the parts of an answer."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._space: list[str] = []  # white space after a call, dropped if another call or nothing follows
        self._last = ""  # the text's last characters; "" after a call or a thought
        self._fences = 0  # code fences so far
        self._newline = ""  # at the end of a thought; dropped with the end marker if nothing follows
        self._between = ""  # separates the next words of a thought from those before
        self._thought_before = False
        self._text_before = False

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(Part("text", "".join(self._space) + text))
            said = self._last + text
            self._fences += said.count(FENCE) - self._last.count(FENCE)
            self._space, self._last, self._text_before = [], said[-KEPT:], True

    def _think(self, text: str) -> None:
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        if words := text.removesuffix("\n"):
            self._parts.append(Part("thought", self._between + words))
            self._between, self._thought_before = "", True

    def _end_thought(self) -> None:
        """Drop the thought's last newline; another thought begins on a new line."""
        self._newline, self._between, self._last = "", "\n" if self._thought_before else "", ""

    def _taken(self) -> list[Part]:
        """The new parts, with neighbours of one kind joined; each call's name is a part of its own."""
        parts, self._parts = self._parts, []
        groups = itertools.groupby(enumerate(parts), lambda one: (one[1].kind, one[0] if one[1].kind == "call" else -1))
        return [Part(kind, "".join(part.text for _, part in group)) for (kind, _), group in groups]
