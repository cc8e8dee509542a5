"""Layouts of the norms', the tail's and the rotation's kernels for many rows on this card, beside what is launched today and the floor.

    python -m sglang_gemma4.benchmark.row_tile_times [--rows 1024 8192] [--seconds 60] > times.md

26B-A4B's sizes. A best layout is entered by hand as ``TILES`` or ``tiles_for`` of the kernel's module, and the rows from which it wins as
``MANY_ROWS`` (``MANY_TOKENS``). "Differ" is the share of elements that are not those of today's launch: a sum's terms are added in another
order. A layout that does not compile, or of which more than 1 % differ, is named with its reason and wins nothing. What the seconds don't
reach is named too; the layouts that should win come first.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.benchmark.layer_times import SETS, Case, end, queries, triple
from sglang_gemma4.kernels.norms.qkv_norm_rope_tokens import TokenTiles
from sglang_gemma4.kernels.norms.row_parts import RowTiles
from sglang_gemma4.kernels.norms.triple_rmsnorm import triple_rmsnorm

MOST_DIFFERENT = 0.01
ROW_TILES = [
    RowTiles(rows, block, warps, stages)
    for rows, block, warps, stages in (
        (1, 1024, 4, 1), (1, 512, 2, 1), (1, 256, 1, 1), (4, 1024, 4, 2), (4, 512, 2, 1), (8, 1024, 4, 3),
        (16, 1024, 4, 2), (1, 256, 2, 1), (4, 256, 1, 1), (4, 4096, 8, 2), (4, 1024, 4, 1), (1, 1024, 2, 1),
    )
]  # fmt: skip
TOKEN_TILES = [TokenTiles(tokens, warps) for tokens, warps in ((1, 4), (1, 2), (4, 4), (1, 8), (4, 2), (2, 4))]
MAKERS: list[tuple[Callable[[int], Case], Sequence[RowTiles | TokenTiles]]] = [
    (partial(triple, width=2816, moe=True), ROW_TILES),
    (partial(end, width=2816, moe=True), ROW_TILES),
    (partial(queries, heads=16, kv_heads=8, dim=256, pool=True), TOKEN_TILES),
    (partial(queries, heads=16, kv_heads=2, dim=512, pool=True), TOKEN_TILES),
    (partial(queries, heads=16, kv_heads=8, dim=256), TOKEN_TILES),
]


def reset(case: Case) -> None:
    """Back to the residual that the first call saw: after attention it is updated in place."""
    if isinstance(case.ours, partial) and case.ours.func is triple_rmsnorm:
        residual = case.ours.args[1]
        residual.copy_(torch.linspace(-2, 2, residual.numel(), device=residual.device).view_as(residual))


def results(case: Case, **tiles: Any) -> list[torch.Tensor]:
    """Of one call, in memory of their own."""
    reset(case)
    found: Any = case.ours(**tiles)
    return [one.clone() for one in found]


def share_of_others(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Of elements that differ at all; 1 where any is far off."""
    for one, other in zip(found, expected, strict=True):
        if not torch.allclose(one.float(), other.float(), atol=2e-2, rtol=2e-2):
            return 1.0
    differ: int = sum(int((one != other).sum()) for one, other in zip(found, expected, strict=True))
    return differ / sum(int(one.numel()) for one in found)


def short(tiles: Any) -> str:
    """``4x1024/4w/2s``: rows, columns, warps, stages; ``4/2w``: tokens and warps."""
    if isinstance(tiles, TokenTiles):
        return f"{tiles.tokens}/{tiles.warps}w"
    return f"{tiles.rows}x{tiles.block}/{tiles.warps}w/{tiles.stages}s"


def timed(sets: Sequence[Case], tiles: Any, expected: Sequence[torch.Tensor], rounds: int) -> tuple[float, float] | str:
    """Microseconds and the share that differs, or why there are none."""
    try:
        differ = share_of_others(results(sets[0], tiles=tiles), expected)
        if differ > MOST_DIFFERENT:
            return f"{100 * differ:.2g} % differ"
        return microseconds([partial(one.ours, tiles=tiles) for one in sets], rounds), differ
    except Exception as error:  # one that does not fit the card's registers or shared memory is no candidate
        return reason(error)


def reason(error: Exception) -> str:
    """On one line, not all of a compiler's output."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def row(
    make: Callable[[int], Case], every: Sequence[Any], rows: int, options: argparse.Namespace, deadline: float, notes: list[str]
) -> str:
    """The table's line for one kernel; what is left out of it goes to ``notes``."""
    sets = [make(rows) for _ in range(SETS)]
    today = microseconds([one.ours for one in sets], options.rounds)
    expected = results(sets[0])
    took: dict[Any, tuple[float, float]] = {}
    for tiles in every:
        found = "the time was over" if time.monotonic() > deadline else timed(sets, tiles, expected, options.rounds)
        if isinstance(found, str):
            notes.append(f"- {sets[0].name}, {rows} rows, {short(tiles)}: {found}")
        else:
            took[tiles] = found
    ordered = sorted(took, key=lambda tiles: took[tiles][0])
    best = [f"{took[ordered[0]][0]:.1f}", str(ordered[0]), f"{100 * took[ordered[0]][1]:.3f} %"] if ordered else ["-", "-", "-"]
    floor = sets[0].moved / options.bandwidth / 1000
    listed = ", ".join(f"{short(tiles)} {took[tiles][0]:.1f}" for tiles in ordered)
    return " | ".join([sets[0].name, str(rows), f"{today:.1f}", *best, f"{floor:.1f}", listed])


def print_table(options: argparse.Namespace) -> None:
    """Markdown, line by line, then what is not in it. The largest batch comes first: it compiles for all, and memory sets its time."""
    began = time.monotonic()
    notes: list[str] = []
    print("| kernel | rows | today µs | best µs | best layout | differ | floor µs | all µs |\n|" + " --- |" * 8, flush=True)
    batches = sorted(options.rows, reverse=True)
    for rows in batches:
        until = began + options.seconds * (1.0 if rows == batches[-1] else 0.8)
        for number, (make, every) in enumerate(MAKERS):
            # Each line has an equal part of what is left, so that slow compiling costs layouts, not kernels.
            now = time.monotonic()
            try:
                print(f"| {row(make, every, rows, options, now + (until - now) / (len(MAKERS) - number), notes)} |", flush=True)
            except Exception as error:  # the lines after are still of use
                notes.append(f"- {getattr(make, 'func', make).__name__}, {rows} rows: {reason(error)}")
    print("\n" + "\n".join([*notes, f"- {time.monotonic() - began:.0f} s in all"]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", nargs="+", type=int, default=[1024, 8192], metavar="N", help="of a batch (1024 8192)")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="in which no layout is begun any more (default 60)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="replays of each graph (default 5)")
    parser.add_argument("--bandwidth", type=float, default=4295.0, metavar="GB/S", help="of the card's memory (default: an H200's)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("row_tile_times needs a CUDA card")
    print_table(options)


if __name__ == "__main__":
    main()
