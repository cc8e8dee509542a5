"""The first line of a report: the gain, in words made from the data. Intervals are in the tables, doubts under Caveats."""

from dataclasses import dataclass

from sglang_gemma4.benchmark import curve_report, load_report
from sglang_gemma4.benchmark.arms import STOCK
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import METRIC, Results, number, values
from sglang_gemma4.benchmark.statistics import Ratio, ratio, summary

_NAMED = 4  # outcomes named of each type; the tables hold the rest


@dataclass(frozen=True)
class Outcome:
    """An arm's output tokens/s relative to the baseline's, at one place (a workload, or a batch size of the offline engine)."""

    place: str
    ratio: Ratio
    repetitions: tuple[int, int]  # of the baseline and of the arm


def sentence(results: Results) -> str:
    """The gain of each arm over the baseline.

    A ratio is given if its interval excludes 1. If it does not, or if the ratio rounds to 1.00, there is "no
    difference". Without an interval (from a single pass) a ratio is "unproven". Arms that died are named.
    """
    baseline, *others = results.arms
    compared = {arm: found for arm in others if (found := outcomes(results, arm))}
    dead = {str(crash["arm"]) for crash in results.crashes}
    lone = [arm for arm in others if arm not in compared and (arm not in dead or any(r["arm"] == arm for r in results.counted))]
    parts: list[str] = []
    passes = {arm: _passes([n for one in found for n in one.repetitions]) for arm, found in compared.items()}
    for arm, found in compared.items():
        # Two arms in one sentence need their unit only once, and the number of passes once if it is the same.
        last = arm == list(compared)[-1] or len(set(passes.values())) > 1
        parts.append(_against(baseline, arm, found, unit=not parts) + (f" ({passes[arm]})" if last else ""))
    loads = load_report.sentences(results)
    parts += [_alone(results, arm) for arm in ([] if compared else [baseline]) + lone if results.places or not (loads or results.curves)]
    parts += loads + ([curve_report.sentence(results)] if results.curves else [])
    parts += dict.fromkeys(crash_text(crash) for crash in results.crashes)
    mark = "Dry run, which measures nothing: " if results.header.get("dry_run") else ""
    weights = " Dummy weights." if results.header.get("dummy_weights") else ""
    return f"{mark}{'; '.join(parts)}.{weights}"


def outcomes(results: Results, arm: str) -> list[Outcome]:
    """Every place where both the baseline and ``arm`` have a result."""
    both = [(place, results.at(place, results.arms[0]), results.at(place, arm)) for place in results.places]
    return [Outcome(p, ratio(values(a, METRIC), values(b, METRIC)), (len(a), len(b))) for p, a, b in both if a and b]


def crash_text(crash: Record) -> str:
    """A ``crash`` record as a sentence."""
    if crash.get("why"):
        return f"{crash['arm']} was not run on {crash['during']} ({crash['why']})"
    return f"{crash['arm']} died during {crash['during']} ({exit_text(crash)})"


def exit_text(crash: Record) -> str:
    """How a process ended, as text."""
    status = crash.get("exit_status")
    return "it hung" if status is None else f"signal {-status}" if status < 0 else f"exit status {status}"


def _against(baseline: str, arm: str, found: list[Outcome], unit: bool) -> str:
    flipped = arm == STOCK  # the ratio is shown over stock, whichever arm came first
    first, other = (arm, baseline) if flipped else (baseline, arm)
    told: dict[str, float] = {}
    unproven: dict[str, float] = {}
    same: list[str] = []
    for one in found:
        low, high, value = one.ratio.low, one.ratio.high, 1 / one.ratio.value if flipped else one.ratio.value
        if low is None or high is None:
            unproven[one.place] = value
        elif low <= 1 <= high or _times(value) == "1.00":
            same.append(one.place)
        else:
            told[one.place] = value
    whose, against = (f" {first}'s output tokens/s", f" from {first} in output tokens/s") if unit or flipped else ("", "")
    parts = [_listed(told, whose)] if told else []
    parts += [f"unproven {_listed(unproven, '' if told else whose)}"] if unproven else []
    more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
    parts += [f"no difference{'' if parts else against} {_places(same[:_NAMED])}{more}"] if same else []
    return f"{other}: {', '.join(parts)}"


def _listed(ratios: dict[str, float], whose: str) -> str:
    named, rest = list(ratios.items())[:_NAMED], sorted(list(ratios.values())[_NAMED:])
    more = f" and {_times(rest[0])}x to {_times(rest[-1])}x on {len(rest)} more" if rest else ""
    shown = [f"{_times(value)}x{'' if number else whose} {_places([place])}" for number, (place, value) in enumerate(named)]
    return ", ".join(shown) + more


def _times(value: float) -> str:
    return f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def _places(places: list[str]) -> str:
    """Places as text, such as ``on chat, images`` or ``at batch 1, 8``."""
    batches = [place.removeprefix("batch ") for place in places if place.startswith("batch ")]
    others = [place for place in places if not place.startswith("batch ")]
    return ", ".join([f"on {', '.join(others)}"] * bool(others) + [f"at batch {', '.join(batches)}"] * bool(batches))


def _passes(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low} to {high} passes" if low < high else f"{low} pass{'es' * (low > 1)}"


def _alone(results: Results, arm: str) -> str:
    """The throughput of an arm that has nothing to be compared with."""
    found = [(place, own) for place in results.places if (own := results.at(place, arm))]
    if not found:
        return f"{arm}: no counted pass"
    shown = [f"{number(summary(values(own, METRIC)).median)} {_places([place])}" for place, own in found[:_NAMED]]
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    beside = ", nothing to compare with" if len(results.arms) > 1 else ""
    text = ", ".join(shown).replace(" ", " output tokens/s ", 1)
    return f"{arm}: {text}{more}{beside} ({_passes([len(own) for _, own in found])})"
