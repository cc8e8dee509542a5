"""The end of an answer inside an accepted run: asked after each token, whatever else is left as it was."""

from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest

from sglang_gemma4.speculative import stops


@dataclass
class Sampling:
    """The two parameters that are read."""

    stop_strs: list[str] = field(default_factory=list)
    stop_regex_strs: list[str] = field(default_factory=list)


@dataclass
class Request:
    """What ``ask_after_each`` touches of a request."""

    output_ids: Any
    sampling_params: Sampling = field(default_factory=Sampling)
    grammar: str | None = "grammar"
    to_finish: str | None = None
    finished_len: int | None = None
    ended: bool = False
    seen: list[tuple[list[int], str | None]] = field(default_factory=list)

    def finished(self) -> bool:
        return self.ended


def ask(request: Request, ends_at: int, accepted: int) -> None:
    def update(req: Request, new: int) -> None:
        assert new == 1
        req.seen.append((list(req.output_ids), req.grammar))
        req.ended = req.output_ids[-1] == ends_at

    stops.ask_after_each(update, request, accepted)


def test_ends_at_the_first_token_that_ends_it_and_keeps_all() -> None:
    request = Request(array("q", [1, 2, 3, 4, 5]))
    ask(request, ends_at=4, accepted=3)
    assert [tokens for tokens, _ in request.seen] == [[1, 2, 3], [1, 2, 3, 4]]
    assert request.finished_len == 4
    assert list(request.output_ids) == [1, 2, 3, 4, 5]


def test_the_grammar_is_asked_at_the_end_of_the_run() -> None:
    request = Request(array("q", [1, 2, 3, 4]))
    ask(request, ends_at=9, accepted=4)
    assert [grammar for _, grammar in request.seen] == [None, None, None, "grammar"]
    assert request.grammar == "grammar"
    assert request.finished_len is None
    assert list(request.output_ids) == [1, 2, 3, 4]


def test_an_error_leaves_the_request_whole() -> None:
    def update(req: Request, new: int) -> None:
        raise ValueError("broken")

    request = Request(array("q", [1, 2, 3]))
    with pytest.raises(ValueError, match="broken"):
        stops.ask_after_each(update, request, 2)
    assert list(request.output_ids) == [1, 2, 3]
    assert request.grammar == "grammar"


@pytest.mark.parametrize(
    ("request_", "matters"),
    [
        (Request([], Sampling(["a"])), True),
        (Request([], Sampling(stop_regex_strs=["a"])), True),
        (Request([]), False),
        (Request([], Sampling(["a"]), to_finish="abort"), False),
        (Request([], Sampling(["a"]), ended=True), False),
    ],
)
def test_when_the_order_matters(request_: Request, matters: bool) -> None:
    assert stops.order_matters(request_) is matters
