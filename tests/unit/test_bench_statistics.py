"""Medians, ranges and the interval of a ratio: what they say, and what they refuse to say."""

import random
from statistics import median

import pytest

from sglang_gemma4.benchmark.statistics import ratio, summary


def test_summary_is_median_and_range() -> None:
    found = summary([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.low, found.high, found.n) == (2.5, 1.0, 10.0, 4)


def test_a_clear_difference_is_separated_and_its_interval_holds_the_truth() -> None:
    rng = random.Random(1)
    baseline, other = [rng.gauss(200, 2) for _ in range(10)], [rng.gauss(224, 2) for _ in range(10)]
    found = ratio(baseline, other)
    assert found.value == median(other) / median(baseline)
    assert found.low is not None
    assert found.high is not None
    assert 1.09 < found.low < 1.12 < found.high < 1.15
    assert found.separated


def test_no_difference_is_found_where_there_is_none() -> None:
    """Over many pairs of samples of one distribution about 5% may be separated; a coin's luck is left to 10%."""
    rng = random.Random(2)
    wrong = sum(ratio([rng.gauss(100, 3) for _ in range(6)], [rng.gauss(100, 3) for _ in range(6)]).separated for _ in range(200))
    assert wrong <= 20


def test_the_same_seed_gives_the_same_interval() -> None:
    samples = [100.0, 101, 99, 102, 100.5], [103.0, 104, 101, 105, 103.5]
    assert ratio(*samples, seed=3) == ratio(*samples, seed=3)


def test_faster_one_way_is_slower_the_other() -> None:
    fast, slow = [120.0, 121, 119, 122, 120.5], [100.0, 101, 99, 102, 100.5]
    found = ratio(fast, slow)
    assert found.high is not None
    assert found.high < 1
    assert found.separated


@pytest.mark.parametrize(
    ("baseline", "other"),
    [([100.0], [112.0]), ([100.0] * 5, [112.0] * 5), ([100.0] * 5, [112.0, 113, 111, 112, 114]), ([100.0, 101], [112.0])],
    ids=["one value", "all equal", "one side equal", "one value on one side"],
)
def test_no_interval_where_the_spread_is_unknown(baseline: list[float], other: list[float]) -> None:
    found = ratio(baseline, other)
    assert (found.low, found.high, found.separated) == (None, None, False)
    assert found.value == pytest.approx(1.12, rel=0.01)


def test_an_interval_without_width_is_none() -> None:
    """Nine equal values of ten: nearly every resample has the same median."""
    found = ratio([100.0] * 9 + [101.0], [112.0] * 9 + [113.0])
    assert (found.low, found.high, found.separated) == (None, None, False)


@pytest.mark.parametrize(("size", "separated"), [(2, False), (3, False), (4, True)])
def test_too_few_values_never_separate(size: int, separated: bool) -> None:
    """Three against three fall apart by chance once in ten; four against four once in 35."""
    found = ratio([100.0 + i for i in range(size)], [150.0 + i for i in range(size)])
    assert found.low is not None
    assert found.low > 1
    assert found.separated is separated


@pytest.mark.parametrize(
    ("baseline", "other", "says"),
    [([], [1.0], "baseline is empty"), ([1.0], [0.0], "above 0"), ([1.0], [float("nan")], "not finite")],
)
def test_bad_samples_are_refused(baseline: list[float], other: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ratio(baseline, other)


def test_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        summary([])
