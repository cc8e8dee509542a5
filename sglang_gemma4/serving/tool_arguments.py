"""Streaming conversion of a tool call's arguments from Gemma 4's syntax to JSON.

The model writes ``{city:<|"|>Rome<|"|>,days:[1,2],home:{floor:null}}``: bare keys, strings between ``<|"|>``, everything else as in
JSON. The model's chat template renders calls like this, with sorted keys. An unfinished call is converted as far as it is known, and
JSON that was returned is never revised, so that arguments can be streamed.

Each character is read once, without recursion: the time is linear in the text, whatever the model writes.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from sglang_gemma4.serving.bare_values import bare
from sglang_gemma4.serving.markers import CALL_END, CALL_START, STRING, partial
from sglang_gemma4.serving.schema_types import UNKNOWN, Schemas, element, member

_MARKERS = (STRING, CALL_START, CALL_END)
_SPACE = re.compile(r"\s+")
_BETWEEN = re.compile(r"[\s,]+")
_KEY = re.compile(r"[^,:}\]<]+")
_BARE = re.compile(r"[^,}\]<]+")
_QUOTED = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")


@dataclass
class _Open:
    """An object or array that is not closed yet: the schemas of it and how many values it has."""

    is_object: bool
    schemas: Schemas
    count: int = 0
    inside: Schemas = UNKNOWN
    """The schemas of the value being read."""


def escaped(text: str) -> str:
    """``text`` escaped for a JSON string; lone surrogates too, which UTF-8 cannot encode."""
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(text, ensure_ascii=False)[1:-1])


class ArgumentsReader:
    """Reads from the ``{`` of a call to its ``}``.

    Attributes:
        json: pieces of JSON text; the caller takes them.
        ended: "" while the call is open, "brace" after its last ``}``, "marker" if ``<tool_call|>`` or ``<|tool_call>`` came before it
            outside a string: open values were closed, and the marker was not consumed.
    """

    def __init__(self, schemas: Schemas) -> None:
        self.json: list[str] = ["{"]
        self.ended = ""
        self._open = [_Open(True, schemas)]
        self._arrays = 0
        self._held: list[str] = []  # a bare key or value so far
        self._step: Callable[[str, int], int] = self._key

    def read(self, text: str, at: int) -> int:
        """Read ``text`` from ``at``; returns where reading stopped, at the call's end or because more text is needed."""
        while at < len(text) and not self.ended:
            before, step = at, self._step
            at = step(text, at)
            if at == before and self._step == step and not self.ended:
                break
        return at

    def finish(self, rest: str) -> None:
        """The answer ended inside the call with ``rest`` unread: write what is known of the value, close nothing."""
        if self._step in (self._string, self._quoted):
            self.json.append(escaped(rest))
        elif self._step in (self._string_key, self._quoted_key):
            self.json += [self._comma(), '"', escaped("".join(self._held) + rest)]
        elif self._step == self._bare:
            self.json.append(bare("".join(self._held) + rest, self._open[-1].inside))
        elif self._step in (self._key, self._colon) and (self._held or rest):
            self.json += [self._comma(), '"', escaped("".join(self._held) + rest)]

    # Steps: each reads some text and returns where it stopped. One that neither advances nor changes the step waits for more text.

    def _key(self, text: str, at: int) -> int:
        if not self._held and (between := _BETWEEN.match(text, at)):
            return between.end()
        found = text[at]
        if found == "<":
            return self._marker(text, at, self._string_key if not self._held else None)
        if found == '"' and not self._held:
            self._step = self._quoted_key
            return at + 1
        if found == ":":
            self._name("".join(self._held).strip())
            return at + 1
        if found in ",}]":
            if self._held:
                self._name("".join(self._held).strip())
                self.json.append('""')
                self._step = self._key
            return at + 1 if found == "," else self._close(found, at)
        run = _KEY.match(text, at)
        assert run is not None
        self._held.append(run.group())
        return run.end()

    def _string_key(self, text: str, at: int) -> int:
        at, done = self._until_delimiter(text, at, self._held.append)
        if done:
            self._step = self._colon
        return at

    def _quoted_key(self, text: str, at: int) -> int:
        at, done = self._until_quote(text, at, self._held.append)
        if done:
            self._held = [json.loads(f'"{"".join(self._held)}"', strict=False)]
            self._step = self._colon
        return at

    def _colon(self, text: str, at: int) -> int:
        if space := _SPACE.match(text, at):
            return space.end()
        self._name("".join(self._held))
        if text[at] == ":":
            return at + 1
        if text[at] in ",}]":
            self.json.append('""')
            self._step = self._key
        return at

    def _value(self, text: str, at: int) -> int:
        inside = self._open[-1]
        if space := (_SPACE if inside.is_object else _BETWEEN).match(text, at):
            return space.end()
        found = text[at]
        if found == "<":
            return self._marker(text, at, self._string)
        if found in ",}]":
            if inside.is_object:
                self.json.append('""')
                self._step = self._after
                return at
            return self._close(found, at)  # an array between its values
        self._begin()
        if found in "{[":
            self._push(found == "{")
            return at + 1
        self._step = self._quoted if found == '"' else self._bare
        if found == '"':
            self.json.append('"')
            return at + 1
        return at

    def _string(self, text: str, at: int) -> int:
        at, done = self._until_delimiter(text, at, lambda piece: self.json.append(escaped(piece)))
        if done:
            self.json.append('"')
            self._step = self._after
        return at

    def _quoted(self, text: str, at: int) -> int:
        """A string in JSON's quotes, which are not part of the format but models write them."""
        at, done = self._until_quote(text, at, self.json.append)
        if done:
            self.json.append('"')
            self._step = self._after
        return at

    def _bare(self, text: str, at: int) -> int:
        if run := _BARE.match(text, at):
            self._held.append(run.group())
            return run.end()
        if text[at] == "<":
            if any(text.startswith(marker, at) for marker in _MARKERS):
                self._end_bare()
            elif partial(text, at, _MARKERS) != len(text) - at:
                self._held.append("<")
                return at + 1
            return at
        self._end_bare()
        return at

    def _after(self, text: str, at: int) -> int:
        """After a value; a missing comma is tolerated."""
        if space := _SPACE.match(text, at):
            return space.end()
        found = text[at]
        if found in "}]":
            return self._close(found, at)
        if found == "<" and partial(text, at, _MARKERS) == len(text) - at:
            return at
        self._next()
        return at + 1 if found == "," else at

    # Shared by the steps.

    def _marker(self, text: str, at: int, string: Callable[[str, int], int] | None) -> int:
        """A ``<`` outside strings: it begins a string (read by step ``string``), the call's end marker, or is just a character."""
        if text.startswith(STRING, at) and string is not None:
            if string == self._string:
                self._begin()
                self.json.append('"')
            self._step = string
            return at + len(STRING)
        if text.startswith((CALL_START, CALL_END), at):
            self._cut()
            return at
        if partial(text, at, _MARKERS) == len(text) - at:
            return at
        if self._step == self._value:
            self._begin()
            self._step = self._bare
        self._held.append("<")
        return at + 1

    def _until_delimiter(self, text: str, at: int, take: Callable[[str], object]) -> tuple[int, bool]:
        end = text.find(STRING, at)
        stop = end if end >= 0 else len(text) - partial(text, at, (STRING,))
        if stop > at:
            take(text[at:stop])
        return (end + len(STRING), True) if end >= 0 else (stop, False)

    def _until_quote(self, text: str, at: int, take: Callable[[str], object]) -> tuple[int, bool]:
        if run := _QUOTED.match(text, at):
            take(escaped(run.group()))
            return run.end(), False
        if text[at] == '"':
            return at + 1, True
        if escape := _ESCAPE.match(text, at):
            take(escape.group())
            return escape.end(), False
        if _ESCAPE_BEGUN.match(text, at):
            return at, False
        take("\\\\")
        return at + 1, False

    def _comma(self) -> str:
        inside = self._open[-1]
        inside.count += 1
        return ", " if inside.count > 1 else ""

    def _name(self, key: str) -> None:
        inside = self._open[-1]
        self.json.append(f'{self._comma()}"{escaped(key)}": ')
        inside.inside = member(inside.schemas, key)
        self._held = []
        self._step = self._value

    def _begin(self) -> None:
        """A value begins; in an array, write the comma before it and look up its schema."""
        inside = self._open[-1]
        if not inside.is_object:
            inside.inside = element(inside.schemas, inside.count)
            self.json.append(self._comma())

    def _push(self, is_object: bool) -> None:
        self.json.append("{" if is_object else "[")
        self._arrays += not is_object
        self._open.append(_Open(is_object, self._open[-1].inside))
        self._next()

    def _next(self) -> None:
        self._step = self._key if self._open[-1].is_object else self._value

    def _end_bare(self) -> None:
        self.json.append(bare("".join(self._held), self._open[-1].inside))
        self._held = []
        self._step = self._after

    def _pop(self) -> bool:
        closed = self._open.pop()
        self.json.append("}" if closed.is_object else "]")
        self._arrays -= not closed.is_object
        return closed.is_object

    def _close(self, found: str, at: int) -> int:
        """Close the value that ``found`` ends and all open ones inside it; a ``]`` outside arrays closes nothing."""
        if found == "}" or self._arrays:
            while self._pop() != (found == "}"):
                pass
            self._step = self._after
            if not self._open:
                self.ended = "brace"
        return at + 1

    def _cut(self) -> None:
        """A marker ended the call before its last ``}``: close everything."""
        if self._step == self._key and self._held:
            self._name("".join(self._held).strip())
        if self._step == self._value and self._open[-1].is_object:
            self.json.append('""')
        while self._open:
            self._pop()
        self.ended = "marker"
