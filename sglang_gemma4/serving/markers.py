"""The markers of a Gemma 4 answer, each a single token of the model."""

CALL_START = "<|tool_call>"
CALL_END = "<tool_call|>"
THOUGHT_START = "<|channel>"
THOUGHT_END = "<channel|>"
LABEL = "thought\n"
"""The first line of a thought, after its marker."""
STRING = '<|"|>'
"""Begins and ends a string in the arguments of a call."""

_LONGEST = max(map(len, (CALL_START, CALL_END, THOUGHT_START, THOUGHT_END, STRING)))


def partial(text: str, at: int, markers: tuple[str, ...]) -> int:
    """Length of the end of ``text[at:]`` that may become one of ``markers`` with more text. Markers have ``<`` only as first character."""
    begin = text.rfind("<", max(at, len(text) - _LONGEST))
    end = text[begin:] if begin >= 0 else ""
    return len(end) if end and any(marker.startswith(end) and marker != end for marker in markers) else 0
