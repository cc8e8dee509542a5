"""REPORT.md of a run folder, made from its raw lines: what was bought, what to beware of, tables, plots, what was run."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sglang_gemma4.benchmark import caveats, headline, plots, records, stages
from sglang_gemma4.benchmark.headline import METRIC
from sglang_gemma4.benchmark.kernel_categories import table
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import TIMED, Results, load, number, pooled, sweep_size, values
from sglang_gemma4.benchmark.statistics import Ratio, ratio, summary

NAME = "REPORT.md"


def write(folder: Path) -> Path:
    """Draw the plots of ``folder/raw.jsonl`` and write ``folder/REPORT.md``; its path.

    Raises:
        ValueError: the folder has no header line, or matplotlib is missing.
    """
    results = load(folder)
    drawn = plots.draw(results, folder)
    path = folder / NAME
    path.write_text(markdown(results, [file.name for file in drawn]))
    return path


def markdown(results: Results, drawn: Sequence[str] = ()) -> str:
    """The report's text; ``drawn`` are the plot files beside it."""
    pictures = {Path(name).stem: name for name in drawn}
    sections = [
        ("Beware", "\n".join(f"- {sentence}" for sentence in caveats.sentences(results))),
        ("Workloads", _workloads(results, pictures)),
        ("Steps", _steps(results, pictures)),
        ("Kernels", _kernels(results, pictures)),
        ("Start-up", _starts(results)),
        ("What was run", _run(results)),
    ]
    lines = [headline.sentence(results), f"\n{results.place}, {results.headers[0]['time']}."]
    lines += [f"\n## {title}\n{text.rstrip()}" for title, text in sections if text]
    return "\n".join(lines) + "\n"


def _workloads(results: Results, pictures: dict[str, str]) -> str:
    if not results.workloads:
        return ""
    single = [name for name in results.workloads if sweep_size(name) is None]
    sweep = [name for name in results.workloads if sweep_size(name) is not None]
    groups = [(name, [name]) for name in single] + ([("sweep", sweep)] if sweep else [])
    blocks = [_how_to_read(results)]
    for title, names in groups:
        described = "; ".join(_described(results, name) for name in (names if len(names) == 1 else names[:1] + names[-1:]))
        blocks.append(f"\n### {title}\n{described}\n\n{_workload_table(results, names)}")
    return "\n".join(blocks + _pictures(pictures, "sweep-throughput", "ttft", "tpot", "accept-length"))


def _workload_table(results: Results, names: Sequence[str]) -> str:
    compared, several = len(results.arms) > 1, len(names) > 1
    columns = [*(["workload"] if several else []), "arm", "output tok/s: median (range)", *(["ratio [95% CI]"] if compared else [])]
    columns += ["TTFT median ms", "TPOT median ms", "accept length", "full / SWA pool peak %", "running peak"]
    columns += ["retractions", "prefill tokens", "peak memory GiB"]
    rows = []
    for name in names:
        for arm in results.arms:
            if found := results.of_workload(name, arm):
                ratios = _ratios(results, arm, found, name) if compared else []
                rows.append([*([name] if several else []), arm, _spread(found, METRIC), *ratios, *_loads(found)])
    return _table(columns, rows)


def _how_to_read(results: Results) -> str:
    text = "Range: smallest to largest of the n counted repetitions. TTFT and TPOT: median over their requests."
    text += " Peaks: the largest of them; retractions: their sum; accept length and prefill tokens: their median."
    return f"{text} {_interval_note(results)}"


def _interval_note(results: Results) -> str:
    if len(results.arms) == 1:
        return ""
    return (
        f"Ratio: median tok/s over {results.arms[0]}'s, with a 95% percentile bootstrap interval of the repetitions, each row for "
        "itself; `=` marks one that is not separated from 1 (it includes 1, cannot be given, or rests on too few repetitions)."
    )


def _described(results: Results, workload: str) -> str:
    for asked in results.header["workloads"]:
        if asked["name"] == workload:
            at_once = f"{asked['concurrency']} at once" if asked.get("concurrency") else "all at once"
            size = f"{asked['input_tokens']} prompt and {asked['output_tokens']} new tokens"
            images = (
                f", {asked['images']} images of {asked['image_size']} x {asked['image_size']} pixels each" if asked.get("images") else ""
            )
            return f"{workload}: {asked['requests']} request{'s' * (asked['requests'] != 1)}, {at_once}, {size}{images}"
    return f"{workload}: not in the header's workloads"


def _loads(found: Sequence[Record]) -> list[str]:
    """The columns of a workload's row after the ratio."""

    def at(name: str, how: Any) -> str:
        present = values(found, name)
        return number(how(present)) if present else "-"

    timed = len(pooled(found, "ttft_ms")) >= TIMED * sum(int(record["completed"]) for record in found)
    latency = [number(median(spans)) if timed and (spans := pooled(found, name)) else "-" for name in ("ttft_ms", "tpot_ms")]
    pools = [f"{100 * max(share):.1f}" if (share := values(found, f"{pool}_pool_peak")) else "-" for pool in ("full", "swa")]
    counts = [_count(values(found, "running_peak"), max), _count(values(found, "retractions"), sum)]
    return [
        *latency,
        at("accept_length", median),
        " / ".join(pools),
        *counts,
        _count(values(found, "prefill_tokens"), median),
        at("memory_peak_gib", max),
    ]


