"""The plots of a run, one function each; what has no data is not drawn."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from sglang_gemma4.benchmark.kernel_categories import counted
from sglang_gemma4.benchmark.load_plot import latency_over_rate
from sglang_gemma4.benchmark.plot_style import COLOURS, HATCHES, LEAST, MARKERS, finish, new_figure
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.results import METRIC, Results, batch_place, number, pooled, sweep_size, values
from sglang_gemma4.benchmark.statistics import Summary, summary

_OTHER = "#BBBBBB"
_NAME = 22  # characters of a bar's label before it breaks
_SMALL = 0.02  # a category below this share of every bar is drawn as "other"
_SIDE_BY_SIDE = 0.97  # of a bar: where kernels ran at once, the time with any of them running is shown too
_WIDE = 0.045  # a segment at least this share of the axis carries its percentage


def require() -> None:
    """Fail before a long run if its plots could not be drawn.

    Raises:
        ValueError: matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("plots need matplotlib, which is not installed; pip install 'sglang-gemma4[bench]'") from None


def draw(results: Results, folder: Path) -> list[Path]:
    """Every plot there is data for, as PNG files in ``folder``; the files written.

    Raises:
        ValueError: matplotlib is missing.
    """
    require()
    return [path for name, plot in PLOTS.items() if plot(results, path := folder / f"{name}.png")]


def kernel_shares(results: Results, path: Path) -> bool:
    """One step's kernel time by category, a bar per arm and a panel per stage and batch, with the roofline's least time; False without."""
    profiles = [record for record in results.profiles if sum(_spent(record).values()) > 0]
    places = list(dict.fromkeys((str(r["stage"]), int(r["batch"])) for r in profiles))
    if not places:
        return False
    categories, colours = _categories(profiles)
    panels = [[r for r in profiles if (r["stage"], r["batch"]) == place] for place in places]
    with new_figure(1.6 + sum(1.1 + 0.5 * len(panel) for panel in panels)) as figure:
        axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": [1 + len(panel) for panel in panels]})[:, 0]
        for axis, (stage, batch), panel in zip(axes, places, panels, strict=True):
            _bars(axis, panel, categories, colours)
            axis.set_title(f"{stage}, batch {batch}, {panel[0]['context_tokens']} tokens of context", loc="left", fontsize=12)
            busy = "; busy: with any of them running" if any(map(_busy, panel)) else ""
            axis.set_xlabel(f"µs per step ({'; '.join(dict.fromkeys(map(counted, panel)))}{busy})")
        finish(figure, axes, results, "Kernel time of one step", path)
    return True


