"""Open-loop loads in a report: latency at every rate, and the goodput of every arm."""

from collections.abc import Sequence

from sglang_gemma4.benchmark import latency
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import METRIC, Results, number, table, values
from sglang_gemma4.benchmark.statistics import Summary, summary
from sglang_gemma4.benchmark.workloads import load_name

LATE = 100.0  # milliseconds that the client may send late (99th percentile) before its times are doubted
ADMITTING = "ITL p99 admitting / p50 pure ms"
FEW = 100  # requests of a pass; with fewer the 99th percentile is nearly the largest
HOW_TO_READ = (
    "Open loop: requests arrive as a Poisson process at the rate, the same ones at the same times for every arm, whatever the server has "
    "finished. TTFT is over requests. ITL is the gap between two stream events that bring tokens, of which one may bring several under "
    "MTP (per token: the gap spread over them); admitting: while another request waited for its first token; pure: the others. "
    "Percentiles are of a pass, shown as median over passes (range). Goodput is the highest rate up to which p99 TTFT and p99 ITL stay "
    "within {:g} and {:g} ms and no request fails."
)


def how_to_read(results: Results) -> str:
    """What the tables mean, including the limits of the run."""
    return HOW_TO_READ.format(*latency.limits(results))


def tables(results: Results) -> list[tuple[str, str]]:
    """(name, table) of each load; the table has a row for each rate and arm."""
    columns = ["requests/s", "arm", "done/s", "output tok/s", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms"]
    columns += ["per token p50 / p99 ms", ADMITTING, "running peak", "within limits"]
    return [(load, table(columns, _rows(results, load))) for load in latency.loads(results)]


def _rows(results: Results, load: str) -> list[list[str]]:
    limits = latency.limits(results)
    found = {(point.rate, arm): point for arm in results.arms for point in latency.points(results, load, arm)}
    rows = []
    for rate, name in latency.asked(results, load):
        for arm in results.arms:
            if (point := found.get((rate, arm))) is None:
                continue
            own = results.at(name, arm)
            peaks = values(own, "running_peak")
            rows.append(
                [
                    f"{rate:g}",
                    arm,
                    number(summary(values(own, "requests_per_second")).median),
                    number(summary(values(own, METRIC)).median),
                    *(_shown(one) for one in (point.ttft_p50, point.ttft_p99, point.itl_p50, point.itl_p99)),
                    " / ".join(number(summary(_of(own, "token_itl_ms", name)).median) for name in ("p50", "p99")),
                    admitting(own),
                    str(int(max(peaks))) if peaks else "-",
                    "yes" if point.within(limits) else "no" + (f", {point.failed} failed" if point.failed else ""),
                ]
            )
    return rows


def admitting(records: Sequence[Record]) -> str:
    """p99 ITL while another request waited for its first token, p50 ITL otherwise, and the ratio of the two."""
    with_both = [record for record in records if record.get("admitting_itl_ms") and record.get("pure_itl_ms")]
    if not with_both:
        return "-"
    slow = summary(_of(with_both, "admitting_itl_ms", "p99")).median
    pure = summary(_of(with_both, "pure_itl_ms", "p50")).median
    return f"{number(slow)} / {number(pure)} = {slow / pure:.1f}x"


def _of(records: Sequence[Record], field: str, name: str) -> list[float]:
    return [float(record[field][name]) for record in records if record.get(field)]


def _shown(found: Summary) -> str:
    return number(found.median) + (f" ({number(found.low)}-{number(found.high)})" if found.n > 1 else "")


def goodput(results: Results) -> str:
    """A table of the loads, a column for each arm; empty without loads."""
    rows = [
        [load, *(str(latency.goodput(results, load, arm) or "not measured") for arm in results.arms)] for load in latency.loads(results)
    ]
    return table(["goodput", *results.arms], rows) if rows else ""


def sentences(results: Results) -> list[str]:
    """For the first line of a report: the goodput of every arm on each load."""
    found = []
    for load in latency.loads(results):
        reached = {arm: rate for arm in results.arms if (rate := latency.goodput(results, load, arm))}
        if reached:
            found.append(f"goodput on {load}: {', '.join(f'{arm} {rate}' for arm, rate in reached.items())}")
    return found


def caveats(results: Results) -> list[str]:
    """Doubts about loads: a client that sent late, percentiles of few requests."""
    found, few = [], []
    for name in results.workloads:
        if load_name(name) is None:
            continue
        for arm in results.arms:
            late = max(values(results.at(name, arm), "late_ms"), default=0.0)
            if late > LATE:
                found.append(
                    f"{arm} on {name}: the client sent 1% of the requests {number(late)} ms late or more; it was too busy for that rate, "
                    "and its times are too long."
                )
        asked = next(one for one in results.header["workloads"] if one["name"] == name)
        few += [(name, bool(asked.get("sessions")))] * (int(asked["requests"]) < FEW)
    if few:
        names, of_sessions = [name for name, _ in few], [sessions for _, sessions in few]
        remedy = "raise --load-seconds" if not any(of_sessions) else "ask for more sessions" if all(of_sessions) else "send more"
        found.append(f"Fewer than {FEW} requests in a pass of {', '.join(names)}: p99 TTFT there is nearly the largest; {remedy}.")
    return found
