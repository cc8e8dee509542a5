"""The report's part on step times at every batch size (``step_curve.py``): the curve, its cliffs, and the cost of captured graphs."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, mean, median

from sglang_gemma4.benchmark.results import Results, number, table

NEIGHBOURS = 3
"""Number of growth factors on either side with which a batch's own factor is compared."""
CLIFFS = 8
"""Number of rows per arm in the table of cliffs."""


def curve(results: Results, arm: str) -> dict[int, float]:
    """Milliseconds per step by batch size, ascending; medians over the passes."""
    by_batch: dict[int, list[float]] = {}
    for record in results.curves:
        if record["arm"] == arm:
            for batch, _, milliseconds in record["points"]:
                by_batch.setdefault(int(batch), []).append(milliseconds)
    return {batch: median(by_batch[batch]) for batch in sorted(by_batch)}


def accept_length(results: Results, arm: str) -> float:
    """Tokens per request and step; 1 without speculation."""
    found = [record["accept_length"] for record in results.curves if record["arm"] == arm and record["accept_length"]]
    return median(found) if found else 1.0


def captured(results: Results, arm: str) -> list[int]:
    """Batch sizes that the arm's engine captured for decode or verify steps, ascending."""
    sizes = [start["graphs"]["sizes"] for start in results.starts if start["arm"] == arm and start.get("graphs")]
    return sorted(sizes[-1]) if sizes else []


@dataclass(frozen=True)
class Cliff:
    """The growth of the step time from the measured size before ``batch`` to ``batch``, and the growth around it."""

    before: int
    batch: int
    milliseconds: tuple[float, float]
    around: float
    """Geometric mean of the growth factors on either side."""

    @property
    def ratio(self) -> float:
        return self.milliseconds[1] / self.milliseconds[0]


def cliffs(milliseconds: Mapping[int, float]) -> list[Cliff]:
    """Every step from one batch size to the next, sorted by how much it exceeds the growth around it, largest first."""
    sizes = sorted(milliseconds)
    pairs = list(itertools.pairwise(sizes))
    growth = [milliseconds[after] / milliseconds[before] for before, after in pairs]
    found = []
    for place, (before, after) in enumerate(pairs):
        near = growth[max(0, place - NEIGHBOURS) : place] + growth[place + 1 : place + 1 + NEIGHBOURS]
        around = geometric_mean(near) if near else 1.0
        found.append(Cliff(before, after, (milliseconds[before], milliseconds[after]), around))
    return sorted(found, key=lambda cliff: cliff.around / cliff.ratio)


def padded(batch: int, sizes: Sequence[int]) -> str:
    """The captured size that a batch is padded to; ``eager`` above the largest, ``-`` if none is known."""
    return str(next((size for size in sizes if size >= batch), "eager")) if sizes else "-"


def cliff_table(results: Results) -> str:
    """The largest cliffs of each arm as a Markdown table; empty without a curve."""
    rows = []
    for arm in results.arms:
        sizes = captured(results, arm)
        for cliff in cliffs(curve(results, arm))[:CLIFFS]:
            first, second = cliff.milliseconds
            steps = f"{cliff.before} to {cliff.batch}"
            graphs = f"{padded(cliff.before, sizes)} to {padded(cliff.batch, sizes)}"
            cells = [number(first), number(second), f"{cliff.ratio:.3f}", f"{cliff.around:.3f}", f"{cliff.ratio / cliff.around:.3f}"]
            rows.append([arm, steps, graphs, *cells])
    columns = ["arm", "batch", "captured size", "ms before", "ms", "growth", "growth around", "excess"]
    return table(columns, rows, 5) if rows else ""


def cost_table(results: Results) -> str:
    """The cost of each arm's captured sizes: seconds and GB of capture, and step times relative to the fastest arm's at each batch size."""
    rows = []
    curves = {arm: found for arm in results.arms if (found := curve(results, arm))}
    for arm, milliseconds in curves.items():
        starts = [start for start in results.starts if start["arm"] == arm and start.get("graphs")]
        spent, held = (number(_decode([start["graphs"][name] for start in starts])) if starts else "-" for name in ("seconds", "gb"))
        ready = number(median(float(start["seconds"]) for start in starts)) if starts else "-"
        over = {batch: ms / min(own[batch] for own in curves.values() if batch in own) - 1 for batch, ms in milliseconds.items()}
        worst = max(over, key=lambda batch: over[batch])
        sizes = captured(results, arm)
        lost = [f"{mean(over.values()):.1%}", f"{over[worst]:.1%} at {worst}"]
        rows.append([arm, str(len(sizes)), spent, held, ready, *lost, _ranges(sizes) or "-"])
    columns = ["arm", "sizes", "capture s", "graphs GB", "ready after s", "over the fastest: mean", "worst", "captured sizes"]
    return table(columns, rows) if rows else ""


def _decode(usages: Iterable[Mapping[str, float]]) -> float:
    """The sum over decode, verify and draft graphs, without prefill graphs; the median over starts."""
    return median(sum(value for phase, value in usage.items() if "prefill" not in phase) for usage in usages)


def _ranges(sizes: Sequence[int]) -> str:
    """Ascending sizes as text such as ``1-8, 10-32 by 2, 40``, with equal distances merged."""
    parts: list[str] = []
    left = list(sizes)
    while left:
        step = left[1] - left[0] if len(left) > 1 else 0
        run = 1
        while run < len(left) and left[run] - left[run - 1] == step:
            run += 1
        run = run if run > 2 else 1
        parts.append(str(left[0]) if run == 1 else f"{left[0]}-{left[run - 1]}" + (f" by {step}" if step > 1 else ""))
        left = left[run:]
    return ", ".join(parts)


def described(results: Results) -> str:
    """A sentence on how the curves were measured."""
    kinds = {(record["batch"], record["input_tokens"], record["tokens_between"]): None for record in results.curves}
    each = "; ".join(
        f"{batch} requests of {inputs} prompt tokens that end one after another, {tokens} tokens apart" for batch, inputs, tokens in kinds
    )
    return f"{each}. Growth around: geometric mean of the {NEIGHBOURS} growth factors on either side; the excess is the growth beyond it."


def text(results: Results) -> str:
    """Both tables, for a terminal."""
    return "\n\n".join(filter(None, (cost_table(results), cliff_table(results))))


def sentence(results: Results) -> str:
    """For the first line of a report: the largest excess of each arm over the growth around it."""
    parts = []
    for arm in results.arms:
        if found := cliffs(curve(results, arm)):
            cliff = found[0]
            parts.append(f"{arm}: largest cliff {cliff.ratio / cliff.around:.2f}x at batch {cliff.before} to {cliff.batch}")
    return "; ".join(parts)
