"""What every kernel benchmark shares: cases, inputs on a device, ways timed in turn, statistics, the table and the raw lines."""

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
"""What the sets of inputs of a row should move together: four times an H200's L2 cache."""
SHOWN = 5
"""Candidate tiles that are timed again and printed."""
FAR, MOST_FAR = 2e-2, 0.01
"""Candidate tiles whose outputs are further than the first (absolute and relative) in more than the second share of elements are wrong."""


@dataclass(frozen=True)
class Place:
    """Where inputs are made: "cuda", "cpu" (a dry run under Triton's interpreter) or "meta" (shapes only).

    ``tiny``: sizes that the interpreter computes in seconds.
    """

    device: str = "cuda"
    tiny: bool = False
    seed: int = field(default=0, compare=False)
    """Which of the sets of inputs this is, for a case whose sets must differ."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device == "cpu" else torch.bfloat16

    def rand(self, *shape: int, around: float = 0.0, spread: float = 1.0) -> torch.Tensor:
        """Normally distributed values."""
        return torch.empty(shape, dtype=self.dtype, device=self.device).normal_(around, spread)

    def pick(self, full: Any, tiny: Any) -> Any:
        """A size of the real model, or of the dry run."""
        return tiny if self.tiny else full


@dataclass
class Row:
    """One set of inputs and the ways to compute the same from them; the first way is what the others are compared with."""

    ways: Mapping[str, Call]
    moved: float
    """Bytes that must be read and written once."""
    flops: float = 0.0
    tiles: Mapping[str, Call] = field(default_factory=dict)
    """Candidates for ``--tune``: the last way with other tiles."""
    parts: int = 1
    """Equal parts that one call computes, such as layers; times are of one part."""

    def floor(self, bandwidth: float, teraflops: float) -> float:
        """Microseconds that moving the bytes (GB/s) or the arithmetic (TFLOP/s) takes, whichever is longer."""
        return max(self.moved / bandwidth / 1e3, self.flops / teraflops / 1e6)


@dataclass(frozen=True)
class Case:
    """A sweep: ``make`` gives the row of each combination of the axes' values, None for one that is not measured."""

    name: str
    compares: str
    axes: Mapping[str, tuple[Any, ...]]
    make: Callable[..., Row | None]
    """``make(place, **axes)``."""
    tiny: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of the axes in a dry run, where not the first of each."""
    sets: int | None = None
    """Sets of inputs that are taken in turn; None: as many as leave the cache, 2 to 10."""
    graph: bool = True
    """Whether the calls are captured."""
    alike: bool = True
    """Whether ways whose outputs have one shape must agree in a dry run."""

    def combinations(self, chosen: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
        """The axes' values of each row."""
        for values in itertools.product(*(chosen[name] for name in self.axes)):
            yield dict(zip(self.axes, values, strict=True))

    def rows(self, place: Place, chosen: Mapping[str, Sequence[Any]]) -> Iterator[tuple[dict[str, Any], Row]]:
        """The axes' values and one set of inputs of each row."""
        for named in self.combinations(chosen):
            row = self.make(place, **named)
            if row is not None:
                yield named, row

    def dry_axes(self) -> dict[str, Sequence[Any]]:
        """Of a dry run."""
        return {name: self.tiny.get(name, values[:1]) for name, values in self.axes.items()}


@dataclass(frozen=True)
class Options:
    """How a case is measured."""

    rounds: int = 9
    bandwidth: float = 4295.0
    teraflops: float = 793.7
    """Of the card, for the floor; the defaults were measured on an H200."""
    ways: Sequence[str] = ()
    """Parts of names: only ways that contain one of them; none: all."""
    tune: float | None = None
    """Seconds in which candidate tiles are begun; None: no tuning."""
    raw: Path | None = None


def run(case: Case, chosen: Mapping[str, Sequence[Any]], options: Options, place: Place, say: Callable[[str], None] = print) -> None:
    """Measure every row of a case; say each line of the table as soon as it is known."""
    heads = [*case.axes, "way", "µs", "least to most", "of the first (95 %)", "floor µs", "apart"]
    say(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    if options.raw:
        _append(options.raw, {"kind": "header", "time": datetime.now(UTC).isoformat(timespec="seconds"), **machine.facts(sys.argv)})
    for named in case.combinations(chosen):
        _measure(case, named, options, place, say)
        if place.device == "cuda":
            torch.cuda.empty_cache()  # inputs of the next row may take most of the card


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
    """Microseconds of each way in each round, the ways in turn; or why there are none.

    A library that is not installed and a kernel that this card refuses are that way's result; the others are measured.
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
    """The fastest candidates, timed once more; those that were refused, are wrong or were not reached are named."""
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
    """Call one of ``parts`` shares of all candidates once, so that Triton's cache has them; how many were called.

    Several processes do so side by side. One that is refused here is refused again where it is timed, and named there.
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
    """Without a card: make every row's shapes, then compute tiny rows in each way that runs here.

    Args:
        interpreted: whether Triton's interpreter computes; else kernels are not tried.

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
                    made.fill_(float("nan"))  # the next way may share this output, and must write all of it
                first, said = output if first is None else first, wrong or "computed"
            except Exception as error:
                wrong = "not computed" if name.startswith("ours") else ""  # SGLang's kernels may need a card, ours must not
                said = f"not computed here: {reason(error)}"
            well = well and not wrong
            say(f"  {' '.join(f'{axis}={value}' for axis, value in named.items())}, {name}: {said}")
    return well


def dependently(call: Call, wanted: bool = True) -> Call:
    """The call with its kernels launched dependently (a kernel begins while the one before ends) where the card can."""

    def launched() -> object:
        dependent_launch.want(wanted)
        try:
            return call()
        finally:
            dependent_launch.want(False)

    return launched


def lazily(make: Callable[..., Call], *given: Any) -> Call:
    """A call that ``make`` builds on its first use, so that a missing library is the reason of that way alone."""
    made: list[Call] = []

    def call() -> object:
        if not made:
            made.append(make(*given))
        return made[0]()

    return call


def short(*tiles: Any) -> str:
    """``64/4/3``: the numbers of tiles, several with a space between."""
    return " ".join("/".join(map(str, astuple(tile) if is_dataclass(tile) and not isinstance(tile, type) else tile)) for tile in tiles)


def candidates(ours: Callable[[Any], object], tiles: Iterable[Any]) -> dict[str, Call]:
    """A way for each tile, for ``--tune``."""
    return {f"ours, {short(tile)}": partial(ours, tile) for tile in tiles}


def reason(error: Exception) -> str:
    """On one line, not all of a compiler's output."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}".replace("|", "/")


def _wanted(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(part in name for part in parts)


def _copied(output: Any) -> Any:
    return output.clone() if isinstance(output, torch.Tensor) else None


def _apart(first: Any, other: Any) -> str:
    """The largest difference of two outputs; nothing where they are no tensors of one shape."""
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
