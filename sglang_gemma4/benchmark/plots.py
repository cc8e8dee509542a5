"""The plots of a run, one function each; a plot without data is not drawn. For half-size reading: 9 inches, 12 points, 150 dpi."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from sglang_gemma4.benchmark import curve_report, frontier, latency, session_report
from sglang_gemma4.benchmark.kernel_categories import counted
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import METRIC, Results, batch_place, number, pooled, sweep_size, values
from sglang_gemma4.benchmark.statistics import Summary, summary

WIDTH, DPI = 9.0, 150  # inches
# Okabe and Ito's palette: readers with any of the common colour deficiencies can tell its colours apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
SIDES = {"package": 0, "vllm": 1, "stock": 2}
"""Arms that have the same colour in every plot, with their index in :data:`COLOURS`."""
DARK = COLOURS[0:5:2]  # these need white text
MARKERS, HATCHES = ("o", "s", "^", "D", "v", "P", "X", "*"), ("", "////", "....", "xxxx")
LEAST = "least time (roofline)"
_LINE, _NAME = 100, 22  # characters of a legend's line, and of a bar's label before it breaks
_SMALL = 0.02  # a category below this share of every bar is drawn as "other"
_SIDE_BY_SIDE = 0.97  # of a bar: below this, kernels ran in parallel, and the time with any of them running is shown too
_WIDE = 0.045  # a segment with at least this share of the axis shows its percentage
_STYLE: Any = {
    "font.size": 12, "axes.titlesize": 13, "axes.grid": True, "axes.axisbelow": True, "grid.color": "#DDDDDD",
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.handlelength": 3.0,
    "figure.constrained_layout.use": True,
}  # fmt: skip


def reason_against() -> str | None:
    """Why plots cannot be drawn here, with the remedy, or None."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return "plots need matplotlib, which is not installed; pip install 'sglang-gemma4[bench]'"
    return None


