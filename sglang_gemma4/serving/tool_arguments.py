"""Streaming conversion of a tool call's arguments from Gemma 4's syntax to JSON.

The model writes ``{city:<|"|>Rome<|"|>,days:[1,2],home:{floor:null}}``: bare keys, strings enclosed in ``<|"|>``, everything else as in
JSON. The model's chat template renders calls like this, with sorted keys. An unfinished call is converted as far as it is known, and
JSON that was returned is never revised, so that arguments can be streamed.

Models also write ``(city="Rome", days=['x'])``: round brackets, ``=`` and Python's or JSON's quotes; and they lose or double delimiters.
A bare value ends at a comma that a key follows, at a bracket or at a delimiter. Whatever is written, a call that ended has JSON arguments.

No step recurses, and each character is read a bounded number of times: the time is linear in the text, whatever the model writes.
"""

import json
import re
from collections.abc import Callable

from sglang_gemma4.serving.argument_strings import ESCAPE_BEGUN, SPACE, marker_at
from sglang_gemma4.serving.arguments_json import escaped
from sglang_gemma4.serving.bare_arguments import BareArguments
from sglang_gemma4.serving.bare_values import bare
from sglang_gemma4.serving.markers import STRING
from sglang_gemma4.serving.schema_types import Schemas

_BETWEEN = re.compile(r"[\s,]+")
_KEY = re.compile(r"[^,:=}\])<]+")


