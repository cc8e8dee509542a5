"""The plot of open-loop loads."""

from pathlib import Path

from sglang_gemma4.benchmark import latency
from sglang_gemma4.benchmark.plot_style import COLOURS, MARKERS, finish, new_figure
from sglang_gemma4.benchmark.results import Results


def latency_over_rate(results: Results, path: Path) -> bool:
    """TTFT and ITL of every load over the request rate, a line per arm: solid p99 with its range, dotted p50, the limits dashed."""
    loads = latency.loads(results)
    if not loads:
        return False
    limits = latency.limits(results)
    with new_figure(0.9 + 3.4 * len(loads)) as figure:
        axes = figure.subplots(len(loads), 2, squeeze=False)
        for row, load in zip(axes, loads, strict=True):
            for position, arm in enumerate(results.arms):
                points = latency.points(results, load, arm)
                rates = [point.rate for point in points]
                look = {"color": COLOURS[position % 8], "marker": MARKERS[position % 8]}
                for axis, name in zip(row, ("ttft", "itl"), strict=True):
                    tails = [getattr(point, f"{name}_p99") for point in points]
                    if points:
                        axis.plot(rates, [s.median for s in tails], label=f"{arm}, p99", **look)
                        axis.fill_between(rates, [s.low for s in tails], [s.high for s in tails], alpha=0.2, color=look["color"], lw=0)
                        middle = [getattr(point, f"{name}_p50").median for point in points]
                        axis.plot(rates, middle, ls=":", label=f"{arm}, p50", **look)
            for axis, limit, title in zip(row, limits, ("TTFT", "ITL"), strict=True):
                axis.axhline(limit, color="black", ls="--", lw=1, label="limit of p99")
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.set_title(f"{load}: {title}", loc="left", fontsize=12)
                axis.set_xlabel("requests/s sent")
                axis.set_ylabel("ms, logarithmic")
                axis.set_xlim(left=0)
        finish(figure, list(axes.flat), results, "Latency over request rate", path)
    return True
