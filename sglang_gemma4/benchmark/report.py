"""REPORT.md of a run folder, made from its raw lines: the gain, caveats, tables, plots, what was run (``report.md.jinja``)."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sglang_gemma4.benchmark import caveats, curve_report, headline, load_report, plots, session_report, stages
from sglang_gemma4.benchmark.kernel_categories import table as kernel_table
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import METRIC, TIMED, Results, batch_place, load, number, place_of, pooled, sweep_size, table, values
from sglang_gemma4.benchmark.statistics import ratio, summary

NAME = "REPORT.md"
Column = Callable[[Sequence[Record]], str]  # a cell from the counted results of an arm at a place
_RATIO = "ratio [95% CI]"
_INTERVALS = (
    "Ratio: median tok/s over {}'s, with a 95% percentile bootstrap interval of the repetitions, each row for itself; `=` marks one that "
    "is not separated from 1 (it includes 1, cannot be given, or rests on too few repetitions)."
)


def write(folder: Path) -> Path:
    """Draw the plots of ``folder/raw.jsonl`` and write ``folder/REPORT.md``; returns its path.

    Without matplotlib the text is the same and shows the plots that the folder already has.

    Raises:
        ValueError: the folder has no header line.
    """
    results = load(folder)
    if plots.reason_against():
        drawn = [path for name in plots.PLOTS if (path := folder / f"{name}.png").exists()]
    else:
        drawn = plots.draw(results, folder)
    path = folder / NAME
    path.write_text(markdown(results, [file.name for file in drawn]))
    return path


def markdown(results: Results, drawn: Sequence[str] = ()) -> str:
    """The report's text; ``drawn`` are the plot files in its folder."""
    from jinja2 import Environment, StrictUndefined

    page = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined).from_string(
        Path(__file__).with_name("report.md.jinja").read_text()
    )
    lengths = sorted({(record["input_tokens"], record["output_tokens"]) for record in results.counted if "batch" in record})
    text = page.render(
        results=results,
        plots=[Path(name).stem for name in drawn],
        headline=headline.sentence(results),
        caveats=caveats.sentences(results),
        workloads=_workloads(results),
        intervals=_INTERVALS.format(results.arms[0]) if len(results.arms) > 1 else "",
        loads=load_report.tables(results),
        load_note=load_report.how_to_read(results),
        goodput=load_report.goodput(results),
        sessions=session_report.rows(results),
        session_note=session_report.HOW_TO_READ,
        identity=session_report.identity(results),
        steps=_steps(results),
        step_tokens=" and ".join(f"{inputs} prompt and {outputs} new tokens" for inputs, outputs in lengths),
        curve=curve_report.described(results) if results.curves else "",
        cliffs=curve_report.cliff_table(results),
        captures=curve_report.cost_table(results) if results.curves else "",
        stages=stages.rows(results.profiles),
        stage_note=stages.HOW_TO_READ,
        host_calls=stages.calls(results.profiles),
        host_note=stages.CALLS_HOW_TO_READ,
        kernels=kernel_table,
        starts=_starts(results),
        commands=dict.fromkeys(shlex.join(header["command"]) for header in results.headers),
        arms=_arms(results),
        facts=_facts(results.header),
    )
    return re.sub(r"\n{3,}", "\n\n", text.replace(" \n", "\n")).rstrip() + "\n"


def _workloads(results: Results) -> list[tuple[str, str, str]]:
    """(title, description, table) of each workload, and of the points of a sweep together."""
    sweep = [name for name in results.closed if sweep_size(name) is not None]
    groups = [(name, [name]) for name in results.closed if name not in sweep] + ([("sweep", sweep)] if sweep else [])
    blocks = []
    for title, names in groups:
        described = "; ".join(_described(results, name) for name in dict.fromkeys((names[0], names[-1])))
        columns: dict[str, Column] = {
            "output tok/s: median (range)": lambda found: _spread(found, METRIC),
            _RATIO: lambda found: _ratio(results, found),
            "TTFT median ms": lambda found: _latency(found, "ttft_ms"),
            "TPOT median ms": lambda found: _latency(found, "tpot_ms"),
            **(_TAILS if any(record.get("itl_ms") for record in results.counted if record.get("workload") in names) else {}),
            "accept length": lambda found: _cell(found, "accept_length"),
            "full / SWA pool peak %": lambda found: " / ".join(
                _cell(found, f"{pool}_pool_peak", max, _percent) for pool in ("full", "swa")
            ),
            "running peak": lambda found: _cell(found, "running_peak", max, _whole),
            "retractions": lambda found: _cell(found, "retractions", sum, _whole),
            "prefill tokens": lambda found: _cell(found, "prefill_tokens", median, _whole),
            "peak memory GiB": lambda found: _cell(found, "memory_peak_gib", max),
        }
        blocks.append((title, described, _by_place(results, names, columns, "workload" if len(names) > 1 else "")))
    return blocks


def _steps(results: Results) -> str:
    columns: dict[str, Column] = {
        "ms/step": lambda found: _spread(found, "step_ms"),
        "tok/s": lambda found: _cell(found, METRIC),
        "prefill ms": lambda found: _cell(found, "prefill_ms"),
        "accept length": lambda found: _cell(found, "accept_length"),
        "ratio of tok/s [95% CI]": lambda found: _ratio(results, found),
    }
    return _by_place(results, [*map(batch_place, results.batches)], columns, "batch") if results.batches else ""


