"""Medians, ranges, and the confidence in a ratio of two medians."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

CONFIDENCE = 0.95
RESAMPLES = 9999


@dataclass(frozen=True)
class Summary:
    """Median and range (smallest to largest) of ``n`` values, in the unit of the values."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Ratio:
    """Median of the other sample over median of the baseline, with its 95% bootstrap interval.

    ``low`` and ``high`` are None if the samples cannot give an interval. ``separated``: the interval excludes 1 and
    the samples are large enough to say so.
    """

    value: float
    low: float | None = None
    high: float | None = None
    separated: bool = False


def summary(values: Sequence[float]) -> Summary:
    """Median, smallest and largest of ``values``.

    Raises:
        ValueError: ``values`` is empty or holds something not finite.
    """
    _check(values, "values")
    return Summary(median(values), min(values), max(values), len(values))


def ratio(baseline: Sequence[float], other: Sequence[float], seed: int = 0) -> Ratio:
    """Ratio of medians, other over baseline, with a percentile bootstrap interval of two unpaired samples.

    Percentile, not BCa: BCa's jackknife is undefined for a median whose neighbours tie. No interval is given when a sample has one
    value, when all its values are equal (the bootstrap would see no spread and claim certainty), or when the interval has no width.

    ``separated`` also asks that a rank test of samples of these sizes could reach 5% at all, 2 / C(n + m, n) <= 0.05: with three
    values against three (1 in 10) the bootstrap of a median is far narrower than its 95% promises.

    Raises:
        ValueError: a sample is empty, holds something not finite, or something that is not above 0.
    """
    import numpy as np
    from scipy.stats import bootstrap  # type: ignore[import-untyped, unused-ignore] # takes a second, and only reports need it

    for name, sample in (("baseline", baseline), ("other", other)):
        _check(sample, name)
        if min(sample) <= 0:
            raise ValueError(f"{name} holds {min(sample)}, but a ratio needs values above 0; leave failed repetitions out")
    value = median(other) / median(baseline)
    if any(min(sample) == max(sample) for sample in (baseline, other)):  # also for a single value
        return Ratio(value)

    def of_medians(first: Any, second: Any, axis: int = -1) -> Any:
        return np.median(second, axis=axis) / np.median(first, axis=axis)

    result = bootstrap(
        (np.asarray(baseline, float), np.asarray(other, float)),
        of_medians,
        n_resamples=RESAMPLES,
        vectorized=True,
        paired=False,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    low, high = map(float, result.confidence_interval)
    if not low < high:
        return Ratio(value)
    smallest_p = 2 / math.comb(len(baseline) + len(other), len(baseline))
    return Ratio(value, low, high, (low > 1 or high < 1) and smallest_p <= 1 - CONFIDENCE + 1e-9)


def _check(values: Sequence[float], name: str) -> None:
    if not values:
        raise ValueError(f"{name} is empty; at least one counted repetition is needed")
    if strange := [value for value in values if not math.isfinite(value)]:
        raise ValueError(f"{name} holds values that are not finite: {strange}")
