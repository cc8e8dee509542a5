"""Prompt tokens beside running requests, by times of a made-up card."""

import pytest

from sglang_gemma4.speculative.admission import LEAST, SHARE, START, Admission

PLAIN, LAUNCHES, TOKEN = 0.010, 0.002, 0.00001
"""Seconds of a plain step, of a joined step's launches, of a prompt token."""


def card(admission: Admission, prefills: dict[int, float], joined: tuple[int, ...], running: int = 32) -> None:
    """Steps of this card: four plain ones, then prefills alone, then joined ones, three of each."""
    now = 0.0
    admission.arrived(0, running, now)
    for tokens, requests, seconds in (
        *[(0, running, PLAIN)] * 4,
        *((size, 0, took) for size, took in prefills.items() for _ in range(3)),
        *((size, running, PLAIN + LAUNCHES + TOKEN * size) for size in joined for _ in range(3)),
    ):
        now += seconds
        admission.arrived(tokens, requests, now)


def test_nothing_is_known_at_first() -> None:
    admission = Admission(2.0)
    assert admission.tokens(32, 9000, 8192) == START
    assert admission.tokens(32, 9000, 128) == 128
    assert not admission.holds(32, 1, 20, 0.0)


@pytest.mark.parametrize(("gap", "tokens"), [(2.0, 800), (1.5, 300), (3.0, 1800)])
def test_gaps_stay_within_the_operator_s_bound(gap: float, tokens: int) -> None:
    admission = Admission(gap)
    card(admission, {}, (64, 200, 400, 1000, 2000))
    found = admission.tokens(32, 300, 8192)
    assert found == pytest.approx(tokens, rel=0.1)
    assert LAUNCHES + TOKEN * found <= (gap - 1.0) * PLAIN * 1.01


def test_few_samples_and_stalls_change_nothing() -> None:
    admission = Admission(2.0)
    card(admission, {}, (200, 400, 1000, 2000))
    before = admission.tokens(32, 300, 8192)
    admission.arrived(400, 32, 1e6)
    admission.pause()
    admission.arrived(400, 32, 2e6)
    assert admission.tokens(32, 300, 8192) == pytest.approx(before, rel=0.1)


def test_long_prompts_get_on_at_half_their_rate_in_turn() -> None:
    """A small batch whose launches alone exceed the bound: the bound gives way, as far as the rate asks for."""
    admission = Admission(1.1)
    prefill = 0.004 + TOKEN * 4096
    card(admission, {4096: prefill}, (64, 200, 400, 1000, 2000))
    found = admission.tokens(32, 4096, 4096)
    assert found > LEAST
    rate = found / (PLAIN + LAUNCHES + TOKEN * found)
    assert rate >= SHARE * 4096 / (PLAIN + prefill) * 0.95
    assert admission.tokens(32, 40, 4096) == LEAST, "nothing long waits"


def test_a_few_tokens_wait_for_others_but_not_long() -> None:
    admission = Admission(4.0)
    card(admission, {}, (64, 200, 400, 1000, 2000, 4000))
    held = [admission.holds(32, 1, 64, PLAIN * step) for step in range(6)]
    assert held[0], "one empty place of 32 costs less than a step's launches"
    assert not all(held[:4]), "gap - 1 plain steps are the longest"
    assert not admission.holds(32, 1, 3000, 1.0), "enough for a step"
    assert not admission.holds(2, 2, 64, 2.0), "all places are empty"
    assert not admission.holds(32, 0, 0, 3.0)
