"""Finds where strings in a tool call's arguments end, even if a delimiter is missing, doubled or out of place.

A delimiter ends a string if a bracket, a comma or another value follows. If text follows, the delimiter is stray and the string goes on.
If the string ends in ``,name:`` before that delimiter, it has lost its own: the delimiter begins the value of ``name``.
The caller decides whether ``<tool_call|>`` inside a string is text, from the text after it.
"""

import re
from collections.abc import Callable

from sglang_gemma4.serving.arguments_json import HIGH, LOW, ArgumentsJson, escaped, without_halves
from sglang_gemma4.serving.markers import CALL_END, CALL_START, STRING, partial

MARKERS = (STRING, CALL_START, CALL_END)
SPACE = re.compile(r"\s+")
_ANY = re.compile("|".join(map(re.escape, MARKERS)))
_CLOSERS = r"[}\])][\s}\])]{0,40}"
_NAME = r"[\w.$-]{1,64}\s{0,8}"
_TAIL = re.compile(rf"(?:{_CLOSERS}(?:,\s{{0,8}}(?:{_NAME}(?:[:=]\s{{0,8}})?)?)?|,\s{{0,8}}(?:{_NAME}(?:[:=]\s{{0,8}})?)?)\Z")
_LONGEST_TAIL = 140
_LOST = re.compile(rf"(?P<closers>{_CLOSERS})?,\s{{0,8}}(?P<name>{_NAME}[:=]\s{{0,8}})?")
_KEY_FOLLOWS = re.compile(rf"{_NAME}[:=]")
_KEY_BEGUN = re.compile(rf"(?:{_NAME})?\Z")
_QUOTED = re.compile(r'[^"\\<]+')
_ESCAPE = re.compile(rf'{HIGH}{LOW}|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{{4}})')
ESCAPE_BEGUN = re.compile(rf"(?:{HIGH})?\\(?:u[0-9a-fA-F]{{0,3}})?\Z|{HIGH}\Z")
_SINGLE = re.compile(r"[^'\\<]+")
_PYTHON_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_MEANS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "\n": ""}


def marker_at(text: str, at: int) -> str | None:
    """The marker that begins at a ``<``; "" if none does, None if more text is needed to tell."""
    if found := _ANY.match(text, at):
        return found.group()
    return None if partial(text, at, MARKERS) == len(text) - at else ""


def _unescaped(text: str) -> str:
    """The value of a Python string in single quotes."""
    return _PYTHON_ESCAPE.sub(lambda escape: _MEANS.get(escape[1], escape[0]), text)


