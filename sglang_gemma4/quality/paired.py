"""Statistics of paired runs: exact McNemar test, agreement of texts, first differing token, interval of a mean difference."""

from collections.abc import Sequence
from typing import Any

from scipy import stats  # type: ignore[import-untyped]

RESAMPLES = 9999


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact McNemar p-value from the discordant pairs: right in A only, right in B only. 1.0 without any.

    Under the null hypothesis a discordant pair falls either way with probability one half: a binomial test.
    """
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue) if only_a + only_b else 1.0


def character_agreement(pairs: Sequence[tuple[str, str]]) -> float:
    """The share of characters before the texts part: common prefixes over the longer texts, summed over all pairs.

    Greedy continuations have little in common after their first different token, so what follows it says nothing.
    1.0 where all pairs are equal, or empty.
    """
    longest = sum(max(len(a), len(b)) for a, b in pairs)
    return sum(_common_prefix(a, b) for a, b in pairs) / longest if longest else 1.0


def _common_prefix(a: str, b: str) -> int:
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def first_difference(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any] | None:
    """Where two rows' tokens part: ``position``, and for each side the token, its log-probability, and that of the other side's token.

    ``token`` is None where a side had ended. ``other`` is None where the other side's token was not the runner-up.
    None when the tokens are the same, or a row holds none.
    """
    ids_a, ids_b = a["token_ids"], b["token_ids"]
    if not ids_a or not ids_b or ids_a == ids_b:
        return None
    shorter = min(len(ids_a), len(ids_b))
    at = next((i for i in range(shorter) if ids_a[i] != ids_b[i]), shorter)
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
    """The largest difference in log-probability (nats) of the tokens that both rows generated, up to the first different one.

    None where the rows share no token with a log-probability.
    """
    largest = None
    for own, other, x, y in zip(a["token_ids"], b["token_ids"], a["logprobs"], b["logprobs"], strict=False):
        if own != other:
            break
        if x is not None and y is not None:
            largest = max(largest or 0.0, abs(x - y))
    return largest


def mean_difference(differences: Sequence[float], counts: Sequence[int]) -> tuple[float, list[float] | None]:
    """(sum of ``differences`` / sum of ``counts``, its 95% bootstrap interval); windows are resampled, a window's tokens together.

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
