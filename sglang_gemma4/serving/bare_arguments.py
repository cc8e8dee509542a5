"""Finds where values without delimiters in a tool call's arguments end.

In an object a comma ends such a value only if a key follows: ``city:Rome, Italy<|"|>,days:5`` lost a delimiter, and its city has a comma.
"""

import re
from collections.abc import Callable

from sglang_gemma4.serving.argument_strings import SPACE, ArgumentStrings, marker_at
from sglang_gemma4.serving.bare_values import bare, ended_by_delimiter
from sglang_gemma4.serving.markers import STRING

_BARE = re.compile(r"[^,}\])(<]+")
_MORE = re.compile(r"""[^,:=}\])<"'{]+""")


class BareArguments(ArgumentStrings):
    """The steps that read values without delimiters. A step reads some text and returns where it stopped."""

    _name: Callable[[str], None]
    _end_key: Callable[[], None]

    def _reset(self) -> None:
        super()._reset()
        self._more: list[str] = []  # after a bare value and a comma: the next key, or more of the value
        self._round = 0  # number of open round brackets in a bare value

    def _bare(self, text: str, at: int) -> int:
        if run := _BARE.match(text, at):
            self._held.append(run.group())
            return run.end()
        found = text[at]
        if found == "<":
            return self._angle(text, at, self._held)
        if found == "(" or (found == ")" and (self._round or not self._ends(found))) or (found == "," and self._round):
            self._round += {"(": 1, ")": -1}.get(found, 0) if self._closers[")"] else 0
            self._held.append(found)
            return at + 1
        if found == "," and self._inside.is_object:
            self._step = self._continued
            return at + 1
        self._end_bare()
        return at

    def _continued(self, text: str, at: int) -> int:
        """After a bare value and a comma in an object: the next key, or more of the value if the value's end comes first."""
        if not self._more and (space := SPACE.match(text, at)):
            self._gap += space.group()
            return space.end()
        if run := _MORE.match(text, at):
            self._more.append(run.group())
            return run.end()
        found = text[at]
        if found == "<" and (self._more or not text.startswith(STRING, at)):
            return self._angle(text, at, self._more)
        if found == ":" or (found == "=" and not self._in_key("=", self._more)):
            key, self._more = "".join(self._more).strip(), []
            self._end_bare()
            self._name(key)
            return at + 1
        if found == "," or self._ends(found):
            self._join()
            if found != ",":
                self._end_bare()
            return at + (found == ",")
        if not self._more and found in "\"'<":
            self._end_bare()
            self._step = self._key
            return at
        self._more.append(found)
        return at + 1

    def _angle(self, text: str, at: int, text_so_far: list[str]) -> int:
        """A ``<`` in or after a bare value: a marker ends the value."""
        marker = marker_at(text, at)
        if marker is None:
            return at
        if not marker:
            text_so_far.append("<")
            return at + 1
        if marker == STRING:
            self._delimiter()
            return at + len(STRING)
        self._join()
        self._end_bare()
        return at

    def _delimiter(self) -> None:
        """Handle a delimiter at the current step."""
        if self._step == self._value:
            self._open_string()
        elif self._step in (self._bare, self._continued):
            self._join()
            self.json.append(ended_by_delimiter("".join(self._held), self._inside.inside))
            self._end_held()
        elif self._step == self._key:
            self._end_key()

    def _join(self) -> None:
        """Append the text after the comma to the bare value."""
        if self._more:
            self._held += [",", self._gap, *self._more]
        self._gap, self._more = "", []

    def _in_key(self, separator: str, key: list[str]) -> bool:
        """Whether ``separator`` is part of a key that ``key`` begins."""
        if len(self._open) > 1 and self._open[0].closer == "}" and not self._inside.schemas.keys("properties"):
            return True  # an inner object with free keys (environment, labels) of a call in curly brackets: only a colon ends a key
        begun = "".join(key).lstrip() + separator
        return any(name.startswith(begun) for name in self._inside.schemas.keys("properties"))

    def _end_bare(self) -> None:
        self.json.append(bare("".join(self._held), self._inside.inside))
        self._end_held()

    def _end_held(self) -> None:
        self._held, self._gap, self._round = [], "", 0
        self._step = self._after
