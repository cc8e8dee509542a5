"""The first line of a report: what was bought, in one sentence made from the data."""

from dataclasses import dataclass

from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import Results, number, sweep_size, values
from sglang_gemma4.benchmark.statistics import Ratio, ratio, summary

_NAMED = 4  # of each kind of outcome; the tables hold the rest
METRIC = "output_throughput"


@dataclass(frozen=True)
class Outcome:
    """An arm's output tokens/s over the baseline's, in one place (a workload, or a batch size of the offline engine)."""

    place: str
    ratio: Ratio
    repetitions: tuple[int, int]


def sentence(results: Results) -> str:
    """What was bought, with intervals; says so where they include 1, where they cannot be given, and where an arm died."""
    parts = [_against(results, arm) for arm in results.arms[1:]] or [_alone(results, results.arms[0])]
    crashed = dict.fromkeys(crash_text(crash) for crash in results.crashes)
    mark = "Dry run, which measures nothing: " if results.header.get("dry_run") else ""
    weights = " Dummy weights." if results.header.get("dummy_weights") else ""
    return f"{mark}{'; '.join([*parts, *crashed])}.{weights}"


def outcomes(results: Results, arm: str) -> list[Outcome]:
    """Every place where both the baseline and ``arm`` have a result: workloads, batches, and the points of a sweep last."""
    first = results.arms[0]
    workloads = [(name, results.of_workload(name, first), results.of_workload(name, arm)) for name in results.workloads]
    places = [place for place in workloads if sweep_size(place[0]) is None]
    places += [(f"batch {batch}", results.of_batch(batch, first), results.of_batch(batch, arm)) for batch in results.batches]
    places += [place for place in workloads if sweep_size(place[0]) is not None]
    return [
        Outcome(place, ratio(values(baseline, METRIC), values(other, METRIC)), (len(baseline), len(other)))
        for place, baseline, other in places
        if baseline and other
    ]


def interval(outcome: Outcome) -> str:
    """The 95% interval of a ratio, or why there is none."""
    low, high, ends = outcome.ratio.low, outcome.ratio.high, between(outcome.ratio)
    sizes = "{} and {} repetitions".format(*outcome.repetitions)
    if low is None or high is None or ends is None:
        return f"no interval from {sizes}"
    shown = f"95% CI {ends[0]}-{ends[1]}"
    if (low > 1 or high < 1) and not outcome.ratio.separated:
        return f"{shown}, n={outcome.repetitions[0]} and {outcome.repetitions[1]}"
    return shown


def times(value: float) -> str:
    """A ratio: two decimals, three where the third is what there is to see."""
    return f"{value:.{_decimals(value)}f}"


def between(ratio: Ratio) -> tuple[str, str] | None:
    """Both ends of a ratio's interval, to as many decimals as the ratio; None without one."""
    if ratio.low is None or ratio.high is None:
        return None
    return f"{ratio.low:.{_decimals(ratio.value)}f}", f"{ratio.high:.{_decimals(ratio.value)}f}"


def _decimals(value: float) -> int:
    return 3 if 0.9 < value < 1.1 else 2


def crash_text(crash: Record) -> str:
    """What a ``crash`` record says happened."""
    if crash.get("why"):
        return f"{crash['arm']} was not run on {crash['during']} ({crash['why']})"
    return f"{crash['arm']} died during {crash['during']} ({exit_text(crash)})"


def exit_text(crash: Record) -> str:
    """How a process ended."""
    status = crash.get("exit_status")
    return "it hung" if status is None else f"signal {-status}" if status < 0 else f"exit status {status}"


def _against(results: Results, arm: str) -> str:
    found = outcomes(results, arm)
    baseline = results.arms[0]
    if not found:
        return f"{arm} against {baseline}: nothing to compare yet, no place where both have a result ({_alone(results, baseline)})"
    faster = [o for o in found if o.ratio.separated and o.ratio.value > 1]
    slower = sorted((o for o in found if o.ratio.separated and o.ratio.value <= 1), key=lambda o: o.ratio.value)
    unknown = [o for o in found if not o.ratio.separated]
    if not faster and not slower:
        known = all(o.ratio.low is not None and o.ratio.high is not None and o.ratio.low <= 1 <= o.ratio.high for o in found)
        if known:
            return f"no difference found between {arm} and {baseline} in output tokens/s: {_listed(unknown)}"
        return f"too few repetitions to tell {arm} from {baseline} in output tokens/s: {_listed(unknown)}"
    parts = [f"{_listed(group, word)}" for group, word in ((faster, ""), (slower, "slower: ")) if group]
    if unknown:
        parts.append(f"not separated from 1: {_listed(unknown)}")
    return f"{arm} against {baseline}, output tokens/s: {'; '.join(parts)}"


def _listed(found: list[Outcome], lead: str = "") -> str:
    named = ", ".join(f"{times(outcome.ratio.value)}x on {outcome.place} ({interval(outcome)})" for outcome in found[:_NAMED])
    rest = sorted(outcome.ratio.value for outcome in found[_NAMED:])
    more = f" and {times(rest[0])}x to {times(rest[-1])}x on {len(rest)} more" if rest else ""
    return f"{lead}{named}{more}"


def _alone(results: Results, arm: str) -> str:
    # A sweep's sizes are one curve; its plot says more than a few of its points.
    names = [name for name in results.workloads if sweep_size(name) is None] or results.workloads
    places = [(f"on {name}", results.of_workload(name, arm)) for name in names]
    places += [(f"at batch {batch}", results.of_batch(batch, arm)) for batch in results.batches]
    shown = []
    for place, found in places:
        if found:
            s = summary(values(found, METRIC))
            shown.append(f"{number(s.median)} output tokens/s {place} ({number(s.low)}-{number(s.high)}, n={s.n})")
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return f"{arm} alone: {', '.join(shown[:_NAMED]) or 'no result'}{more}"
