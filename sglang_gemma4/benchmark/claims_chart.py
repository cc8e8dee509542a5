"""The README's chart: output tokens/s of stock SGLang, vLLM and the package by model, drawn from the rows of ``docs/claims.toml``."""

import json
from collections.abc import Sequence
from pathlib import Path

from sglang_gemma4.benchmark import plots
from sglang_gemma4.benchmark.claims import Row, day

LABELS = {"stock": "stock SGLang", "vllm": "vLLM", "package": "sglang-gemma4"}
LOOKS = {side: (plots.COLOURS[index], plots.HATCHES[index]) for side, index in plots.SIDES.items()}
"""Colour and hatch of a side. The colour is that of the side in every plot of a run; hatches distinguish the sides in black and white."""
FIELD = "Description"
"""The PNG's text field that holds :func:`bars` as JSON, which a test compares with the raw lines."""


def name(row: Row) -> str:
    """The row's label: model, weights, the GPU if it is not an H200, and the load if it is not the mix."""
    load = "" if row.readme in (None, "mix") else f", {row.readme}"
    return f"{row.model}, {row.weights}" + (f", {row.gpu}" if row.gpu != "H200" else "") + load


def bars(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Output tokens/s by side, for the README load of each row that is drawn, by the label of its bars."""
    found = {}
    for row in rows:
        if row.chart and row.readme:
            sides = row.load(row.readme).sides
            label = f"{name(row)}\n{day(row.began)}" + (f", stale since {day(row.stale.when)}" if row.stale else "")
            found[label] = {side: sides[side]["tokens"].median for side in LABELS if side in sides}
    return found


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the chart as a PNG.

    Raises:
        ValueError: matplotlib is missing.
    """
    plots.require()
    import matplotlib
    from matplotlib.figure import Figure

    found = bars(rows)
    with matplotlib.rc_context(plots._STYLE | {"hatch.color": "white", "hatch.linewidth": 1.5}):
        figure = Figure(figsize=(plots.WIDTH, 0.9 + 0.78 * len(found)), dpi=plots.DPI)
        axis = figure.subplots()
        for position, (side, label) in enumerate(LABELS.items()):
            at = [row + (position - 1) * 0.28 for row, sides in enumerate(found.values()) if side in sides]
            values = [sides[side] for sides in found.values() if side in sides]
            colour, hatch = LOOKS[side]
            drawn = axis.barh(at, values, 0.27, color=colour, hatch=hatch, label=label, edgecolor="white", lw=0.5)
            axis.bar_label(drawn, [f"{value:,.0f}" for value in values], padding=4, fontsize=10)
        for row, sides in enumerate(found.values()):
            for position, side in enumerate(LABELS):
                if side not in sides:
                    axis.text(0, row + (position - 1) * 0.28, f"  {LABELS[side]}: not measured", va="center", fontsize=9, color="#555555")
        plots._rows(axis, range(len(found)), list(found))
        axis.tick_params(axis="y", labelsize=11)
        axis.margins(x=0.1, y=0.02)
        axis.set_xlabel(
            "output tokens/s, mixed load with MTP, one GPU (H200 where none is named)\nrandom weights, simulated accept length", fontsize=11
        )
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.legend(loc="lower right", fontsize=12, frameon=True, edgecolor="white")
        figure.savefig(path, dpi=plots.DPI, metadata={FIELD: json.dumps(found), "Software": None})
