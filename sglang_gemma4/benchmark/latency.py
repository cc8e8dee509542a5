"""What a pass of a load says of latency, and goodput: the highest request rate at which latency stays within limits.

TTFT is from sending a request to the event with its first tokens. ITL is the gap between two events of a stream that bring tokens, each
gap once, whatever number of tokens it ends with: under MTP a verify step brings several at once, and what a reader sees is the pause
before them. ``token_itl_ms`` counts each token instead, a gap spread evenly over the tokens that end it.

Gaps are also told apart by whether another request was being admitted meanwhile, that is sent and without its first token:
``admitting_itl_ms`` and ``pure_itl_ms``. What admission costs a running request is the 99th percentile of the former over the median of
the latter, which is the plain decode or verify step.
"""

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import Results, pooled
from sglang_gemma4.benchmark.statistics import Summary, summary
from sglang_gemma4.benchmark.workloads import ITL_LIMIT, TTFT_LIMIT, load_name


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` percent lie, linear between neighbours.

    Raises:
        ValueError: there are no values, or ``share`` is not between 0 and 100.
    """
    if not values or not 0 <= share <= 100:
        raise ValueError(f"no {share}th percentile of {len(values)} values; give at least one value and a share between 0 and 100")
    ordered = sorted(values)
    position = (len(ordered) - 1) * share / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def measured(result: Mapping[str, Any], streams: Sequence[Mapping[str, Any]], rate: float | None) -> dict[str, Any]:
    """The part of a ``repetition`` record that comes from the client's result and its streams (``stream_client``)."""
    done = [stream for stream in streams if not stream["error"]]
    tokens = sum(int(count) for stream in done for _, count in stream["events"])
    seconds = result["duration"]
    row = {
        "seconds": seconds,
        "completed": len(done),
        "failed": len(streams) - len(done),
        "errors": sorted({stream["error"][:200] for stream in streams if stream["error"]})[:3],
        "output_tokens": tokens,
        "output_throughput": tokens / seconds,
        "input_throughput": sum(result["input_lens"]) / seconds,
        "requests_per_second": len(done) / seconds,
        "ttft_ms": [round(stream["events"][0][0] * 1000, 3) for stream in done],
        "tpot_ms": [round(spent * 1000, 4) for stream in done if (spent := _per_token(stream["events"])) is not None],
    }
    gaps = [gap for stream in done for gap in _gaps(stream["events"])]
    if gaps:
        row["itl_ms"] = _spread([wait for wait, _ in gaps])
        row["token_itl_ms"] = _spread([wait / count for wait, count in gaps for _ in range(count)])
        row["tokens_per_event"] = sum(count for _, count in gaps) / len(gaps)
        row |= {f"{kind}_itl_ms": _spread(waits) for kind, waits in _by_admission(streams).items() if waits}
    if rate is not None:
        row["rate"] = rate
        late = [(stream["sent"] - stream["at"]) * 1000 for stream in streams if stream["at"] is not None]
        row["late_ms"] = round(percentile(late, 99), 3)
    return row


def _gaps(events: Sequence[Sequence[float]]) -> list[tuple[float, int]]:
    """Milliseconds before each event after the first, and the tokens it brought."""
    return [((later - earlier) * 1000, int(count)) for (earlier, _), (later, count) in itertools.pairwise(events)]


def _by_admission(streams: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Milliseconds of the gaps during which a request was sent and waited for its first token, and of the others."""
    waits = [(stream["sent"], stream["sent"] + stream["events"][0][0]) for stream in streams if stream["events"]]
    spans: list[list[float]] = []  # of all waits, joined where they overlap
    for start, end in sorted(waits):
        if spans and start <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([start, end])
    starts = [start for start, _ in spans]
    found: dict[str, list[float]] = {"admitting": [], "pure": []}
    for stream in streams:
        for (earlier, _), (later, _) in itertools.pairwise(stream["events"] if not stream["error"] else ()):
            before = bisect.bisect_left(starts, stream["sent"] + later)  # spans that began before the gap ended
            during = before > 0 and spans[before - 1][1] > stream["sent"] + earlier
            found["admitting" if during else "pure"].append((later - earlier) * 1000)
    return found


def _per_token(events: Sequence[Sequence[float]]) -> float | None:
    """Seconds per token after the first event; None where there is no more than one event."""
    after = sum(int(count) for _, count in events[1:])
    return (events[-1][0] - events[0][0]) / after if after else None


def _spread(values: Sequence[float]) -> dict[str, float]:
    found = {f"p{share}": round(percentile(values, share), 3) for share in (50, 90, 99)}
    return {**found, "mean": round(sum(values) / len(values), 3), "max": round(max(values), 3), "count": len(values)}


@dataclass(frozen=True)
class Point:
    """An arm at one rate of a load, over its passes: percentiles in milliseconds, requests that failed, how late the client sent."""

    rate: float
    ttft_p50: Summary
    ttft_p99: Summary
    itl_p50: Summary
    itl_p99: Summary
    failed: int

    def within(self, limits: tuple[float, float]) -> bool:
        """Whether no request failed and the medians over passes of p99 TTFT and p99 ITL are within ``limits`` (both in ms)."""
        return not self.failed and self.ttft_p99.median <= limits[0] and self.itl_p99.median <= limits[1]


@dataclass(frozen=True)
class Goodput:
    """``rate`` requests/s (None: not even the lowest was within the limits), and whether no higher rate was measured to fail."""

    rate: float | None
    lowest: float
    at_least: bool

    def __str__(self) -> str:
        if self.rate is None:
            return f"less than {self.lowest:g} requests/s"
        return f"{'at least ' if self.at_least else ''}{self.rate:g} requests/s"


def loads(results: Results) -> list[str]:
    """Loads with counted passes, in the run's order."""
    return list(dict.fromkeys(found[0] for name in results.workloads if (found := load_name(name))))


def points(results: Results, load: str, arm: str) -> list[Point]:
    """The rates of a load at which ``arm`` has passes whose requests have gaps, ascending."""
    found_points = []
    for rate, name in asked(results, load):
        own = [record for record in results.at(name, arm) if record.get("itl_ms") and record["ttft_ms"]]
        if own:
            ttft = {share: summary([percentile(pooled([record], "ttft_ms"), share) for record in own]) for share in (50, 99)}
            itl = {share: summary([record["itl_ms"][f"p{share}"] for record in own]) for share in (50, 99)}
            failed = sum(int(record["failed"]) for record in [*own, *_empty(results, name, arm)])
            found_points.append(Point(rate, ttft[50], ttft[99], itl[50], itl[99], failed))
    return found_points


def asked(results: Results, load: str) -> list[tuple[float, str]]:
    """Rates of a load that the run was asked for, and the names of their workloads, ascending."""
    names = [str(workload["name"]) for workload in results.header["workloads"]]
    return sorted((found[1], name) for name in names if (found := load_name(name)) and found[0] == load)


def _empty(results: Results, name: str, arm: str) -> list[Record]:
    """Counted passes in which nothing was generated."""
    return [record for record in results.empty if record["arm"] == arm and record.get("workload") == name]


def limits(results: Results) -> tuple[float, float]:
    """Limits of p99 TTFT and p99 ITL in milliseconds, as the run was asked for."""
    found = results.header.get("limits") or {}
    return float(found.get("ttft_ms", TTFT_LIMIT)), float(found.get("itl_ms", ITL_LIMIT))


def goodput(results: Results, load: str, arm: str) -> Goodput | None:
    """The highest rate up to which every rate is within the limits: one within them above one that is not counts as luck. None: nothing
    was measured.

    A rate at which the server died or every request failed is not within them; at one that is not measured yet the answer is "at least".
    """
    measured_points = {point.rate: point for point in points(results, load, arm)}
    rates, best = asked(results, load), None
    for rate, name in rates:
        if rate in measured_points and measured_points[rate].within(limits(results)):
            best = rate
            continue
        died = any(crash["arm"] == arm and crash["during"] == name for crash in results.crashes)
        unknown = rate not in measured_points and not died and not _empty(results, name, arm)
        return None if unknown and best is None else Goodput(best, rates[0][0], unknown)
    return Goodput(best, rates[0][0], True) if rates else None