def accept_lengths(results: Results, path: Path) -> bool:
    """Accepted tokens per verify step by workload and batch, median with range; False without speculation."""
    order = [*results.closed, *map(batch_place, results.batches)]
    places = [(name, {arm: values(results.at(name, arm), "accept_length") for arm in results.arms}) for name in order]
    places = [(name, found) for name, found in places if any(found.values())]
    arms = [arm for arm in results.arms if any(found[arm] for _, found in places)]
    if not places:
        return False
    with new_figure(1.9 + (0.15 + 0.3 * len(arms)) * len(places)) as figure:
        axis = figure.subplots()
        thick = 0.8 / len(arms)
        for position, arm in enumerate(arms):
            own = [(row, summary(found[arm])) for row, (_, found) in enumerate(places) if found[arm]]
            at = [row + (position - (len(arms) - 1) / 2) * thick for row, _ in own]
            index = results.arms.index(arm)
            axis.barh(at, [s.median for _, s in own], thick, label=arm, color=COLOURS[index % 8], hatch=HATCHES[index // 8 % 4])
            axis.errorbar([s.median for _, s in own], at, xerr=_reach([s for _, s in own]), fmt="none", ecolor="black", capsize=3)
            for y, (_, s) in zip(at, own, strict=True):
                axis.annotate(f"{s.median:.2f}", (s.high, y), (6, 0), textcoords="offset points", va="center")
        axis.set_yticks(range(len(places)), [name for name, _ in places])
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        axis.margins(x=0.12)
        axis.set_xlim(left=0)
        axis.set_xlabel("accept length (tokens per verify step): median, line: range")
        finish(figure, [axis], results, "Accept length", path)
    return True


def _lines(results: Results, path: Path, kind: str, name: str, title: str, x: str, y: str) -> bool:
    """A line of medians per arm with a band from smallest to largest, over the sizes in places named ``kind`` and a number."""
    places = {int(place.removeprefix(kind)): place for place in results.places if re.fullmatch(rf"{kind}\d+", place)}
    places = dict(sorted(places.items()))
    lines = {arm: {size: values(results.at(place, arm), name) for size, place in places.items()} for arm in results.arms}
    if not places:
        return False
    with new_figure(5.2) as figure:
        axis = figure.subplots()
        for index, (arm, points) in enumerate(lines.items()):
            own = [(size, summary(found)) for size, found in points.items() if found]
            sizes, spreads = [size for size, _ in own], [s for _, s in own]
            colour, style = COLOURS[index % 8], ("-", "--", "-.", ":")[index % 4]
            axis.plot(sizes, [s.median for s in spreads], style, marker=MARKERS[index % 8], color=colour, label=arm, lw=2, ms=7)
            axis.fill_between(sizes, [s.low for s in spreads], [s.high for s in spreads], color=colour, alpha=0.25, lw=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(places), [str(size) for size in places])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        finish(figure, [axis], results, f"{title}: median, band from smallest to largest", path)
    return True


def _boxes(results: Results, path: Path, name: str, title: str, x: str) -> bool:
    """Quartile boxes with whiskers from the 1st to the 99th percentile, grouped by workload; sweeps only if there is nothing else."""
    names = [workload for workload in results.closed if sweep_size(workload) is None] or results.closed
    rows = [(workload, arm, found) for workload in names for arm in results.arms if (found := pooled(results.at(workload, arm), name))]
    if not rows:
        return False
    from matplotlib.ticker import LogLocator

    with new_figure(2.0 + 0.45 * len(rows) + 0.2 * len(names)) as figure:
        axis = figure.subplots()
        at: list[float] = []
        ticks: dict[str, list[float]] = {}
        position = 0.0
        for row, (workload, _, _) in enumerate(rows):
            position += 1.0 if row and rows[row - 1][0] == workload else 1.6
            at.append(position)
            ticks.setdefault(workload, []).append(position)
        for arm in results.arms:
            own = [(y, found) for y, (_, of, found) in zip(at, rows, strict=True) if of == arm]
            if own:
                _box(axis, [found for _, found in own], [y for y, _ in own], results.arms.index(arm), arm)
        axis.set_yticks([sum(group) / len(group) for group in ticks.values()], list(ticks))
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        everything = [value for _, _, found in rows for value in found]
        if min(everything) > 0 and max(everything) / min(everything) > 20:
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            x += ", logarithmic"
        else:
            axis.set_xlim(left=0)
        axis.set_xlabel(x)
        finish(figure, [axis], results, f"{title}: median, quartiles, 1st to 99th percentile", path)
    return True


def _box(axis: Any, samples: list[list[float]], at: list[float], index: int, arm: str) -> None:
    import numpy as np

    # Computed here: matplotlib's whiskers end at a value within the percentiles, which a handful of requests does not have.
    names = ("whislo", "q1", "med", "q3", "whishi")
    percentiles: Any = [np.percentile(sample, [1, 25, 50, 75, 99]) for sample in samples]
    boxes = [dict(zip(names, own, strict=True)) for own in percentiles]
    look = {"facecolor": COLOURS[index % 8], "alpha": 0.8, "hatch": HATCHES[index // 8 % 4]}
    options = {"orientation": "horizontal", "showfliers": False, "patch_artist": True, "manage_ticks": False}
    drawn = axis.bxp(boxes, at, widths=0.75, medianprops={"color": "black", "lw": 2}, boxprops=look, **options)
    drawn["boxes"][0].set_label(arm)


def _categories(profiles: Sequence[Record]) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Categories by total time, those small everywhere gathered as "other", and the colour and hatch of each."""
    shares: dict[str, float] = {}
    for record in profiles:
        spent = _spent(record)
        for category, time in spent.items():
            shares[category] = max(shares.get(category, 0.0), time / (sum(spent.values()) or 1.0))
    large = sorted((name for name, share in shares.items() if share >= _SMALL and name != "other"), key=lambda name: -shares[name])
    colours = {name: (COLOURS[index % 7], HATCHES[index // 7 % 4]) for index, name in enumerate(large)}
    small = ["other"] if len(large) < len(shares) else []
    return large + small, colours | {"other": (_OTHER, "")}


def _spent(record: Record) -> dict[str, float]:
    """Microseconds of one step by category."""
    spent: dict[str, float] = {}
    for kernel in record["kernels"]:
        spent[str(kernel["category"])] = spent.get(str(kernel["category"]), 0.0) + kernel["microseconds"] / record["steps"]
    return spent


def _busy(record: Record) -> float | None:
    """Microseconds of one step with any kernel running, where that is less than their sum: of kernels on several streams, and of those
    that are on the card early and wait, each counts by itself."""
    busy = (record.get("busy_microseconds") or 0.0) / record["steps"]
    return busy if 0 < busy < _SIDE_BY_SIDE * sum(_spent(record).values()) else None


def _bars(axis: Any, panel: Sequence[Record], categories: Sequence[str], colours: dict[str, tuple[str, str]]) -> None:
    """Stacked bars of one panel, each segment with its share, each bar with its total and its least possible time."""
    longest = max(sum(_spent(record).values()) for record in panel)
    for row, record in enumerate(panel):
        spent = _spent(record)
        total, left = sum(spent.values()), 0.0
        for category in categories:
            time = (
                spent.get(category, 0.0)
                if category != "other"
                else total - sum(spent.get(name, 0.0) for name in categories if name != "other")
            )
            colour, hatch = colours[category]
            axis.barh(row, time, 0.66, left, color=colour, hatch=hatch, edgecolor="white", lw=0.5, label=category)
            if time >= _WIDE * longest:
                dark = colour in ("#0072B2", "#009E73", "#D55E00")
                axis.text(left + time / 2, row, f"{time / total:.0%}", ha="center", va="center", color="white" if dark else "black")
            left += time
        busy = _busy(record)
        axis.text(total + 0.01 * longest, row, f"{number(total)} µs" + (f"\n{number(busy)} busy" if busy else ""), va="center")
        if record.get("roofline"):
            least = sum(part["microseconds"] for part in record["roofline"]["categories"])
            # Above the bar: a line through it would cross the percentages.
            axis.plot(least, row - 0.45, "v", color="black", ms=10, clip_on=False, ls="none", label=LEAST)
    axis.set_yticks(range(len(panel)), [fill(str(record["arm"]), _NAME) for record in panel])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.18 * longest)
    axis.grid(visible=False, axis="y")


def _reach(spreads: Sequence[Summary]) -> list[list[float]]:
    return [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]


PLOTS: dict[str, Callable[[Results, Path], bool]] = {
    "sweep-throughput": partial(_lines, kind="sweep-", name=METRIC, title="Server throughput", x="requests at once", y="output tokens/s"),
    "step-throughput": partial(
        _lines, kind="batch ", name=METRIC, title="Decode throughput, offline engine", x="batch size (requests)", y="output tokens/s"
    ),
    "step-time": partial(
        _lines,
        kind="batch ",
        name="step_ms",
        title="Step time (decode or verify), offline engine",
        x="batch size (requests)",
        y="ms per step",
    ),
    "ttft": partial(_boxes, name="ttft_ms", title="Time to first token", x="TTFT (ms)"),
    "tpot": partial(_boxes, name="tpot_ms", title="Time per output token", x="TPOT (ms)"),
    "latency-over-rate": latency_over_rate,
    "kernels": kernel_shares,
    "accept-length": accept_lengths,
}
"""By file name; each writes the file and returns True, or returns False where there is no data for it."""
