"""Counters on SGLang's /metrics: hit rates of the two KV pools, and what holds requests back.

A prompt's tokens are found in the cache only up to a position whose sliding window is cached too. SGLang's
``cached_tokens_total`` counts those. We also count what full-attention KV alone would have given
(``MatchResult.full_kv_hit_length``): the difference is prefilled again because a window was evicted while the full KV
stayed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.memory import bound, own_window

PREFIX = "sglang:gemma4_"


@dataclass
class Hits:
    """What this process (a scheduler) has counted since it started, in tokens."""

    prompt: int = 0
    hit: int = 0
    full_hit: int = 0
    missed: int = 0
    full_evicted: int = 0
    swa_evicted: int = 0


HITS = Hits()

COUNTERS: dict[str, tuple[Any, str, str]] = {
    f"{PREFIX}prompt_tokens_total": (HITS, "prompt", "Prompt tokens of requests when they were first admitted to a prefill."),
    f"{PREFIX}hit_tokens_total": (HITS, "hit", "Prompt tokens found in both KV pools, on the device or on the host."),
    f"{PREFIX}full_hit_tokens_total": (HITS, "full_hit", "Prompt tokens found in the full-attention KV pool, whatever the other has."),
    f"{PREFIX}window_missed_tokens_total": (
        HITS,
        "missed",
        "Prompt tokens found in the full-attention KV pool and prefilled again because their sliding window was not there.",
    ),
    f"{PREFIX}full_evicted_tokens_total": (HITS, "full_evicted", "Tokens whose full-attention KV was evicted from the radix tree."),
    f"{PREFIX}swa_evicted_tokens_total": (
        HITS,
        "swa_evicted",
        "Tokens whose sliding-window KV was evicted from the radix tree, with or without their full-attention KV.",
    ),
    f"{PREFIX}windows_taken_back_total": (
        own_window.COUNTS,
        "taken_back",
        "Times a running request took its prompt's last window out of the radix tree to free sliding-window KV.",
    ),
    f"{PREFIX}window_tokens_taken_back_total": (own_window.COUNTS, "taken_tokens", "Tokens of the radix tree's nodes taken that way."),
    f"{PREFIX}windows_unlocked_total": (
        own_window.COUNTS,
        "unlocked",
        "Times the lock on a prompt's window ended early because its request's window had passed the prompt.",
    ),
    f"{PREFIX}window_take_backs_refused_total": (
        own_window.COUNTS,
        "refused",
        "Times a running request could not take its window back: another request reads it or goes on from it.",
    ),
    f"{PREFIX}waiting_seconds_total": (bound.BOUND, "waited", "Seconds in which a request waited in the queue, for whatever reason."),
    f"{PREFIX}full_bound_seconds_total": (bound.BOUND, "by_full", "Seconds in which a request waited for full-attention KV."),
    f"{PREFIX}swa_bound_seconds_total": (bound.BOUND, "by_sliding", "Seconds in which a request waited for sliding-window KV."),
    f"{PREFIX}limit_bound_seconds_total": (
        bound.BOUND,
        "by_limit",
        "Seconds in which a request waited because as many ran as may (--max-running-requests).",
    ),
    f"{PREFIX}full_bound_retractions_total": (
        bound.BOUND,
        "retracted_by_full",
        "Times that running requests were retracted because a decode step found no full-attention KV.",
    ),
    f"{PREFIX}swa_bound_retractions_total": (
        bound.BOUND,
        "retracted_by_sliding",
        "Times that running requests were retracted because a decode step found no sliding-window KV.",
    ),
}
"""By name: the object that counts, its field, and what is counted."""

_FULL_HIT = "gemma4_full_hit"


class _Exported:
    """The counters of this process and the value each was last set to; empty if the server exports no metrics."""

    def __init__(self) -> None:
        self.children: dict[str, Any] = {}
        self.told: dict[str, float] = {}


_EXPORTED = _Exported()


def publish(labels: Mapping[str, Any], counter_class: Callable[..., Any] | None = None) -> None:
    """Create the counters with SGLang's own ``labels``. Call it once per process, after ``PROMETHEUS_MULTIPROC_DIR`` is set.

    ``counter_class`` replaces prometheus_client's ``Counter`` (SGLang's collectors have one for Ray).
    """
    if counter_class is None:
        from prometheus_client import Counter

        counter_class = Counter
    for name, (_, _, what) in COUNTERS.items():
        counter = counter_class(name=name, documentation=what, labelnames=list(labels))
        _EXPORTED.children[name] = counter.labels(**labels)  # exported from now on, as 0
        _EXPORTED.told[name] = 0


def export() -> None:
    """Add what was counted since the last call."""
    for name, child in _EXPORTED.children.items():
        source, field, _ = COUNTERS[name]
        now = getattr(source, field)
        if now != _EXPORTED.told[name]:
            child.inc(now - _EXPORTED.told[name])
            _EXPORTED.told[name] = now


def matched(result: Any, req: Any, *_args: object, **_kwargs: object) -> None:
    """After a request is matched with the radix tree: store the hit that full KV alone would give.

    Nothing is counted yet, because a waiting request is matched again.
    """
    if _EXPORTED.children:
        setattr(req, _FULL_HIT, result.full_kv_hit_length)


def admitted(_result: object, batch: Any) -> None:
    """After a prefill batch is prepared: count the requests whose first prefill it is.

    Later chunks of a request are not matched again. Retracted requests are left out, as in SGLang's
    ``cached_tokens_total``: the tokens they find are their own.
    """
    if not _EXPORTED.children:
        return
    for req in batch.reqs:
        full = vars(req).pop(_FULL_HIT, None)
        if full is None or req.retracted_stain:
            continue
        full = max(full, req.prefix_len)
        HITS.prompt += len(req.origin_input_ids)
        HITS.hit += req.prefix_len
        HITS.full_hit += full
        HITS.missed += full - req.prefix_len
    export()


def evicted(result: Any, *_args: object, **_kwargs: object) -> None:
    """After an eviction from the radix tree. SGLang's ``evicted_tokens_total`` counts full-attention tokens only and has no model label."""
    HITS.full_evicted += result.num_tokens_evicted
    HITS.swa_evicted += result.swa_num_tokens_evicted


def logged(_result: object, *_args: object, **_kwargs: object) -> None:
    """After SGLang has written its own metrics: export ours."""
    export()
