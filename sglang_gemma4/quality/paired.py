"""Statistics of paired runs: exact McNemar test, agreement of texts, first differing token, interval of a mean difference."""

from collections.abc import Sequence
from typing import Any

from scipy import stats  # type: ignore[import-untyped]

RESAMPLES = 9999


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact McNemar p-value from the discordant pairs: right in A only, right in B only. 1.0 if there are none.

    Under the null hypothesis a discordant pair falls either way with probability one half: a binomial test.
    """
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue) if only_a + only_b else 1.0


def character_agreement(pairs: Sequence[tuple[str, str]]) -> float:
    """Share of characters before the first difference: sum of common prefixes over sum of the longer texts of all pairs.

    After their first different token greedy continuations have little in common, so only the prefix counts. 1.0 if
    all pairs are equal or empty.
    """
    longest = sum(max(len(a), len(b)) for a, b in pairs)
    return sum(_shared(*pair) for pair in pairs) / longest if longest else 1.0


def _shared(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def first_difference(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any] | None:
    """First position where two rows' tokens differ: for each side the token, its log-probability, and that of the other side's token.

    ``token`` is None if a side had ended, ``other`` if the other side's token was not the runner-up. None if the tokens are the same, or
    a row has none.
    """
    ids_a, ids_b = a["token_ids"], b["token_ids"]
    if not ids_a or not ids_b or ids_a == ids_b:
        return None
    at = _shared(ids_a, ids_b)
    return {"id": a["id"], "position": at, "a": _side(a, b, at), "b": _side(b, a, at)}


def _side(own: dict[str, Any], other: dict[str, Any], at: int) -> dict[str, Any]:
    if at >= len(own["token_ids"]):
        return {"token": None, "logprob": None, "other": None}
    wanted = other["token_ids"][at] if at < len(other["token_ids"]) else None
    token, value = own["runner_up"][at] if at < len(own["runner_up"]) else (None, None)
    return {
        "token": own["tokens"][at] if at < len(own["tokens"]) else str(own["token_ids"][at]),
        "logprob": own["logprobs"][at],
        "other": value if wanted is not None and token == wanted else None,
    }


def drift(a: dict[str, Any], b: dict[str, Any]) -> float | None:
    """Largest difference in log-probability (nats) over the tokens before the first different one; None if there are none."""
    shared = _shared(a["token_ids"], b["token_ids"])
    values = zip(a["logprobs"][:shared], b["logprobs"], strict=False)
    return max((abs(x - y) for x, y in values if x is not None and y is not None), default=None)


def mean_difference(differences: Sequence[float], counts: Sequence[int]) -> tuple[float, list[float] | None]:
    """(sum of ``differences`` / sum of ``counts``, its 95% bootstrap interval over windows).

    The interval is None for fewer than two windows. Deterministic: the resampling has a fixed seed.
    """
    import numpy as np

    mean = sum(differences) / sum(counts)
    if len(differences) < 2:
        return mean, None

    def ratio(parts: Any, weights: Any, axis: int = -1) -> Any:
        return parts.sum(axis=axis) / weights.sum(axis=axis)

    data = (np.asarray(differences, dtype=float), np.asarray(counts, dtype=float))
    found = stats.bootstrap(data, ratio, paired=True, vectorized=True, n_resamples=RESAMPLES, method="percentile", rng=0)
    return mean, [float(found.confidence_interval.low), float(found.confidence_interval.high)]