def _steps(results: Results, pictures: dict[str, str]) -> str:
    if not results.steps:
        return ""
    compared = len(results.arms) > 1
    rows = []
    for batch in results.batches:
        for arm in results.arms:
            found = results.of_batch(batch, arm)
            if found:
                accept = values(found, "accept_length")
                rows.append(
                    [str(batch), arm, _spread(found, "step_ms"), number(median(values(found, METRIC)))]
                    + [number(median(values(found, "prefill_ms"))), number(median(accept)) if accept else "-"]
                    + (_ratios(results, arm, found, batch) if compared else [])
                )
    lengths = sorted({(int(r["input_tokens"]), int(r["output_tokens"])) for r in results.steps})
    tokens = " and ".join(f"{inputs} prompt and {outputs} new tokens" for inputs, outputs in lengths)
    note = f"Offline engine, {tokens} per request; ms/step: one decode or verify step, median (range)."
    note += "" if results.workloads else f" {_interval_note(results)}"
    columns = ["batch", "arm", "ms/step", "tok/s", "prefill ms", "accept length", *(["ratio of tok/s [95% CI]"] if compared else [])]
    return "\n".join([note, "", _table(columns, rows), *_pictures(pictures, "step-throughput", "step-time")])


def _ratios(results: Results, arm: str, found: Sequence[Record], place: str | int) -> list[str]:
    """The ratio column: empty for the baseline."""
    first = results.arms[0]
    baseline = results.of_batch(place, first) if isinstance(place, int) else results.of_workload(place, first)
    if arm == first or not baseline:
        return ["1" if arm == first else "-"]
    return [_ratio_text(ratio(values(baseline, METRIC), values(found, METRIC)))]


def _ratio_text(found: Ratio) -> str:
    shown = headline.times(found.value)
    ends = headline.between(found)
    return f"{shown} [{', '.join(ends) if ends else 'no interval'}]" + ("" if found.separated else " =")


def _kernels(results: Results, pictures: dict[str, str]) -> str:
    if not results.profiles:
        return ""
    blocks = []
    if shares := stages.rows(results.profiles):
        blocks.append(f"\n### stages of a decode step\n{stages.HOW_TO_READ}\n\n" + "\n".join(shares))
    for record in results.profiles:
        blocks.append(f"\n### {record['arm']}, {record['stage']}, batch {record['batch']}\n{table(record).rstrip()}")
    return "\n".join([*_pictures(pictures, "kernels"), *blocks]).lstrip()


def _starts(results: Results) -> str:
    rows = []
    for arm, process in dict.fromkeys((str(start["arm"]), str(start["process"])) for start in results.starts):
        seconds = values([start for start in results.starts if (start["arm"], start["process"]) == (arm, process)], "seconds")
        s = summary(seconds)
        rows.append([arm, process, str(s.n), number(s.median) + (f" ({number(s.low)}-{number(s.high)})" if s.n > 1 else "")])
    return _table(["arm", "process", "starts", "seconds until ready: median (range)"], rows) if rows else ""


def _run(results: Results) -> str:
    header = results.header
    blocks = ["\n".join(f"    {shlex.join(command)}" for command in dict.fromkeys(tuple(entry["command"]) for entry in results.headers))]
    if len(results.headers) > 1:
        blocks.append(f"Started at {results.headers[0]['time']}, resumed at {', '.join(entry['time'] for entry in results.headers[1:])}.")
    arms = [
        [arm["name"], _code(shlex.join(map(str, arm["arguments"]))), _code(_assigned(arm["environment"])), _patches(results, arm["name"])]
        for arm in header["arms"]
    ]
    blocks.append(_table(["arm", "arguments", "environment", "patches"], arms))
    facts = {f"device {name}": value for name, value in header["device"].items() if value not in (None, "")}
    rows = [["model", str(header["model"])], ["rounds", str(header["rounds"])], ["repetitions", str(header["repetitions"])]]
    rows += [[name, str(value)] for group in (facts, header["versions"]) for name, value in group.items()]
    blocks.append(_table(["", "value"], rows))
    if header["environment"]:
        blocks.append("Environment:\n\n" + "\n".join(f"    {name}={value}" for name, value in sorted(header["environment"].items())))
    blocks.append(f"Raw lines: `{records.NAME}` ({len(results.repetitions) + len(results.steps)} counted results).")
    return "\n\n".join(blocks)


def _patches(results: Results, arm: str) -> str:
    """Patch names by state, as the arm's servers reported them."""
    by_state: dict[str, list[str]] = {}
    for start in results.starts:
        if start["arm"] == arm:
            for name, state in (start.get("patches") or {}).items():
                shown = state if isinstance(state, str) else json.dumps(state)
                by_state.setdefault(shown, []).append(name)
    return "; ".join(f"{state}: {', '.join(dict.fromkeys(names))}" for state, names in by_state.items()) or "none reported"


def _assigned(environment: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in environment.items())


def _code(text: str) -> str:
    return f"`{text}`" if text else "-"


def _spread(found: Sequence[Record], name: str) -> str:
    s = summary(values(found, name))
    return f"{number(s.median)} ({number(s.low)}-{number(s.high)}, n={s.n})" if s.n > 1 else f"{number(s.median)} (n=1)"


def _count(found: Sequence[float], how: Any) -> str:
    return str(int(how(found))) if found else "-"


def _pictures(pictures: dict[str, str], *stems: str) -> list[str]:
    return [f"\n![{stem.replace('-', ' ')}]({pictures[stem]})" for stem in stems if stem in pictures]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |", *body])