def require() -> None:
    """Fail if plots cannot be drawn.

    Raises:
        ValueError: matplotlib is missing.
    """
    if reason := reason_against():
        raise ValueError(reason)


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw every plot that has data as a PNG file in ``folder``; returns the files.

    Raises:
        ValueError: matplotlib is missing.
    """
    require()
    return [path for name, plot in PLOTS.items() if plot(results, path := folder / f"{name}.png")]


@contextmanager
def _figure(height: float, results: Results, title: str, path: Path) -> Iterator[Any]:
    """An empty figure in the house style, which gets its title and one legend below everything and is saved."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI)
        yield figure
        figure.suptitle(f"{title}\n{results.place}", fontsize=13)
        entries = {label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        if LEAST in entries:
            entries[LEAST] = entries.pop(LEAST)  # last
        if entries:
            columns = max(1, min(4, len(entries), _LINE // (max(map(len, entries)) + 6)))
            figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)
        figure.savefig(path, dpi=DPI)


def _rows(axis: Any, at: Sequence[float], names: Sequence[str]) -> None:
    """Label horizontal bars or boxes with names, from the top down."""
    axis.set_yticks(at, names)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")


def _band(axis: Any, index: int, label: str, points: Mapping[int, Summary] | Mapping[float, Summary], line: str = "-") -> None:
    """Draw the medians of an arm as a line, with a band from smallest to largest."""
    colour, spreads = COLOURS[index % 8], list(points.values())
    axis.plot(list(points), [s.median for s in spreads], line, marker=MARKERS[index % 8], color=colour, label=label, lw=2, ms=7)
    axis.fill_between(list(points), [s.low for s in spreads], [s.high for s in spreads], color=colour, alpha=0.25, lw=0)


def kernel_shares(results: Results, path: Path) -> bool:
    """Draw a step's kernel time by category: a bar per arm, a panel per stage and batch, the roofline's least time; False without data."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    kernels = [
        (row, kernel["category"], kernel["microseconds"] / record["steps"])
        for row, record in enumerate(results.profiles)
        for kernel in record["kernels"]
    ]
    spent = pd.DataFrame(kernels, columns=["row", "category", "time"]).pivot_table("time", "row", "category", "sum", fill_value=0.0)
    spent = spent[spent.sum(axis=1) > 0]
    if spent.empty:
        return False
    shares = spent.div(spent.sum(axis=1), axis=0).max().drop("other", errors="ignore")
    large = shares[shares >= _SMALL].sort_values(ascending=False, kind="stable").index
    spent = spent[large].assign(other=spent.drop(columns=large).sum(axis=1))
    looks = {name: {"color": COLOURS[index % 7], "hatch": HATCHES[index // 7 % 4]} for index, name in enumerate(large)}
    panels: dict[tuple[str, int], list[int]] = {}
    for row in spent.index:
        panels.setdefault((results.profiles[row]["stage"], results.profiles[row]["batch"]), []).append(row)
    heights = [1 + len(panel) for panel in panels.values()]
    with _figure(1.6 + sum(0.6 + 0.5 * height for height in heights), results, "Kernel time of one step", path) as figure:
        axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axis, ((stage, batch), rows) in zip(axes, panels.items(), strict=True):
            records = [results.profiles[row] for row in rows]
            _bars(axis, records, spent.loc[rows], looks)
            axis.set_title(f"{stage}, batch {batch}, {records[0]['context_tokens']} tokens of context", loc="left", fontsize=12)
    return True


def _bars(axis: Any, records: Sequence[Record], spent: Any, looks: Mapping[str, Mapping[str, str]]) -> None:
    """Draw the stacked bars of one panel: each segment with its share, each bar with its total and its least possible time."""
    totals = spent.sum(axis=1)
    longest, left, any_busy = totals.max(), 0 * totals, False
    for category, times in spent.items():
        if times.any():
            look = looks.get(category, {"color": "#BBBBBB"})
            bars = axis.barh(range(len(spent)), times, 0.66, left, edgecolor="white", lw=0.5, label=category, **look)
            shown = [f"{time / total:.0%}" if time >= _WIDE * longest else "" for time, total in zip(times, totals, strict=True)]
            axis.bar_label(bars, shown, label_type="center", color="white" if look["color"] in DARK else "black")
            left = left + times
    for row, (record, total) in enumerate(zip(records, totals, strict=True)):
        # Less than the sum: kernels on several streams, and kernels that start early and wait, each count by
        # themselves.
        busy = (record.get("busy_microseconds") or 0.0) / record["steps"]
        apart = 0 < busy < _SIDE_BY_SIDE * total
        any_busy = any_busy or apart
        axis.text(total + 0.01 * longest, row, f"{number(total)} µs" + (f"\n{number(busy)} busy" if apart else ""), va="center")
        if record.get("roofline"):
            least = sum(part["microseconds"] for part in record["roofline"]["categories"])
            # Above the bar, because a line through it would cross the percentages.
            axis.plot(least, row - 0.45, "v", color="black", ms=10, clip_on=False, ls="none", label=LEAST)
    _rows(axis, range(len(records)), [fill(str(record["arm"]), _NAME) for record in records])
    axis.set_xlim(0, 1.18 * longest)
    clocks = [*dict.fromkeys(map(counted, records))] + ["busy: with any of them running"] * any_busy
    axis.set_xlabel(f"µs per step ({'; '.join(clocks)})")


def accept_lengths(results: Results, path: Path) -> bool:
    """Draw accepted tokens per verify step by workload and batch, median with range; False without speculation or if simulated."""
    if any("SGLANG_SIMULATE_ACC_LEN" in arm["environment"] for arm in results.header["arms"]):
        return False
    order = [*results.closed, *map(batch_place, results.batches)]
    found = {place: {arm: own for arm in results.arms if (own := values(results.at(place, arm), "accept_length"))} for place in order}
    found = {place: by_arm for place, by_arm in found.items() if by_arm}
    arms = [arm for arm in results.arms if any(arm in by_arm for by_arm in found.values())]
    if not found:
        return False
    with _figure(1.9 + (0.15 + 0.3 * len(arms)) * len(found), results, "Accept length", path) as figure:
        axis, thick = figure.subplots(), 0.8 / len(arms)
        for position, arm in enumerate(arms):
            spreads = {row: summary(by_arm[arm]) for row, by_arm in enumerate(found.values()) if arm in by_arm}
            at = [row + (position - (len(arms) - 1) / 2) * thick for row in spreads]
            reach = [[s.median - s.low for s in spreads.values()], [s.high - s.median for s in spreads.values()]]
            bars = axis.barh(at, [s.median for s in spreads.values()], thick, xerr=reach, capsize=3, label=arm, **_filled(results, arm))
            axis.bar_label(bars, fmt="%.2f", padding=6)
        _rows(axis, range(len(found)), list(found))
        axis.margins(x=0.12)
        axis.set_xlim(left=0)
        axis.set_xlabel("accept length (tokens per verify step): median, line: range")
    return True


def look(arms: Sequence[str], arm: str) -> int:
    """The index of an arm's colour and marker: fixed in every plot for the arms of :data:`SIDES`; other arms take those left over."""
    if arm in SIDES:
        return SIDES[arm]
    taken = {SIDES[name] for name in arms if name in SIDES}
    left = [index for index in range(len(arms) + len(taken)) if index not in taken]
    return left[[name for name in arms if name not in SIDES].index(arm)]


def _filled(results: Results, arm: str) -> dict[str, str]:
    index = look(results.arms, arm)
    return {"facecolor": COLOURS[index % 8], "hatch": HATCHES[index // 8 % 4]}


def _lines(results: Results, path: Path, kind: str, name: str, title: str, x: str, y: str) -> bool:
    """Draw a line of medians per arm with a band from smallest to largest, over the sizes in places named ``kind`` and a number."""
    places = dict(sorted((int(place.removeprefix(kind)), place) for place in results.places if re.fullmatch(rf"{kind}\d+", place)))
    if not places:
        return False
    with _figure(5.2, results, f"{title}: median, band from smallest to largest", path) as figure:
        axis = figure.subplots()
        for arm in results.arms:
            index = look(results.arms, arm)
            own = {size: summary(found) for size, place in places.items() if (found := values(results.at(place, arm), name))}
            _band(axis, index, arm, own, ("-", "--", "-.", ":")[index % 4])
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(places), [str(size) for size in places])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel(x)
        axis.set_ylabel(y)
    return True


def _by_workload(results: Results, name: str) -> dict[str, dict[str, list[float]]]:
    """A field with one value per request, by workload and arm; sweeps are used only if there is nothing else."""
    names = [workload for workload in results.closed if sweep_size(workload) is None] or results.closed
    return {workload: {arm: own for arm in results.arms if (own := pooled(results.at(workload, arm), name))} for workload in names}


def _boxes(results: Results, path: Path, groups: Mapping[str, Mapping[str, Sequence[float]]], title: str, x: str) -> bool:
    """Draw quartile boxes with whiskers from the 1st to the 99th percentile: groups with a box per arm; False without data."""
    if not any(groups.values()):
        return False
    import numpy as np

    title += ": median, quartiles, 1st to 99th percentile"
    with _figure(2.0 + 0.45 * sum(map(len, groups.values())) + 0.2 * len(groups), results, title, path) as figure:
        axis, position, ticks = figure.subplots(), 0.0, dict[str, float]()
        for workload, by_arm in groups.items():
            position += 0.6 * bool(by_arm)
            for arm, sample in by_arm.items():
                position += 1.0
                # Computed here: matplotlib's whiskers end at a value inside the percentiles, which a handful of
                # requests may lack.
                percentiles: Any = np.percentile(sample, [1, 25, 50, 75, 99])
                box = dict(zip(("whislo", "q1", "med", "q3", "whishi"), percentiles, strict=True))
                axis.bxp(
                    [{**box, "label": arm}], [position], widths=0.75, medianprops={"color": "black", "lw": 2}, orientation="horizontal",
                    boxprops={"alpha": 0.8, "label": arm, **_filled(results, arm)}, showfliers=False, patch_artist=True, manage_ticks=False,
                )  # fmt: skip
            if by_arm:
                ticks[workload] = position - (len(by_arm) - 1) / 2
        _rows(axis, list(ticks.values()), list(ticks))
        everything = [value for by_arm in groups.values() for sample in by_arm.values() for value in sample]
        logarithmic = min(everything) > 0 and max(everything) / min(everything) > 20
        if logarithmic:
            axis.set_xscale("log")
            _label_decades(axis.xaxis)
        else:
            axis.set_xlim(left=0)
        axis.set_xlabel(x + ", logarithmic" * logarithmic)
    return True


def _label_decades(scale: Any) -> None:
    """Label a logarithmic axis at 1, 2 and 5 of each decade, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    scale.set_major_formatter("{x:g}")
    scale.set_major_locator(LogLocator(subs=(1, 2, 5)))
    scale.set_minor_formatter(NullFormatter())  # matplotlib labels those too if the axis has less than two decades


def latency_over_rate(results: Results, path: Path) -> bool:
    """Draw TTFT and ITL of every load over the request rate, a line per arm: solid p99, dotted p50, with ranges; the limits dashed."""
    loads, limits = latency.loads(results), latency.limits(results)
    if not loads:
        return False
    with _figure(0.9 + 3.4 * len(loads), results, "Latency over request rate", path) as figure:
        for row, load in zip(figure.subplots(len(loads), 2, squeeze=False), loads, strict=True):
            for axis, limit, name in zip(row, limits, ("ttft", "itl"), strict=True):
                for arm in results.arms:
                    index = look(results.arms, arm)
                    for tail, line in (("p99", "-"), ("p50", ":")):
                        spreads = {point.rate: getattr(point, f"{name}_{tail}") for point in latency.points(results, load, arm)}
                        if spreads:
                            _band(axis, index, f"{arm}, {tail}", spreads, line)
                axis.axhline(limit, color="black", ls="--", lw=1, label="limit of p99")
                axis.set_yscale("log")
                _label_decades(axis.yaxis)
                axis.set_title(f"{load}: {name.upper()}", loc="left", fontsize=12)
                axis.set_xlabel("requests/s sent")
                axis.set_ylabel("ms, logarithmic")
                axis.set_xlim(left=0)
    return True


def step_curve(results: Results, path: Path) -> bool:
    """Draw step time and output tokens/s over every batch size, a line per arm with a mark at each captured size; False without data."""
    curves = {arm: found for arm in results.arms if (found := curve_report.curve(results, arm))}
    if not curves:
        return False
    with _figure(9.0, results, "Step time at every batch size, marks: captured sizes", path) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        for arm, milliseconds in curves.items():
            index, sizes = look(results.arms, arm), set(curve_report.captured(results, arm))
            marked = [place for place, batch in enumerate(milliseconds) if batch in sizes]
            looks = {"color": COLOURS[index % 8], "marker": MARKERS[index % 8], "markevery": marked, "lw": 1.5, "ms": 5, "label": arm}
            above.plot(list(milliseconds), list(milliseconds.values()), **looks)
            tokens = curve_report.accept_length(results, arm)
            below.plot(list(milliseconds), [1000 * tokens * batch / ms for batch, ms in milliseconds.items()], **looks)
        for axis, unit in ((above, "ms per step"), (below, "output tokens/s")):
            axis.set_ylabel(unit)
            axis.set_ylim(bottom=0)
        below.set_xlabel("batch size (requests)")
    return True


_STEPS = partial(_lines, kind="batch ", x="batch size (requests)")
PLOTS: dict[str, Callable[[Results, Path], bool]] = {
    "sweep-throughput": partial(_lines, kind="sweep-", name=METRIC, title="Server throughput", x="requests at once", y="output tokens/s"),
    "step-throughput": partial(_STEPS, name=METRIC, title="Decode throughput, offline engine", y="output tokens/s"),
    "step-time": partial(_STEPS, name="step_ms", title="Step time (decode or verify), offline engine", y="ms per step"),
    "step-curve": step_curve,
    "ttft": lambda found, path: _boxes(found, path, _by_workload(found, "ttft_ms"), "Time to first token", "TTFT (ms)"),
    "tpot": lambda found, path: _boxes(found, path, _by_workload(found, "tpot_ms"), "Time per output token", "TPOT (ms)"),
    "sessions": lambda found, path: _boxes(found, path, session_report.times(found), "Sessions: time to first token", "TTFT (ms)"),
    "latency-over-rate": latency_over_rate,
    "frontier": partial(frontier.draw, figure_of=_figure, looks={side: (COLOURS[at], MARKERS[at]) for side, at in SIDES.items()}),
    "kernels": kernel_shares,
    "accept-length": accept_lengths,
}
"""By file name; each writes the file and returns True, or returns False if it has no data."""
