"""What every kernel benchmark shares: cases, inputs on a device, alternating timing, statistics, the table and the raw lines."""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, is_dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.benchmark import machine, statistics
from sglang_gemma4.benchmark.kernels.timer import Call, prepare
from sglang_gemma4.kernels import dependent_launch

CACHE_BYTES = 200e6
"""Bytes that all sets of inputs of a row move together: four times an H200's L2 cache."""
SHOWN = 5
"""Number of candidate tiles that are timed again and printed."""
FAR, MOST_FAR = 2e-2, 0.01
"""A tile is wrong if more than a share MOST_FAR of its outputs are further than FAR (absolute and relative) from the expected ones."""


@dataclass(frozen=True)
class Place:
    """Where inputs are made: "cuda", "cpu" (a dry run under Triton's interpreter) or "meta" (shapes only).

    ``tiny``: sizes that the interpreter computes in seconds.
    """

    device: str = "cuda"
    tiny: bool = False
    seed: int = field(default=0, compare=False)
    """The number of this set of inputs, for a case whose sets must differ."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device == "cpu" else torch.bfloat16

    def rand(self, *shape: int, around: float = 0.0, spread: float = 1.0) -> torch.Tensor:
        """Normally distributed values with mean ``around`` and standard deviation ``spread``."""
        return torch.empty(shape, dtype=self.dtype, device=self.device).normal_(around, spread)

    def pick(self, full: Any, tiny: Any) -> Any:
        """``full``, a size of the real model, or ``tiny`` in a dry run."""
        return tiny if self.tiny else full


@dataclass
class Row:
    """One set of inputs and the ways to compute the same result from them; all ways are compared with the first."""

    ways: Mapping[str, Call]
    moved: float
    """Bytes that must be read or written once."""
    flops: float = 0.0
    tiles: Mapping[str, Call] = field(default_factory=dict)
    """Candidates for ``--tune``: the last way with another tile each."""
    parts: int = 1
    """Number of equal parts, such as layers, that one call computes; times are per part."""

    def floor(self, bandwidth: float, teraflops: float) -> float:
        """Microseconds that moving the bytes (GB/s) or the arithmetic (TFLOP/s) takes, whichever is longer."""
        return max(self.moved / bandwidth / 1e3, self.flops / teraflops / 1e6)


@dataclass(frozen=True)
class Case:
    """A sweep: ``make`` gives the row for each combination of the axes' values, or None to leave it out."""

    name: str
    compares: str
    axes: Mapping[str, tuple[Any, ...]]
    make: Callable[..., Row | None]
    """Called as ``make(place, **axes)``."""
    tiny: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of the axes in a dry run; an axis that is not named takes its first value."""
    sets: int | None = None
    """Number of sets of inputs that alternate; None: as many as exceed the cache, 2 to 10."""
    graph: bool = True
    """Whether the calls are captured in a CUDA graph."""
    alike: bool = True
    """Whether ways whose outputs have one shape must agree in a dry run."""

    def combinations(self, chosen: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
        """The axes' values of each row, by axis."""
        for values in itertools.product(*(chosen[name] for name in self.axes)):
            yield dict(zip(self.axes, values, strict=True))

    def rows(self, place: Place, chosen: Mapping[str, Sequence[Any]]) -> Iterator[tuple[dict[str, Any], Row]]:
        """The axes' values and one set of inputs of each row."""
        for named in self.combinations(chosen):
            row = self.make(place, **named)
            if row is not None:
                yield named, row

    def dry_axes(self) -> dict[str, Sequence[Any]]:
        """The axes' values of a dry run."""
        return {name: self.tiny.get(name, values[:1]) for name, values in self.axes.items()}


@dataclass(frozen=True)
class Options:
    """How a case is measured."""

    rounds: int = 9
    bandwidth: float = 4295.0
    teraflops: float = 793.7
    """Of the GPU, for the floor; the defaults were measured on an H200."""
    ways: Sequence[str] = ()
    """Measure only ways whose name contains one of these texts; empty: all."""
    tune: float | None = None
    """Seconds in which candidate tiles are started; None: no tuning."""
    raw: Path | None = None


