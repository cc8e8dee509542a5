"""Patterns of how a call begins: after its marker, or in the text of models that leave the marker out."""

import re

from sglang_gemma4.serving.markers import CALL_END, STRING, partial

_NAME_LIMIT = 256
_DELIMITER = f"(?:{re.escape(STRING)})?"  # a stray one
_NAME = rf"[^\s{{}}()<>\"]{{1,{_NAME_LIMIT}}}"
HEAD = re.compile(
    rf"\s{{0,8}}{_DELIMITER}(?::?call:|:)\s{{0,8}}(?P<name>{_NAME})\s{{0,8}}{_DELIMITER}(?P<opener>[{{(]|(?={re.escape(CALL_END)}))"
)
HEAD_BEGUN = re.compile(rf"\s{{0,8}}{_DELIMITER}(?:(?::?call:|:)\s{{0,8}}(?:{_NAME}\s{{0,8}}{_DELIMITER})?|:?(?:c(?:a(?:ll?)?)?)?)")
UNMARKED = r"call:|c(?:a(?:ll?)?)?\Z"
_ARGUMENT = r"\s{0,8}(?:[)}{\"']|[\w.$-]{1,64}\s{0,8}[=:]|" + re.escape(STRING) + ")"
UNMARKED_HEAD = re.compile(rf"call:(?P<name>{_NAME})(?P<opener>[{{(])(?={_ARGUMENT})")
UNMARKED_BEGUN = re.compile(rf"c(?:a(?:l(?:l(?::(?:{_NAME}(?:[{{(]\s{{0,8}}(?:[\w.$-]{{1,64}}\s{{0,8}})?)?)?)?)?)?)?")


def may_become(begun: re.Pattern[str], text: str, at: int) -> bool:
    """Whether the rest of ``text`` from ``at`` may become a call's head when more text comes."""
    found = begun.match(text, at)
    stop = found.end() if found else at
    return stop == len(text) or partial(text, stop, (CALL_END, STRING)) == len(text) - stop
