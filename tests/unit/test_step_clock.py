"""When steps end, by the card: what is told of events, in which order, and what no card keeps as it is."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4 import patching
from sglang_gemma4.patching import switches
from sglang_gemma4.speculative import prompt_chunks, step_clock
from sglang_gemma4.speculative.beside_bounds import BALANCED, LATENCY, Gap


class Event:
    """Of a stream whose time is ``now`` when it is recorded, in milliseconds."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.waited = False

    def record(self, stream: Any) -> None:
        self.stream, self.at = stream, Event.now

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, other: "Event") -> float:
        assert self.waited
        assert other.waited
        return other.at - self.at


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(step_clock, "_clock", None)


def scheduler(device: str, overlap: bool = True) -> Any:
    return SimpleNamespace(device=device, enable_overlap=overlap, forward_stream="of forwards")


def test_a_step_takes_from_the_end_of_the_one_before() -> None:
    ours = scheduler("cuda")
    step_clock.use_card(None, ours)
    assert step_clock.by_card()
    results = [SimpleNamespace() for _ in range(3)]
    for result, Event.now in zip(results, (7.0, 30.5, 31.0), strict=True):
        step_clock.mark(ours, result)
    assert results[0].end_of_step.stream == "of forwards"
    assert [step_clock.ended(result) for result in results] == pytest.approx([0.0, 0.0235, 0.024]), "whenever they are read"
    alone = SimpleNamespace()
    step_clock.mark(scheduler("cuda", overlap=False), alone)
    assert alone.end_of_step.stream is None, "the current one"


def test_without_a_card_the_host_s_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    step_clock.use_card(None, scheduler("cpu"))
    result = SimpleNamespace()
    step_clock.mark(scheduler("cpu"), result)
    assert not step_clock.by_card()
    assert vars(result) == {}
    monkeypatch.setattr(time, "monotonic", lambda: 12.5)
    assert step_clock.ended(result) == 12.5


@pytest.mark.parametrize(
    ("given", "device", "bound", "told"),
    [
        ("", "cuda", BALANCED, None),
        ("latency", "cuda", LATENCY, None),
        ("latency", "cpu", Gap(), "bounded by two decode steps alone"),
        ("", "cpu", Gap(), "bounded by two decode steps alone"),
        ("50ms", "cpu", Gap(seconds=0.05), "bounds pauses by times as the host reads them"),
        ("2", "cpu", Gap(), None),
    ],
)
def test_what_bounds_gaps_by_whichever_clock(
    given: str, device: str, bound: Gap, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = patching.Outcome(prompt_chunks.NAME, "SWITCH", "", "active")
    monkeypatch.setattr(patching.declare, "_outcomes", {prompt_chunks.NAME: outcome})
    monkeypatch.setenv(switches.BESIDE_GAP, given)
    step_clock.use_card(None, scheduler(device))
    prompt_chunks.admission.cache_clear()
    try:
        assert prompt_chunks.admission().gap == bound
    finally:
        prompt_chunks.admission.cache_clear()
    assert len(outcome.facts) == (told is not None)
    assert all(told is not None and told in fact for fact in outcome.facts)