class ArgumentsReader(BareArguments):
    """Reads a call's arguments from after the opening bracket, ``{`` or ``(``, to the closing one.

    Attributes:
        json: pieces of JSON text; the caller takes them.
        ended: "" while the call is open and "brace" after its last bracket. "marker" if ``<tool_call|>`` or ``<|tool_call>`` came first,
            outside a string or after a bracket in a string without an end; open values were closed, and the marker was not consumed.
        doubtful: reading stopped before ``<tool_call|>`` in a string; the caller calls :meth:`decide` with whether it is text.
        closed: whether brackets that close the call came before that marker.
        went_on: the caller sets this if the string went on after such a marker because nothing was found that decides.
    """

    def __init__(self, schemas: Schemas, opener: str = "{") -> None:
        super().__init__(schemas, "}" if opener == "{" else ")")
        self._reset()
        self.ended = ""
        self.doubtful = self.closed = self.went_on = False
        self._step = self._key

    def read(self, text: str, at: int) -> int:
        """Read ``text`` from ``at``; returns where reading stopped, at the call's end or because more text is needed."""
        while at < len(text) and not self.ended and not self.doubtful:
            before, step = at, self._step
            at = step(text, at)
            if at == before and self._step == step:
                break
        return at

    def finish(self, rest: str) -> None:
        """End an answer inside the call, with ``rest`` unread: write the part of the value that is known, close nothing."""
        step, held = self._step, "".join(self._held)
        if step == self._string:
            self.json += [escaped(self._tail), escaped(rest)]
        elif step == self._quoted:
            self.json.append("" if ESCAPE_BEGUN.match(rest) else escaped(rest))
        elif step == self._closing:
            self._close_string()
        elif step in (self._single, self._single_closing) and not self._of_key:
            self._begin()
            self.json += ['"', escaped(held)]
        elif step == self._bare:
            self.json.append(bare(held + rest, self._inside.inside))
        elif step == self._continued:
            self.json.append(bare(held, self._inside.inside))
            if self._more:
                self.json += [', "', escaped("".join(self._more))]
        elif step in (
            self._string_key,
            self._quoted_key,
            self._single,
            self._single_closing,
            self._key,
            self._colon,
            self._behind_quotes,
        ) and (held or rest):
            self.json += [self._comma(), '"', escaped(held + rest)]

    # Steps: each reads some text and returns where it stopped. A step that neither advances nor changes ``_step`` waits for more text.

    def _key(self, text: str, at: int) -> int:
        if not self._held and (between := _BETWEEN.match(text, at)):
            return between.end()
        found = text[at]
        if found == "<":
            return self._marker(text, at, self._colon if self._held else self._string_key)
        if not self._held and (step := self._key_in_quotes(found)):
            self._step = step
            return at + 1
        if found == "{" and not self._held and len(self._open) == 1 and not self._inside.count and self._closers[")"]:
            self._reclose("}")  # call:name({...})
            return at + 1
        if found == ":" or (found == "=" and not self._in_key("=", self._held)):
            self._name("".join(self._held).strip())
            return at + 1
        if found == "," or self._ends(found):
            self._end_key()
            return at + 1 if found == "," else self._close(found, at)
        run = _KEY.match(text, at)
        self._held.append(run.group() if run else found)
        return run.end() if run else at + 1

    def _key_in_quotes(self, found: str) -> Callable[[str, int], int] | None:
        self._of_key, self._tail = True, ""
        return self._quoted_key if found == '"' else self._single if found == "'" and self._single_quotes else None

    def _quoted_key(self, text: str, at: int) -> int:
        at, done = self._until_quote(text, at, self._held.append)
        if done:
            self._held = [json.loads(f'"{"".join(self._held)}"', strict=False)]
            self._step = self._behind_quotes
        return at

    def _behind_quotes(self, text: str, at: int) -> int:
        """After a quoted string in a key's place: it is a key, or a value without a key."""
        if space := SPACE.match(text, at):
            return space.end()
        if text[at] in ":=":
            self._name("".join(self._held))
            return at + 1
        self._end_key(quoted=True)
        return at

    def _colon(self, text: str, at: int) -> int:
        """After a key in delimiters, or after a stray delimiter and text that is no key."""
        if space := SPACE.match(text, at):
            return space.end()
        found = text[at]
        marker = marker_at(text, at) if found == "<" else ""
        if found in ":=":
            self._name("".join(self._held))
            return at + 1
        if marker == STRING:
            return at + len(STRING)
        if marker is not None:
            self._no_key()
        return at

    def _no_key(self) -> None:
        """The text before a delimiter is no key: read it again as if it had no delimiter before it."""
        before, self._held, self._step = "".join(self._held), [], self._key
        self._reread(before)
        if not self.ended:
            self._delimiter()

    def _value(self, text: str, at: int) -> int:
        if space := (SPACE if self._inside.is_object else _BETWEEN).match(text, at):
            return space.end()
        found = text[at]
        if found == "<":
            return self._marker(text, at, self._string)
        if found == "," or self._ends(found):
            if self._inside.is_object:
                self.json.append('""')
                self._step = self._after
                return at
            return self._close(found, at)  # an array between its values
        if found == "'" and self._single_quotes:
            self._of_key, self._step = False, self._single
            return at + 1
        self._begin()
        if found in "{[":
            self._push(found)
            self._next()
            return at + 1
        self._step = self._quoted if found == '"' else self._bare
        if found == '"':
            self._tail = ""
            self.json.append('"')
            return at + 1
        return at

    def _after(self, text: str, at: int) -> int:
        """After a value; a missing comma and a stray delimiter are tolerated."""
        if space := SPACE.match(text, at):
            return space.end()
        found = text[at]
        if self._ends(found):
            return self._close(found, at)
        marker = marker_at(text, at) if found == "<" else ""
        if marker is None:
            return at
        if marker == STRING:
            self._step = self._after if self._inside.is_object else self._stray
            return at + len(STRING)
        self._next()
        return at + 1 if found == "," else at

    def _stray(self, text: str, at: int) -> int:
        """After a delimiter that follows a value of an array: it begins a string unless the array goes on."""
        if space := SPACE.match(text, at):
            return space.end()
        found = text[at]
        marker = marker_at(text, at) if found == "<" else ""
        if marker is not None:
            self._step = self._after
            if not (marker or found == "," or self._ends(found)):
                self._next()
                self._open_string()
        return at

    # Shared by the steps.

    def _marker(self, text: str, at: int, in_string: Callable[[str, int], int]) -> int:
        """A ``<`` where a key or value may begin: a delimiter (the next step is ``in_string``), the call's end, or text."""
        marker = marker_at(text, at)
        if marker is None:
            return at
        if marker == STRING:
            self._step = in_string
            if in_string == self._string:
                self._open_string()
            return at + len(STRING)
        if marker:
            self._cut()
            return at
        if self._step == self._value:
            self._begin()
            self._step = self._bare
        self._held.append("<")
        return at + 1

    def _name(self, key: str) -> None:
        self._write_key(key)
        self._held = []
        self._step = self._value

    def _end_key(self, quoted: bool = False) -> None:
        """End a key without a value. In round brackets it is a value without a key, and belongs to the next declared parameter."""
        text, self._held, self._step = "".join(self._held), [], self._key
        if not (text or quoted):
            return
        declared = self._inside.schemas.keys("properties") if self._inside.closer == ")" else []
        if self._inside.count >= len(declared):
            self._write_key(text if quoted else text.strip())
            self.json.append('""')
            return
        self._write_key(declared[self._inside.count])
        self.json.append(f'"{escaped(text)}"' if quoted else bare(text, self._inside.inside))

    def _next(self) -> None:
        self._step = self._key if self._inside.is_object else self._value

    def _close(self, found: str, at: int) -> int:
        """Close the value that ``found`` ends and all open ones inside it; a bracket that ends nothing is dropped."""
        if self._pop_to(found):
            self._step = self._after
            if not self._open:
                self.ended = "brace"
        return at + 1

    def _reread(self, text: str) -> None:
        """Read held text again."""
        if self.read(text, 0) < len(text) and not self.ended and self._step in (self._key, self._bare):
            self._held.append(text[-1])

    def _cut(self) -> None:
        """A marker ended the call before its last bracket: close everything."""
        self._settle()
        while self._open:
            self._pop()
        self.ended = "marker"

    def _settle(self) -> None:
        """End the key or value that is being read."""
        if self._step == self._string_key:
            self._no_key()
        if self._step in (self._single, self._single_closing):
            self._as_apostrophe()
        if self._step in (self._bare, self._continued):
            self._join()
            self._end_bare()
        elif self._step in (self._key, self._quoted_key, self._colon, self._behind_quotes):
            self._end_key()
        elif self._step in (self._string, self._closing):
            self._close_string()
        elif self._step == self._quoted:
            self.json.append('"')
        elif self._step == self._value and self._open and self._inside.is_object:
            self.json.append('""')
