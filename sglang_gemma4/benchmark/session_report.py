"""Sessions in a report: TTFT with and without the conversation in the cache, hit rates of both pools, cold versus warm answers."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from sglang_gemma4.benchmark import warm_check
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import Results, number, table, values

FOUND = 0.9  # share of a session's tokens so far that must be in the cache for its turn to count as found
TURNS = {"first": "first turn", "found": "later turn, found", "missed": "later turn, not found"}
HOW_TO_READ = (
    "All sessions begin with the same system prompt and tool declarations; what users ask and tools return is random tokens. "
    "A later turn is found where the server says that at least "
    f"{FOUND:.0%} of the session's tokens so far were in its cache. Of the prompts' tokens: in both pools (not computed), in the full "
    "pool (with or without the sliding window that a hit needs), and the sliding pool's share of those. For want of a window: tokens that "
    "the full pool had and that were prefilled all the same. Counted by the package's metrics; stock has none."
)
COUNTERS = {
    "prompt": "sglang:gemma4_prompt_tokens_total",
    "hit": "sglang:gemma4_hit_tokens_total",
    "full_hit": "sglang:gemma4_full_hit_tokens_total",
    "missed": "sglang:gemma4_window_missed_tokens_total",
    "full_evicted": "sglang:gemma4_full_evicted_tokens_total",
    "swa_evicted": "sglang:gemma4_swa_evicted_tokens_total",
    "taken_back": "sglang:gemma4_windows_taken_back_total",
    "unlocked": "sglang:gemma4_windows_unlocked_total",
    "full_bound": "sglang:gemma4_full_bound_seconds_total",
    "swa_bound": "sglang:gemma4_swa_bound_seconds_total",
    "limit_bound": "sglang:gemma4_limit_bound_seconds_total",
}
"""The keys of a record's ``pools``, each with the metric whose growth it holds."""


