"""Counts the tokens of an answer's thoughts, with the same markers as the answer's parser."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.serving.markers import CALL_END, CALL_START, LABEL, THOUGHT_END, THOUGHT_START

_RECENT = 256  # tokens; more than an MTP step adds
OPEN_THOUGHT = "gemma4_open_thought"
"""The key in a request's custom parameters that tells the scheduler that the prompt ends inside a thought."""


@dataclass(frozen=True)
class MarkerIds:
    """Token ids of the markers and of the label."""

    thought_start: int
    thought_end: int
    call_start: int
    call_end: int
    label: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> "MarkerIds | None":
        """The ids in a transformers tokenizer; None if a marker is not a single token."""
        ids = [tokenizer.convert_tokens_to_ids(marker) for marker in (THOUGHT_START, THOUGHT_END, CALL_START, CALL_END)]
        if any(number is None or number == tokenizer.unk_token_id for number in ids):
            return None
        start, end, call_start, call_end = ids
        return cls(start, end, call_start, call_end, tuple(tokenizer.encode(LABEL, add_special_tokens=False)))


class ThoughtTokens:
    """Counts the tokens of an answer's thoughts, with their markers; a thought without text counts nothing.

    Args:
        prompt: the prompt's token ids; a template may open the thought at its end.
        opened: whether the prompt ends inside a thought, however the thought began.
        thinking: whether the request asked for thinking; the answer may then begin with a thought's label without its marker.

    Attributes:
        found: number of tokens counted.
        seen: number of the answer's tokens that were read.
        last: the last token read; None before the first.
    """

    def __init__(self, ids: MarkerIds, prompt: Sequence[int], thinking: bool, opened: bool = False) -> None:
        opening = [ids.thought_start, *ids.label]
        self.found = self.seen = 0
        self.last: int | None = None
        self._ids = ids
        opened = opened or list(prompt[-len(opening) :]) == opening
        self._state = "thought" if opened else "begin" if thinking else "text"
        self._before = 0  # tokens of a marker and label, counted when the thought has text
        self._label = 0  # tokens of the label that were matched
        self._recent: deque[int] = deque(maxlen=_RECENT)  # ``found`` after each of the last tokens

    def read(self, answer: Sequence[int], length: int) -> int:
        """Read the answer's tokens up to ``length``, without those already read; returns the number of thought tokens."""
        for token in answer[self.seen : length]:
            self._token(token)
            self._recent.append(self.found)
            self.last = token
        self.seen = max(self.seen, length)
        return self.found

    def found_in(self, length: int) -> int | None:
        """Number of thought tokens among the first ``length`` tokens read; None if that is too far back."""
        behind = self.seen - length
        return self._recent[-1 - behind] if 0 <= behind < len(self._recent) else None

    def read_from(self, answer: Sequence[int]) -> bool:
        """Whether ``answer`` still has the last token read at its place. Earlier tokens are not compared."""
        return self.seen == 0 or (len(answer) >= self.seen and answer[self.seen - 1] == self.last)

    def _token(self, token: int) -> None:
        ids, state = self._ids, self._state
        if state == "call":
            self._state = "text" if token == ids.call_end else "call"
        elif token == ids.thought_start:
            self._state, self._before, self._label = "label", 1, 0
        elif token == ids.call_start:
            self._state = "call"
        elif token == ids.thought_end:
            self.found += state == "thought"
            self._state = "text"
        elif state in ("begin", "label"):
            self._may_be_label(token)
        elif state == "thought":
            self.found += 1

    def _may_be_label(self, token: int) -> None:
        label = self._ids.label
        if self._label < len(label) and token == label[self._label]:
            self._label += 1
            self._before += 1
        elif self._state == "begin" and self._label < len(label):
            self._state = "text"
        else:
            self.found += self._before + 1
            self._before, self._state = 0, "thought"


def count(req: Any, ids: MarkerIds, length: int) -> int:
    """Number of thought tokens among the first ``length`` tokens of a request's answer.

    The count is kept with the request, also if a stop leaves out tokens that were counted. An answer that was cut or rewritten is counted
    from its beginning.
    """
    counted: ThoughtTokens | None = getattr(req, "gemma4_thought_tokens", None)
    if counted is not None and not counted.read_from(req.output_ids):
        counted = None
    if counted is not None and counted.seen > length and (found := counted.found_in(length)) is not None:
        return found
    if counted is None or counted.seen > length:
        opened = (req.sampling_params.custom_params or {}).get(OPEN_THOUGHT) is True
        counted = req.gemma4_thought_tokens = ThoughtTokens(ids, req.origin_input_ids, bool(req.require_reasoning), opened)
    return counted.read(req.output_ids, length)
