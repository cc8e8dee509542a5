"""Numbering of streamed tool calls."""

from collections.abc import Sequence
from typing import Protocol


class CallDelta(Protocol):
    """A piece of a streamed call: the first one of a call has its name, the others add to its arguments."""

    tool_index: int
    name: str | None


def number_by_call(deltas: Sequence[CallDelta], calls_begun: int) -> None:
    """Number the deltas of one chunk by call (0, 1, ...), in place.

    OpenAI clients join deltas by index, so an index must mean one call of the answer, whichever tool it names.
    ``calls_begun`` counts the calls begun in the answer so far, those in ``deltas`` included. A delta without a name
    belongs to the call begun last before it.
    """
    index = calls_begun - 1 - sum(1 for delta in deltas if delta.name)
    for delta in deltas:
        if delta.name:
            index += 1
        delta.tool_index = index