def measured(rows: Sequence[Mapping[str, Any]], streams: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The part of a ``repetition`` record that sessions add: ``sessions``, and ``kept`` for :mod:`warm_check`."""
    times: dict[str, list[float]] = {name: [] for name in TURNS}
    computed: dict[str, list[int]] = {name: [] for name in TURNS}
    prompt = cached = 0
    says = any(stream.get("cached") is not None for stream in streams)
    for row, stream in zip(rows, streams, strict=True):
        if stream["error"]:
            continue
        found, before = int(stream.get("cached") or 0), row["prompt"] - len(row["ids"])
        kind = "first" if not row["turn"] else "found" if found >= FOUND * before else "missed"
        prompt, cached = prompt + row["prompt"], cached + found
        if says or kind == "first":
            times[kind].append(round(1000 * stream["events"][0][0], 3))
            computed[kind].append(row["prompt"] - found)
    own = {"ttft_ms": times, "computed": {name: float(np.mean(each)) for name, each in computed.items() if each}, "prompt_tokens": prompt}
    kept = [{"prompt": stream["prompt"], "tokens": stream["tokens"]} for stream in streams if stream.get("tokens")]
    return {"sessions": own | ({"cached_tokens": cached} if says else {}), "kept": kept}


def pools(added: Mapping[str, float]) -> dict[str, float]:
    """The growth of the package's counters during a pass; empty if the server has none."""
    return {name: round(added[metric], 3) for name, metric in COUNTERS.items() if metric in added}


def named(results: Results) -> list[str]:
    """Workloads of sessions with a counted pass."""
    return [
        name for name in results.workloads if any(record.get("workload") == name and "sessions" in record for record in results.counted)
    ]


def rows(results: Results) -> str:
    """A table with a row for each workload and arm; empty without sessions."""
    columns = ["workload", "arm", *(f"{kind}: TTFT p50 / p99 ms, tokens computed (n)" for kind in TURNS.values()), "turns/s"]
    columns += ["prompt tokens in both / full / sliding of full pool %", "for lack of a window", "evicted full / sliding"]
    columns += ["windows taken back / unlocked", "waited for full / sliding / limit s", "running peak", "retractions"]
    found = []
    for name in named(results):
        for arm in results.arms:
            if own := results.at(name, arm):
                peaks = values(own, "running_peak")
                shown = [*(_times(own, kind) for kind in TURNS), number(median(values(own, "requests_per_second"))), *_pools(own)]
                found.append([name, arm, *shown, str(int(max(peaks))) if peaks else "-", str(int(sum(values(own, "retractions"))))])
    return table(columns, found) if found else ""


def _times(records: Sequence[Record], kind: str) -> str:
    each = [record["sessions"]["ttft_ms"][kind] for record in records]
    if not any(each):
        return "-"
    p50, p99 = (median(float(np.percentile(one, share)) for one in each if one) for share in (50, 99))
    computed = [record["sessions"]["computed"][kind] for record in records if kind in record["sessions"]["computed"]]
    return f"{number(p50)} / {number(p99)}, {median(computed):.0f} ({sum(map(len, each))})"


def _pools(records: Sequence[Record]) -> list[str]:
    """Hit rates, the cost of missing windows, evictions, windows taken back; without our counters only the server's own cache hits."""
    sums = {
        name: sum(record["pools"][name] for record in records) for name in COUNTERS if all(name in record["pools"] for record in records)
    }
    if not sums:
        prompt, cached = (sum(int(record["sessions"].get(name) or 0) for record in records) for name in ("prompt_tokens", "cached_tokens"))
        return [f"{_share(cached, prompt)} / - / -", "-", "-", "-", "-"]
    rates = [_share(sums[part], sums[whole]) for part, whole in (("hit", "prompt"), ("full_hit", "prompt"), ("hit", "full_hit"))]
    pairs = [f"{sums[one]:.0f} / {sums[other]:.0f}" for one, other in (("full_evicted", "swa_evicted"), ("taken_back", "unlocked"))]
    waited = " / ".join(f"{sums[name]:.1f}" for name in ("full_bound", "swa_bound", "limit_bound"))
    return [" / ".join(rates), f"{sums['missed']:.0f}", *pairs, waited]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def identity(results: Results) -> list[str]:
    """A sentence for each workload and arm: how many warm answers differ from the cold ones, and where."""
    sentences = []
    for name in named(results):
        for arm in results.arms:
            checks = [record["warm_check"] for record in results.at(name, arm) if record.get("warm_check")]
            if results.at(name, arm):
                sentences.append(f"{arm} on {name}: {_compared(checks[0]) if checks else 'not compared.'}")
    return sentences


def _compared(check: Mapping[str, Any]) -> str:
    """The result of one check as a sentence."""
    if "why" in check:
        return f"not compared: {check['why']}."
    count = check["sessions"]
    against = {"again": "a second cold answer", "warm": "a warm answer", "load": "the answer in the load"}
    said = []
    for way in warm_check.WAYS:
        differ = [f"token {place} of {tokens}" for place, tokens in zip(check[way], check["tokens"], strict=True) if place is not None]
        said.append(f"{against[way]} " + (f"differs in {len(differ)} (first at {', '.join(differ)})" if differ else "is the same in all"))
    cached = [str(one) for one in check["warm_cached"]]
    doubt = (
        " The server answers cold requests differently, so a difference of warm ones shows nothing."
        if any(place is not None for place in check["again"])
        else ""
    )
    return f"of {count} sessions, against the cold answer: {'; '.join(said)}. The warm requests found {', '.join(cached)} tokens.{doubt}"


def times(results: Results) -> dict[str, dict[str, list[float]]]:
    """TTFT in milliseconds by workload and type of turn, and by arm."""
    found = {}
    for name in named(results):
        for kind, title in TURNS.items():
            by_arm = {
                arm: own
                for arm in results.arms
                if (own := [one for record in results.at(name, arm) for one in record["sessions"]["ttft_ms"][kind]])
            }
            if by_arm:
                found[f"{name}\n{title}"] = by_arm
    return found
