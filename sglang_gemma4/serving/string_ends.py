"""Whether the marker of a call's end inside a string ended the call, whose string then has lost its delimiter. What follows tells."""

import re

from sglang_gemma4.serving.call_heads import HEAD, HEAD_BEGUN, may_become
from sglang_gemma4.serving.markers import CALL_START, STRING, partial

_SPACES = 8
_NEXT = re.compile(rf"{re.escape(CALL_START)}|{re.escape(STRING)}(?P<space>\s{{0,{_SPACES}}})(?P<ends>[,}}\])])?")


def goes_on(text: str, at: int, closed: bool) -> tuple[int, bool | None]:
    """Where reading stopped behind the marker, and whether the string goes on; None if more text is needed.

    Its own delimiter goes on with it; another call does not.

    Args:
        closed: brackets that close the call stand before the marker.
    """
    while found := _NEXT.search(text, at):
        at = found.end()
        if found.group() != CALL_START:
            if found["ends"] is None and at == len(text) and len(found["space"]) < _SPACES:
                return found.start(), None
            return found.start(), found["ends"] is not None or not closed
        if closed or HEAD.match(text, at):
            return found.start(), False
        if may_become(HEAD_BEGUN, text, at):
            return found.start(), None
    return len(text) - partial(text, at, (CALL_START, STRING)), None


def cut(behind: str, closed: bool) -> bool:
    """Whether the answer's end cut the string, where ``behind`` is all that followed the marker."""
    return not closed and bool(behind.strip())
