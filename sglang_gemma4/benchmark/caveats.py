"""The caveats of a run: what a reader has to know before relying on its numbers."""

from collections.abc import Sequence

from sglang_gemma4.benchmark import differences, load_report
from sglang_gemma4.benchmark.headline import crash_text, exit_text, outcomes
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import METRIC, TIMED, Results, batch_place, pooled, values
from sglang_gemma4.benchmark.statistics import summary

ENOUGH = 5  # counted repetitions of an arm at a place
_SIMULATED = "SGLANG_SIMULATE_ACC_LEN"


def sentences(results: Results) -> list[str]:
    """Every caveat of a run, the most serious first. Only a crash's log contains line breaks."""
    header = results.header
    found = [str(note) for note in header.get("notes") or []]  # written by the command: dry run, random weights and the like
    found += [_crash(crash) for crash in results.crashes]
    found += _unpatched(results.starts)
    found += _simulated(header)
    found += differences.between_headers(results.headers)
    found += differences.unasked(results.starts, header)
    found += _lost(results)
    found += load_report.caveats(results)
    found += _few(results)
    found += _rounds_apart(results)
    return found


def _crash(crash: Record) -> str:
    if crash.get("why"):
        return f"{crash_text(crash)}."
    log = "\n".join(f"      {line}" for line in crash.get("log_tail") or ["(no log)"])
    return f"{crash['arm']} died during {crash['during']} in round {crash['round']} ({exit_text(crash)}). Its last lines:\n\n{log}\n"


def _simulated(header: Record) -> list[str]:
    """Arms whose environment sets the accept length; if the command sets one for all of them, its notes say so instead."""
    lengths = {str(arm["name"]): (arm.get("environment") or {}).get(_SIMULATED) for arm in header["arms"]}
    if len(set(lengths.values())) == 1:
        return []
    return [
        f"Simulated accept length: {name} ran with {_SIMULATED}={length}; the length was set, not earned."
        for name, length in lengths.items()
        if length is not None
    ]


def _unpatched(starts: Sequence[Record]) -> list[str]:
    """Patches that an arm asked for and that failed or were declined."""
    missing: dict[str, dict[str, None]] = {}
    for start in starts:
        for name, state in (start.get("patches") or {}).items():
            if state in ("failed", "declined"):
                missing.setdefault(f"{start['arm']} ran with patches {state}", {})[name] = None
    return [f"{what}: {', '.join(names)}." for what, names in missing.items()]


def _lost(results: Results) -> list[str]:
    """Repetitions without output, requests that failed, and requests without times."""
    found = []
    for arm in results.arms:
        if empty := sum(record["arm"] == arm for record in results.empty):
            found.append(f"{arm}: {empty} of the counted repetitions had no throughput and are left out of every figure.")
        for workload in results.workloads:
            own, where = results.at(workload, arm), f"{arm} on {workload}"
            failed, missing, completed = (int(sum(values(own, name))) for name in ("failed", "missing_tokens", "completed"))
            if failed:
                found.append(f"{where}: {failed} of {failed + completed} requests failed; throughput counts the others only.")
            if missing:
                found.append(
                    f"{where}: the server never generated {missing} tokens that its client counted (it refuses a request "
                    "in mid-stream with status 200); throughput counts what the server generated."
                )
            if (timed := len(pooled(own, "ttft_ms"))) < completed:
                hidden = "" if timed >= TIMED * completed else "; too few to show a median"
                found.append(f"{where}: only {timed} of {completed} requests have times, those whose tokens have text{hidden}.")
    return found


def _few(results: Results) -> list[str]:
    """Places with fewer counted repetitions than were asked for, or than :data:`ENOUGH`."""
    asked = int(results.header["repetitions"])
    missing, few = _below(results, 0, asked), _below(results, 1, ENOUGH)
    return [
        *[f"Not all of the {asked} repetitions asked for are there: {missing}. The last command below goes on from here."] * bool(missing),
        *[f"Fewer than {ENOUGH} passes, whose intervals are narrower than 95% (a single pass has none): {few}."] * bool(few),
    ]


def _below(results: Results, least: int, limit: int) -> str:
    """Arms and places with at least ``least`` and fewer than ``limit`` counted repetitions."""
    asked = [str(workload["name"]) for workload in results.header["workloads"]]
    batches = sorted({*map(int, results.header["batches"]), *results.batches})
    places = dict.fromkeys([*asked, *results.workloads, *map(batch_place, batches)])
    kept_to = {arm["name"]: arm.get("only") for arm in results.header["arms"]}
    by_count = []
    for arm in results.arms:
        own = [place for place in places if place not in asked or place in (kept_to.get(arm) or asked)]
        for count in range(least, limit):
            if names := [place for place in own if len(results.at(place, arm)) == count]:
                by_count.append(f"{count} of {arm} on {', '.join(names)}")
    return "; ".join(by_count)


def _rounds_apart(results: Results) -> list[str]:
    """Differences between arms that are smaller than those between starts of one arm. The interval treats repetitions
    as independent, so it is too narrow there."""
    found: dict[str, None] = {}
    for arm in results.arms[1:]:
        for outcome in outcomes(results, arm):
            effect = abs(outcome.ratio.value - 1)
            for name in (results.arms[0], arm) if outcome.ratio.separated else ():
                own = results.at(outcome.place, name)
                rounds = [[record for record in own if record["round"] == number] for number in {record["round"] for record in own}]
                medians = [summary(values(records, METRIC)).median for records in rounds]
                if (apart := max(medians) / min(medians) - 1) > effect:
                    sentence = f"{name} on {outcome.place}: its rounds differ by {apart:.1%}, more than the {effect:.1%} between"
                    found[f"{sentence} {results.arms[0]} and {arm}; measure more rounds before believing that difference."] = None
    return list(found)