class ArgumentStrings(ArgumentsJson):
    """The steps that read strings. A step reads some text and returns where it stopped; see :class:`ArgumentsReader`."""

    ended: str
    doubtful: bool
    closed: bool
    went_on: bool
    _step: Callable[[str, int], int]
    _key: Callable[[str, int], int]
    _value: Callable[[str, int], int]
    _after: Callable[[str, int], int]
    _colon: Callable[[str, int], int]
    _behind_quotes: Callable[[str, int], int]
    _cut: Callable[[], None]
    _reread: Callable[[str], None]
    _delimiter: Callable[[], None]

    def _reset(self) -> None:
        self._held: list[str] = []  # a key or value that is not written yet
        self._tail = ""  # the end of a string that may belong to what follows
        self._gap = ""  # white space after a string's delimiter
        self._delimiters = 0  # delimiters after the string
        self._calls = 0  # calls begun inside the string
        self._of_key = False  # the string in single quotes is a key
        self._single_quotes = True  # single quotes begin a string

    def _open_string(self) -> None:
        self._begin()
        self.json.append('"')
        self._tail, self._calls, self.went_on, self._step = "", 0, False, self._string

    def _string(self, text: str, at: int) -> int:
        found = _ANY.search(text, at)
        stop = found.start() if found else len(text) - partial(text, at, MARKERS)
        self._add(text[at:stop])
        if found is None:
            return stop
        if found.group() == STRING:
            self._gap, self._delimiters, self._step = "", 1, self._closing
            return found.end()
        if not self._calls:
            self.closed = self._without_closers() != self._tail
            self.doubtful = found.group() == CALL_END
            if self.closed and not self.doubtful:
                self.decide(goes_on=False)
            if self.closed or self.doubtful:
                return stop
        self._calls = max(self._calls + (1 if found.group() == CALL_START else -1), 0)
        self._add(found.group())
        return found.end()

    def _add(self, piece: str) -> None:
        """Add ``piece`` to the string: write all but the end that may belong to what follows."""
        text = self._tail + piece
        tail = _TAIL.search(text, max(len(text) - _LONGEST_TAIL, 0))
        stop = tail.start() if tail else len(text)
        self._tail = text[stop:]
        if stop:
            self.json.append(escaped(text[:stop]))

    def _without_closers(self) -> str:
        """The string's end without the brackets that close the call, as a marker after them confirms."""
        text = self._tail
        for opened in self._open:
            if not text.rstrip().endswith(opened.closer):
                break
            text = text.rstrip()[:-1]
        return text

    def decide(self, goes_on: bool) -> None:
        """Set whether the string goes on after the marker, which then is text; otherwise the marker ended the call."""
        self.doubtful = False
        if goes_on:
            self._add(CALL_END)
        else:
            self._tail = self._without_closers()
            self._cut()

    def _closing_from(self, closers: str) -> int:
        """Index in ``closers`` of the first bracket that closes an open value; brackets before it are text."""
        opened = "".join(one.closer for one in reversed(self._open[1:]))
        return next(n for n in range(len(closers) + 1) if opened.startswith("".join(closers[n:].split())))

    def _close_string(self) -> None:
        self.json += [escaped(self._tail), '"']
        self._tail, self._step = "", self._after

    def _closing(self, text: str, at: int) -> int:
        """After a string's delimiter."""
        if space := SPACE.match(text, at):
            self._gap += space.group()
            return space.end()
        found = text[at]
        marker = marker_at(text, at) if found == "<" else ""
        if marker is None:
            return at
        if marker == STRING:
            self._delimiters += 1
            return at + len(STRING)
        if marker:
            self._tail = self._without_closers()  # the brackets came before the delimiter
        if marker or found == "," or self._ends(found):
            self._close_string()
            return at
        if _KEY_BEGUN.match(text, at):
            return at
        self._behind_delimiter(text, at)
        return at

    def _behind_delimiter(self, text: str, at: int) -> None:
        """Text follows the delimiter: the string goes on, or another value or key begins."""
        lost = _LOST.fullmatch(self._tail)
        start = self._closing_from(lost["closers"] or "") if lost else 0
        if lost and (lost["name"] or not (self._inside.is_object or start < len(lost["closers"] or ""))):
            tail, self._tail = self._tail[start:], self._tail[:start]
            self._close_string()
            self._reread(tail)
            if not self.ended:
                self._delimiter()
        elif not self._inside.is_object and (self._gap or self._delimiters > 1):
            self._close_string()
            if self._delimiters > 1:
                self._open_string()
        elif self._inside.is_object and _KEY_FOLLOWS.match(text, at) and self._delimiters == 1:
            self._close_string()
        else:
            self._add(self._gap)
            self._step = self._string

    def _string_key(self, text: str, at: int) -> int:
        """A key in delimiters, or what follows a stray one."""
        found = _ANY.search(text, at)
        stop = found.start() if found else len(text) - partial(text, at, MARKERS)
        if stop > at:
            self._held.append(text[at:stop])
        if found is None:
            return stop
        if found.group() == STRING:
            self._step = self._colon
            return found.end()
        self._cut()
        return stop

    def _quoted(self, text: str, at: int) -> int:
        """A string in JSON's quotes, which models write although they are not part of the format."""
        at, done = self._until_quote(text, at, self.json.append)
        if done:
            self.json.append('"')
            self._step = self._after
        return at

    def _until_quote(self, text: str, at: int, take: Callable[[str], object]) -> tuple[int, bool]:
        if run := _QUOTED.match(text, at):
            take(escaped(run.group()))
            self._tail = run.group().rstrip()[-1:] or self._tail
            return run.end(), False
        if text[at] == '"':
            return at + 1, True
        if text[at] == "<":
            marker = marker_at(text, at)
            if marker in (CALL_START, CALL_END) and self._tail == self._open[0].closer:
                self._cut()
            elif marker is not None:
                take("<")
                at += 1
            return at, False
        if ESCAPE_BEGUN.match(text, at):
            return at, False
        if escape := _ESCAPE.match(text, at):
            take(without_halves(escape.group()))
            return escape.end(), False
        take("\\\\")
        return at + 1, False

    def _single(self, text: str, at: int) -> int:
        """A string in Python's single quotes: held until its end quote comes, since text may begin with an apostrophe."""
        if run := _SINGLE.match(text, at):
            self._held.append(run.group())
            return run.end()
        if text[at] == "\\":
            if at + 1 == len(text):
                return at
            self._held.append(text[at : at + 2])
            return at + 2
        if text[at] == "<":
            marker = marker_at(text, at)
            if marker:
                self._as_apostrophe()
            elif marker == "":
                self._held.append("<")
                at += 1
            return at
        self._gap, self._step = "", self._single_closing
        return at + 1

    def _single_closing(self, text: str, at: int) -> int:
        if space := SPACE.match(text, at):
            self._gap += space.group()
            return space.end()
        found = text[at]
        marker = marker_at(text, at) if found == "<" else ""
        if marker is None:
            return at
        if not (marker or found == "," or self._ends(found) or (self._of_key and found in ":=")):
            self._held += ["'", self._gap]
            self._step = self._single
            return at
        string, self._held = _unescaped("".join(self._held)), []
        if self._of_key:
            self._held, self._step = [string], self._behind_quotes
        else:
            self._begin()
            self.json += ['"', escaped(string), '"']
            self._step = self._after
        return at

    def _as_apostrophe(self) -> None:
        """The single quote began no string: read the held text again with the quote as text."""
        text, self._held = "'" + "".join(self._held), []
        self._step, self._single_quotes = self._key if self._of_key else self._value, False
        self._reread(text)
        self._single_quotes = True