def run(case: Case, chosen: Mapping[str, Sequence[Any]], options: Options, place: Place, say: Callable[[str], None] = print) -> None:
    """Measure every row of a case; ``say`` gets each line of the table as soon as it is known."""
    heads = [*case.axes, "way", "µs", "least to most", "of the first (95 %)", "floor µs", "apart"]
    say(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    if options.raw:
        _append(options.raw, {"kind": "header", "time": datetime.now(UTC).isoformat(timespec="seconds"), **machine.facts(sys.argv)})
    for named in case.combinations(chosen):
        _measure(case, named, options, place, say)
        if place.device == "cuda":
            torch.cuda.empty_cache()  # inputs of the next row may take most of the GPU's memory


def _measure(case: Case, named: dict[str, Any], options: Options, place: Place, say: Callable[[str], None]) -> None:
    first = case.make(place, **named)
    if first is None:
        return
    count = case.sets or max(2, min(10, round(CACHE_BYTES / max(1.0, first.moved))))
    rows = [first, *(case.make(replace(place, seed=number), **named) for number in range(1, count))]
    calls = {name: [row.ways[name] for row in rows if row] for name in first.ways if _wanted(name, options.ways)}
    tiles = {name: [row.tiles[name] for row in rows if row] for name in first.tiles}
    floor = first.floor(options.bandwidth, options.teraflops) / first.parts
    measured = timed(calls, place, case.graph, options.rounds, first.parts)
    if options.tune is not None and tiles:
        measured |= tuned(tiles, list(first.ways.values())[-1], place, case.graph, options, say, first.parts)
    baseline = next((taken for taken in measured.values() if not isinstance(taken, str)), [])
    outputs: list[Any] = []
    for name, taken in measured.items():
        cells = [*map(str, named.values()), name]
        if isinstance(taken, str):
            cells += [taken, "", "", "", ""]
        else:
            outputs.append(_copied((calls.get(name) or tiles[name])[0]()))
            found = statistics.summary(taken)
            spread = f"{found.low:.2f} to {found.high:.2f}"
            cells += [f"{found.median:.2f}", spread, _ratio(baseline, taken), f"{floor:.2f}", _apart(outputs[0], outputs[-1])]
        say(f"| {' | '.join(cells)} |")
        if options.raw:
            line = {"case": case.name, **named, "way": name, "floor_us": floor}
            line |= {"reason": taken} if isinstance(taken, str) else {"us": taken}
            _append(options.raw, line)


def _append(raw: Path, line: dict[str, Any]) -> None:
    with raw.open("a") as file:
        file.write(json.dumps(line) + "\n")


def timed(calls: Mapping[str, Sequence[Call]], place: Place, graph: bool, rounds: int, parts: int = 1) -> dict[str, list[float] | str]:
    """Microseconds of each way in each round, with the ways alternating; or the reason why there are none.

    If a library is missing or this GPU refuses a kernel, the reason is that way's result; the others are measured.
    """
    replays: dict[str, Callable[[], float]] = {}
    refused: dict[str, str] = {}
    for name, each in calls.items():
        try:
            replays[name] = prepare(each, place.device, graph)
        except Exception as error:
            refused[name] = reason(error)
    taken = [{name: replay() / parts for name, replay in replays.items()} for _ in range(rounds + 1)][1:]  # the first is not counted
    return {name: refused.get(name) or [each[name] for each in taken] for name in calls}


def tuned(
    tiles: Mapping[str, Sequence[Call]], ours: Call, place: Place, graph: bool, options: Options, say: Callable[[str], None], parts: int = 1
) -> dict[str, list[float] | str]:
    """Time the fastest candidates again; candidates that were refused, are wrong or were not reached are reported."""
    deadline, taken = time.monotonic() + (options.tune or 0.0), dict[str, float]()
    expected = _copied(ours())
    for number, (name, calls) in enumerate(tiles.items()):
        if time.monotonic() > deadline:
            say(f"<!-- the time was over before {', '.join(list(tiles)[number:])} -->")
            break
        quick = timed({name: calls}, place, graph, 2)[name]
        wrong = quick if isinstance(quick, str) else _wrong(_copied(calls[0]()), expected)
        if wrong:
            say(f"<!-- {name}: {wrong} -->")
        elif not isinstance(quick, str):
            taken[name] = min(quick)
    best = sorted(taken, key=lambda name: taken[name])[:SHOWN]
    return timed({name: tiles[name] for name in best}, place, graph, options.rounds, parts)


def compile_tiles(case: Case, chosen: Mapping[str, Sequence[Any]], part: int, parts: int, place: Place) -> int:
    """Call one of ``parts`` shares of all candidates once, so that Triton's cache has them; returns the number of calls.

    Several processes do this in parallel. A candidate that is refused here is refused and reported again when it is
    timed.
    """
    called = numbered = 0
    for _, row in case.rows(place, chosen):
        for call in row.tiles.values():
            numbered += 1
            if numbered % parts != part:
                continue
            called += 1
            with suppress(Exception):
                call()
    return called


def dry_run(case: Case, interpreted: bool, say: Callable[[str], None] = print) -> bool:
    """Without a GPU: make every row's shapes, then compute tiny rows in each way that runs here.

    Args:
        interpreted: whether Triton's interpreter computes; if not, kernels are not tried.

    Returns:
        Whether all of ours were computed and no two ways disagree.
    """
    rows = sum(1 for _ in case.rows(Place("meta"), case.axes))
    say(f"{case.name}: {rows} rows can be made")
    if not interpreted:
        return True
    well = True
    for named, row in case.rows(Place("cpu", tiny=True), case.dry_axes()):
        first = None
        for name, call in {**row.ways, **dict(list(row.tiles.items())[:1])}.items():
            try:
                made = call()
                output = _copied(made)
                wrong = _wrong(output, first) if case.alike else ""
                if case.alike and isinstance(made, torch.Tensor) and made.is_floating_point():
                    made.fill_(float("nan"))  # the next way may reuse this output, and must write all of it
                first, said = output if first is None else first, wrong or "computed"
            except Exception as error:
                wrong = "not computed" if name.startswith("ours") else ""  # SGLang's kernels may need a GPU, ours must not
                said = f"not computed here: {reason(error)}"
            well = well and not wrong
            say(f"  {' '.join(f'{axis}={value}' for axis, value in named.items())}, {name}: {said}")
    return well


def dependently(call: Call, wanted: bool = True) -> Call:
    """The call with programmatic dependent launch (a kernel begins before the previous one ends), if the GPU supports it."""

    def launched() -> object:
        dependent_launch.want(wanted)
        try:
            return call()
        finally:
            dependent_launch.want(False)

    return launched


def lazily(make: Callable[..., Call], *given: Any) -> Call:
    """A call that ``make`` builds on first use, so that a missing library fails only this way."""
    made: list[Call] = []

    def call() -> object:
        if not made:
            made.append(make(*given))
        return made[0]()

    return call


def short(*tiles: Any) -> str:
    """Tiles as text, such as ``64/4/3``, separated by spaces."""
    return " ".join("/".join(map(str, astuple(tile) if is_dataclass(tile) and not isinstance(tile, type) else tile)) for tile in tiles)


def candidates(ours: Callable[[Any], object], tiles: Iterable[Any]) -> dict[str, Call]:
    """A way for each tile, by name, for ``--tune``."""
    return {f"ours, {short(tile)}": partial(ours, tile) for tile in tiles}


def reason(error: Exception) -> str:
    """The error on one line, cut to 100 characters of the message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}".replace("|", "/")


def _wanted(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(part in name for part in parts)


def _copied(output: Any) -> Any:
    return output.clone() if isinstance(output, torch.Tensor) else None


def _apart(first: Any, other: Any) -> str:
    """The largest absolute difference of two outputs; empty if they are not tensors of one shape."""
    if first is None or other is None or first.shape != other.shape:
        return ""
    return f"{float((first.float() - other.float()).abs().max()):.3g}" if first.numel() else ""


def _wrong(found: Any, expected: Any) -> str:
    if found is None or expected is None or found.shape != expected.shape:
        return ""
    far = float((~torch.isclose(found.float(), expected.float(), atol=FAR, rtol=FAR)).float().mean())
    return f"{100 * far:.2g} % differ" if far > MOST_FAR else ""


def _ratio(baseline: Sequence[float], taken: Sequence[float]) -> str:
    found = statistics.ratio(baseline, taken)
    return f"{found.value:.3f}" + (f" ({found.low:.3f} to {found.high:.3f})" if found.low is not None and found.high is not None else "")
