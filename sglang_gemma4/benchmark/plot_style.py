"""How plots look: a figure in the house style, its title, legend and file. Made to be read at half size: 9 inches, 12 points, 150 dpi."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark.results import Results

WIDTH = 9.0  # inches
DPI = 150
# Okabe and Ito's palette: told apart by readers with any of the common colour deficiencies.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", "xxxx")
LEAST = "least time (roofline)"
_LINE = 100  # characters of a legend's line
_STYLE: Any = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "figure.constrained_layout.use": True,
}


@contextmanager
def new_figure(height: float) -> Iterator[Any]:
    """An empty figure in the house style; matplotlib's own defaults are back afterwards."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        yield Figure(figsize=(WIDTH, height), dpi=DPI)


def finish(figure: Any, axes: Sequence[Any], results: Results, title: str, path: Path) -> None:
    """Title, one legend below everything, file."""
    figure.suptitle(f"{title}\n{results.place}", fontsize=13)
    entries = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if LEAST in entries:
        entries[LEAST] = entries.pop(LEAST)  # last
    if entries:
        longest = max(map(len, entries))
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=max(1, min(4, len(entries), _LINE // (longest + 6)))
        )
    figure.savefig(path, dpi=DPI)
