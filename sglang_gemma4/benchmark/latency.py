"""The latency of a pass of a load, and goodput: the highest request rate at which latency stays within limits.

TTFT is from sending a request to the event with its first tokens. ITL is the time between two events of a stream that
bring tokens, and counts once, however many tokens it ends with: under MTP a verify step brings several at once, and a
reader sees the pause before them. ``token_itl_ms`` counts each token instead, with a gap spread evenly over the
tokens that end it.

Gaps are also separated by whether another request was being admitted meanwhile, which means it was sent and had no
token yet: ``admitting_itl_ms`` and ``pure_itl_ms``. The cost of admission to a running request is the 99th percentile
of the former over the median of the latter, which is the plain decode or verify step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import Results, pooled
from sglang_gemma4.benchmark.statistics import Summary, summary
from sglang_gemma4.benchmark.workloads import ITL_LIMIT, TTFT_LIMIT, load_name


def measured(result: Mapping[str, Any], streams: Sequence[Mapping[str, Any]], rate: float | None) -> dict[str, Any]:
    """The part of a ``repetition`` record that is computed from the client's result and its streams (``client_process``)."""
    done = [stream for stream in streams if not stream["error"]]
    events = [np.asarray(stream["events"], float) for stream in done]  # each [events, 2]: seconds since it was sent, tokens
    tokens, seconds = int(sum(each[:, 1].sum() for each in events)), result["duration"]
    spans = [(each[-1, 0] - each[0, 0], each[1:, 1].sum()) for each in events if len(each) > 1]
    row = {
        "seconds": seconds,
        "completed": len(done),
        "failed": len(streams) - len(done),
        "errors": sorted({stream["error"][:200] for stream in streams if stream["error"]})[:3],
        "output_tokens": tokens,
        "output_throughput": tokens / seconds,
        "input_throughput": sum(result["input_lens"]) / seconds,
        "requests_per_second": len(done) / seconds,
        "ttft_ms": [round(float(each[0, 0]) * 1000, 3) for each in events],
        "tpot_ms": [round(float(spent / after) * 1000, 4) for spent, after in spans],
    }
    if spans:
        sent: Any = np.repeat([stream["sent"] for stream in done], [len(each) - 1 for each in events])
        begin, end = (sent + np.concatenate([each[:, 0][part] for each in events]) for part in (slice(None, -1), slice(1, None)))
        gaps, brought = (end - begin) * 1000, np.concatenate([each[1:, 1] for each in events]).astype(int)
        admitting = _during_admission(streams, begin, end)
        waits = {"itl_ms": gaps, "token_itl_ms": np.repeat(gaps / brought, brought)}
        waits |= {"admitting_itl_ms": gaps[admitting], "pure_itl_ms": gaps[~admitting]}
        row |= {name: _spread(found) for name, found in waits.items() if len(found)}
        row["tokens_per_event"] = float(brought.mean())
    if rate is not None:
        late = [(stream["sent"] - stream["at"]) * 1000 for stream in streams if stream["at"] is not None]
        row |= {"rate": rate, "late_ms": round(float(np.percentile(late, 99)), 3)}
    return row


def _during_admission(streams: Sequence[Mapping[str, Any]], begin: Any, end: Any) -> Any:
    """For each gap from ``begin`` to ``end`` (seconds), whether a request that was sent waited for its first token meanwhile."""
    waits = sorted((stream["sent"], stream["sent"] + stream["events"][0][0]) for stream in streams if stream["events"])
    starts = [start for start, _ in waits]
    latest = np.maximum.accumulate([-np.inf, *(over for _, over in waits)])  # [n]: latest end of the n waits that began first
    return latest[np.searchsorted(starts, end)] > begin


def _spread(values: Any) -> dict[str, float]:
    found = {f"p{share}": round(float(np.percentile(values, share)), 3) for share in (50, 90, 99)}
    return {**found, "mean": round(float(values.mean()), 3), "max": round(float(values.max()), 3), "count": len(values)}


@dataclass(frozen=True)
class Point:
    """An arm at one rate of a load, over its passes: percentiles in milliseconds, and the number of failed requests."""

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
    """``rate`` in requests/s (None: even the lowest exceeded the limits), and whether no higher rate was measured to fail."""

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
    """Ascending, the rates of a load at which ``arm`` has passes with inter-token latencies."""
    found_points = []
    for rate, name in asked(results, load):
        own = [record for record in results.at(name, arm) if record.get("itl_ms") and record["ttft_ms"]]
        if own:
            ttft = {share: summary([float(np.percentile(pooled([record], "ttft_ms"), share)) for record in own]) for share in (50, 99)}
            itl = {share: summary([record["itl_ms"][f"p{share}"] for record in own]) for share in (50, 99)}
            failed = sum(int(record["failed"]) for record in [*own, *_empty(results, name, arm)])
            found_points.append(Point(rate, ttft[50], ttft[99], itl[50], itl[99], failed))
    return found_points


def asked(results: Results, load: str) -> list[tuple[float, str]]:
    """Ascending, the rates of a load that the run was asked for, with the names of their workloads."""
    names = [str(workload["name"]) for workload in results.header["workloads"]]
    return sorted((found[1], name) for name in names if (found := load_name(name)) and found[0] == load)


def _empty(results: Results, name: str, arm: str) -> list[Record]:
    """Counted passes in which nothing was generated."""
    return [record for record in results.empty if record["arm"] == arm and record.get("workload") == name]


def limits(results: Results) -> tuple[float, float]:
    """The limits of p99 TTFT and p99 ITL in milliseconds that the run was asked for."""
    found = results.header.get("limits") or {}
    return float(found.get("ttft_ms", TTFT_LIMIT)), float(found.get("itl_ms", ITL_LIMIT))


def goodput(results: Results, load: str, arm: str) -> Goodput | None:
    """The highest rate up to which every rate is within the limits; None if nothing was measured.

    A rate above one that exceeds the limits does not count. A rate exceeds them if the server died or every request
    failed. If the next rate is not measured yet, the answer is "at least".
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