def _by_place(results: Results, places: Sequence[str], columns: dict[str, Column], lead: str = "") -> str:
    """A row for each place and arm with results; ``lead`` titles a first column that shows the place."""
    kept = {title: cell for title, cell in columns.items() if len(results.arms) > 1 or not title.startswith("ratio")}
    every = [(place, arm, found) for place in places for arm in results.arms if (found := results.at(place, arm))]
    rows = [[place.removeprefix("batch "), arm, *(cell(found) for cell in kept.values())] for place, arm, found in every]
    return table([lead, "arm", *kept], rows) if lead else table(["arm", *kept], [row[1:] for row in rows])


def _described(results: Results, workload: str) -> str:
    asked = next((one for one in results.header["workloads"] if one["name"] == workload), None)
    if asked is None:
        return f"{workload}: not in the header's workloads"
    if asked.get("sessions"):
        longest = asked["input_tokens"] + asked["output_tokens"]
        think = f"{asked['think']:g} s (mean) between an answer and the next turn"
        return f"{workload}: {asked['sessions']} sessions that reach {longest} tokens in {asked['turns']} turns, {think}"
    at_once = f"{asked['concurrency']} at once" if asked.get("concurrency") else "all at once"
    images = f", {asked['images']} images of {asked['image_size']} x {asked['image_size']} pixels each" if asked.get("images") else ""
    requests = f"{asked['requests']} request{'s' * (asked['requests'] != 1)}"
    most = f"{asked['lengths']} lengths, at most " if asked.get("lengths") else ""
    return f"{workload}: {requests}, {at_once}, {most}{asked['input_tokens']} prompt and {asked['output_tokens']} new tokens{images}"


def _ratio(results: Results, found: Sequence[Record]) -> str:
    """The ratio column: 1 for the baseline, ``-`` where that has no result, ``=`` after a ratio that is not separated from 1."""
    first = results.arms[0]
    baseline = results.at(place_of(found[0]), first)
    if found[0]["arm"] == first or not baseline:
        return "1" if found[0]["arm"] == first else "-"
    own = ratio(values(baseline, METRIC), values(found, METRIC))
    decimals = 3 if 0.9 < own.value < 1.1 else 2
    ends = "no interval" if own.low is None else f"{own.low:.{decimals}f}, {own.high:.{decimals}f}"
    return f"{own.value:.{decimals}f} [{ends}]" + ("" if own.separated else " =")


def _spread(found: Sequence[Record], name: str) -> str:
    s = summary(values(found, name))
    return f"{number(s.median)} ({number(s.low)}-{number(s.high)}, n={s.n})" if s.n > 1 else f"{number(s.median)} (n=1)"


def _cell(found: Sequence[Record], name: str, how: Callable[[list[float]], float] = median, shown: Callable[[float], str] = number) -> str:
    return shown(how(present)) if (present := values(found, name)) else "-"


def _whole(value: float) -> str:
    return str(int(value))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _latency(found: Sequence[Record], name: str) -> str:
    """Median over the requests, if enough of them have times."""
    timed = len(pooled(found, "ttft_ms")) >= TIMED * sum(int(record["completed"]) for record in found)
    return number(median(spans)) if timed and (spans := pooled(found, name)) else "-"


def _tail(found: Sequence[Record]) -> str:
    """The 99th percentile of TTFT, as the median over passes."""
    each = [float(np.percentile(times, 99)) for record in found if (times := pooled([record], "ttft_ms"))]
    return number(median(each)) if each else "-"


def _itl(found: Sequence[Record]) -> str:
    """Median and 99th percentile of the inter-token latency, each as the median over passes."""
    each = [record["itl_ms"] for record in found if record.get("itl_ms")]
    return " / ".join(number(median(gaps[name] for gaps in each)) for name in ("p50", "p99")) if each else "-"


_TAILS: dict[str, Column] = {"TTFT p99 ms": _tail, "ITL p50 / p99 ms": _itl, load_report.ADMITTING: load_report.admitting}
"""Columns of workloads that were sent as token ids."""


def _starts(results: Results) -> str:
    rows = []
    for arm, process in dict.fromkeys((str(start["arm"]), str(start["process"])) for start in results.starts):
        s = summary(values([start for start in results.starts if (start["arm"], start["process"]) == (arm, process)], "seconds"))
        rows.append([arm, process, str(s.n), number(s.median) + (f" ({number(s.low)}-{number(s.high)})" if s.n > 1 else "")])
    return table(["arm", "process", "starts", "seconds until ready: median (range)"], rows) if rows else ""


def _arms(results: Results) -> str:
    rows = []
    for arm in results.header["arms"]:
        environment = " ".join(f"{name}={value}" for name, value in arm["environment"].items())
        texts = [f"`{text}`" if text else "-" for text in (shlex.join(map(str, arm["arguments"])), environment)]
        rows.append([arm["name"], *texts, _patches(results, arm["name"])])
    return table(["arm", "arguments", "environment", "patches"], rows)


def _patches(results: Results, arm: str) -> str:
    """Patch names by state, as reported by the arm's servers."""
    by_state: dict[str, dict[str, None]] = {}
    for start in results.starts:
        for name, state in (start.get("patches") or {}).items() if start["arm"] == arm else ():
            by_state.setdefault(state if isinstance(state, str) else json.dumps(state), {})[name] = None
    return "; ".join(f"{state}: {', '.join(names)}" for state, names in by_state.items()) or "none reported"


def _facts(header: Record) -> str:
    facts: dict[str, Any] = {name: header[name] for name in ("model", "rounds", "repetitions")}
    facts |= {f"device {name}": value for name, value in header["device"].items() if value not in (None, "")} | header["versions"]
    return table(["", "value"], [[name, str(value)] for name, value in facts.items()])
