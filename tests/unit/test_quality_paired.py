"""Paired statistics against values worked out by hand."""

import pytest

from sglang_gemma4.quality import paired


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (1, 0, 1.0),
        (0, 6, 2 / 2**6),  # all one way: twice the probability of six heads
        (9, 1, 2 * (1 + 10) / 2**10),
        (8, 2, 2 * (1 + 10 + 45) / 2**10),
    ],
)
def test_mcnemar(only_a: int, only_b: int, p: float) -> None:
    assert paired.mcnemar(only_a, only_b) == pytest.approx(p, rel=1e-12)


def test_character_agreement_is_the_common_prefix_over_the_longer_text() -> None:
    assert paired.character_agreement([("abcd", "abXdef")]) == pytest.approx(2 / 6)
    assert paired.character_agreement([("", ""), ("same", "same")]) == 1.0
    assert paired.character_agreement([("ab", "ab"), ("xx", "yy")]) == pytest.approx(0.5)
    assert paired.character_agreement([]) == 1.0


def row(ids: list[int], logprobs: list[float], runner_up: list[list[float]] | None = None) -> dict[str, object]:
    return {"id": "q", "token_ids": ids, "tokens": [f"t{i}" for i in ids], "logprobs": logprobs, "runner_up": runner_up or []}


def test_the_first_differing_token_has_both_log_probabilities_on_both_sides() -> None:
    a = row([1, 2, 3], [-0.1, -0.69, -0.2], [[9, -4], [7, -0.70], [9, -4]])
    b = row([1, 7, 3], [-0.1, -0.68, -0.2], [[9, -4], [5, -0.71], [9, -4]])
    found = paired.first_difference(a, b)
    assert found == {
        "id": "q",
        "position": 1,
        "a": {"token": "t2", "logprob": -0.69, "other": -0.70},
        "b": {"token": "t7", "logprob": -0.68, "other": None},  # A's token was not B's runner-up
    }
    assert paired.first_difference(a, a) is None


def test_an_answer_that_ends_earlier_differs_at_its_end() -> None:
    found = paired.first_difference(row([1, 2], [-0.1, -0.2]), row([1], [-0.1]))
    assert found is not None
    assert (found["position"], found["a"]["token"], found["b"]["token"]) == (1, "t2", None)


def test_drift_looks_at_shared_tokens_only() -> None:
    assert paired.drift(row([1, 2, 3], [-0.1, -0.5, -9]), row([1, 2, 4], [-0.1, -0.75, -1])) == pytest.approx(0.25)
    assert paired.drift(row([1], [-0.1]), row([1], [-0.1])) == 0
    assert paired.drift(row([1], [-0.1]), row([2], [-0.9])) is None
    assert paired.drift(row([], []), row([], [])) is None


def test_mean_difference_weighs_windows_by_their_tokens() -> None:
    mean, interval = paired.mean_difference([10.0, 0.0], [10, 30])
    assert mean == pytest.approx(0.25)
    assert interval == pytest.approx([0.0, 1.0])  # two windows: a resample may hold one of them twice
    assert paired.mean_difference([1.0], [4]) == (0.25, None)
    assert paired.mean_difference([2.0] * 20, [4] * 20)[1] == pytest.approx([0.5, 0.5])
