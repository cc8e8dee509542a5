"""Writes the JSON of a tool call's arguments in pieces that are never revised."""

import json
import re
from collections import Counter
from dataclasses import dataclass

from sglang_gemma4.serving.schema_types import UNKNOWN, Schemas, element, member

HIGH, LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
"""Escapes of the two halves (surrogates) of a character. One without the other can be decoded, but not encoded as UTF-8."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPES = re.compile(rf"\\\\|{HIGH}{LOW}|(?P<half>{HIGH}|{LOW})")


def encodable(text: str) -> str:
    """``text`` with U+FFFD in place of unpaired surrogates, which UTF-8 cannot encode."""
    return _SURROGATE.sub("\ufffd", text)


def without_halves(text: str) -> str:
    """JSON ``text`` with U+FFFD in place of escaped unpaired surrogates."""
    return _ESCAPES.sub(lambda found: "\\ufffd" if found["half"] else found[0], text)


def escaped(text: str) -> str:
    """``text`` escaped for a JSON string, without unpaired surrogates."""
    return json.dumps(encodable(text), ensure_ascii=False)[1:-1]


@dataclass
class _Open:
    """An object or array that is not closed yet: what closes it, its schemas and how many values it has."""

    closer: str
    """``}`` or ``]``; ``)`` for a call in round brackets."""
    schemas: Schemas
    count: int = 0
    inside: Schemas = UNKNOWN
    """The schemas of the value being read."""

    @property
    def is_object(self) -> bool:
        return self.closer != "]"


class ArgumentsJson:
    """Writes the object of a call's arguments.

    Attributes:
        json: pieces of JSON text; the caller takes them.
    """

    def __init__(self, schemas: Schemas, closer: str) -> None:
        self.json: list[str] = ["{"]
        self._open = [_Open(closer, schemas)]
        self._closers = Counter(closer)

    @property
    def _inside(self) -> _Open:
        """The innermost open object or array."""
        return self._open[-1]

    def _ends(self, found: str) -> bool:
        """Whether a character is a closing bracket; a round one is only in a call that began with one."""
        return found in "}]" or (found == ")" and self._closers[")"] > 0)

    def _reclose(self, closer: str) -> None:
        """Make the arguments end at ``closer``, whatever bracket they began with."""
        self._open[0].closer = closer
        self._closers = Counter(closer)

    def _comma(self) -> str:
        self._inside.count += 1
        return ", " if self._inside.count > 1 else ""

    def _write_key(self, key: str) -> None:
        self.json.append(f'{self._comma()}"{escaped(key)}": ')
        self._inside.inside = member(self._inside.schemas, key)

    def _begin(self) -> None:
        """A value begins; in an array, write the comma before it and look up its schema."""
        if not self._inside.is_object:
            self._inside.inside = element(self._inside.schemas, self._inside.count)
            self.json.append(self._comma())

    def _push(self, opener: str) -> None:
        """Begin an object or array, which is the value being read."""
        self.json.append(opener)
        closer = "}" if opener == "{" else "]"
        self._closers[closer] += 1
        self._open.append(_Open(closer, self._inside.inside))

    def _pop(self) -> str:
        """Close the innermost object or array; returns what closes it in the text."""
        closed = self._open.pop()
        self.json.append("}" if closed.is_object else "]")
        self._closers[closed.closer] -= 1
        return closed.closer

    def _pop_to(self, closer: str) -> bool:
        """Close the innermost value that ``closer`` ends, and all inside it. Returns False if there is none.

        A curly bracket also ends a call that began with a round one, if nothing else is open.
        """
        if not self._closers[closer]:
            if closer != "}" or len(self._open) > 1:
                return False
            closer = self._inside.closer
        while self._pop() != closer:
            pass
        return True
