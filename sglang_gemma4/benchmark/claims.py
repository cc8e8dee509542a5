"""The speed claims of the documents, computed from the raw lines of named runs (``docs/claims.toml``).

A row names a run, its loads, and which of its arms is stock, vLLM and the package. Each number is a median over
counted passes, with the range of the passes. A row is stale if a default that it depends on changed after the run.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sglang_gemma4.benchmark import records
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.statistics import Summary, summary

SIDES = ("stock", "vllm", "package")
METRICS = ("tokens", "ttft", "itl")
"""Output tokens/s; 99th percentiles of time to first token and of inter-token latency, in milliseconds."""
FEWEST_PASSES = 2
_ROW = {"model", "weights", "gpu", "run", "file", "loads", *SIDES, "readme", "chart", "note"}
_CHANGE = {"when", "what", "models", "weights", "measured"}


@dataclass(frozen=True)
class Change:
    """A change of a default: when, what, and which rows it makes stale. ``measured`` lists earlier runs that already had it."""

    when: datetime
    what: str
    models: tuple[str, ...]
    weights: tuple[str, ...]
    measured: tuple[str, ...]

    def overtook(self, model: str, weights: str, run: str, began: datetime) -> bool:
        """Whether the change makes a run stale that has this model and these weights and began at ``began``."""
        named = (not self.models or model in self.models) and (not self.weights or weights in self.weights)
        return named and run not in self.measured and began < self.when


@dataclass(frozen=True)
class Load:
    """One load of a run. ``sides`` maps each measured side to a summary per metric; a metric without raw values is absent."""

    name: str
    sides: Mapping[str, Mapping[str, Summary]]

    def mark(self, metric: str) -> str:
        """``▲``: the package beats each other side; ``▼``: worse than one; ``=``: passes overlap; empty: nothing to compare with."""
        ours = self.sides["package"].get(metric)
        others = [side[metric] for name, side in self.sides.items() if name != "package" and metric in side]
        if ours is None or not others:
            return ""
        ranks = [compared(ours, other, metric) for other in others]
        return "▼" if -1 in ranks else "▲" if set(ranks) == {1} else "="


@dataclass(frozen=True)
class Row:
    """A run of one model, as the README and ``docs/benchmarks.md`` show it."""

    model: str
    weights: str
    gpu: str
    run: str
    began: datetime
    timed: bool  # the raw lines give the hour, not only the day
    facts: Mapping[str, str]  # commit, versions and driver, as far as the header has them
    loads: Sequence[Load]
    readme: str | None
    chart: bool
    note: str
    overtaken: tuple[Change, ...]  # the changes of defaults that make the row stale, the first one first

    @property
    def stale(self) -> Change | None:
        """The first change that makes the row stale; None if its numbers are those of the present defaults."""
        return self.overtaken[0] if self.overtaken else None

    def load(self, name: str) -> Load:
        """The load of this name."""
        return next(load for load in self.loads if load.name == name)


def compared(ours: Summary, other: Summary, metric: str) -> int:
    """1 if each pass of ours is better than every pass of the other, -1 if worse, 0 if the ranges overlap.

    More tokens and fewer milliseconds are better.
    """
    if ours.low <= other.high and other.low <= ours.high:
        return 0
    return 1 if (ours.median > other.median) == (metric == "tokens") else -1


def day(when: datetime) -> str:
    """``26 Nov``."""
    return f"{when.day} {when:%b}"


def read(path: Path, runs: Path) -> list[Row]:
    """The rows of a claims file, computed from the run folders in ``runs``.

    Raises:
        ValueError: a key, a run, an arm or a load is missing, or a side has fewer passes than :data:`FEWEST_PASSES`.
    """
    told = tomllib.loads(path.read_text())
    changes = [_change(path, entry) for entry in told.get("change", [])]
    return [_row(path, entry, runs, changes) for entry in told.get("row", [])]


def defaults(path: Path) -> dict[str, bool]:
    """The defaults of switches at the last update of the list of changes."""
    return dict(tomllib.loads(path.read_text()).get("defaults", {}))


def _change(path: Path, entry: Mapping[str, Any]) -> Change:
    _check_keys(path, f"change {entry.get('what')!r}", entry, _CHANGE, ("when", "what"))
    return Change(entry["when"], entry["what"], *(tuple(entry.get(key, ())) for key in ("models", "weights", "measured")))


def _row(path: Path, entry: Mapping[str, Any], runs: Path, changes: Sequence[Change]) -> Row:
    name = f"row {entry.get('run')!r}"
    _check_keys(path, name, entry, _ROW, ("model", "weights", "gpu", "run", "loads", "package"))
    lines = records.read(raw := runs / entry["run"] / entry.get("file", records.NAME))
    if not lines:
        raise ValueError(f"{path}: {name}: {raw} has no lines; name a run that is there, and its file where that is not {records.NAME}")
    if (readme := entry.get("readme")) and readme not in entry["loads"]:
        raise ValueError(f"{path}: {name}: readme {readme!r} is none of loads; write one of {', '.join(entry['loads'])}")
    arms = {side: entry[side] for side in SIDES if side in entry}
    header = next(line for line in lines if line.get("kind", "header") == "header")
    passes = [found for line in lines if (found := _pass(line))]
    loads = [_load(path, name, load, arms, passes) for load in entry["loads"]]
    began = datetime.fromisoformat(header.get("time") or entry["run"][:10]).replace(tzinfo=UTC)
    overtaken = [change for change in changes if change.overtook(entry["model"], entry["weights"], entry["run"], began)]
    return Row(
        entry["model"],
        entry["weights"],
        entry["gpu"],
        entry["run"],
        began,
        "time" in header,
        _facts(header, entry["package"]),
        loads,
        readme,
        bool(entry.get("chart")),
        entry.get("note", ""),
        tuple(sorted(overtaken, key=lambda change: change.when)),
    )


def _check_keys(path: Path, name: str, entry: Mapping[str, Any], known: set[str], needed: Sequence[str]) -> None:
    if strange := sorted(set(entry) - known):
        raise ValueError(f"{path}: {name}: {', '.join(strange)} is none of {', '.join(sorted(known))}")
    if missing := [key for key in needed if key not in entry]:
        raise ValueError(f"{path}: {name}: {', '.join(missing)} is missing; add it")


def _pass(line: Record) -> tuple[str, str, dict[str, float]] | None:
    """(arm, load, values) of a counted pass, from a line of ``bench`` or of an offline engine (``out_tps``); None for other lines."""
    if line.get("kind") == "repetition" and line["counted"] and line["output_throughput"] > 0:
        found = {"tokens": float(line["output_throughput"])}
        if line.get("ttft_ms"):
            found["ttft"] = float(np.percentile(line["ttft_ms"], 99))
        if line.get("itl_ms"):
            found["itl"] = float(line["itl_ms"]["p99"])
        return str(line["arm"]), str(line["workload"]), found
    if "out_tps" in line:
        first, *rest = line["load"]
        load = f"mix of {rest[0]}" if first == "mix" else f"{first}x{rest[0]}/{rest[1]}"
        return str(line["arm"]), load, {"tokens": float(line["out_tps"])}
    return None


def _load(path: Path, row: str, name: str, arms: Mapping[str, str], passes: Sequence[tuple[str, str, dict[str, float]]]) -> Load:
    sides = {}
    for side, arm in arms.items():
        own = [values for found, load, values in passes if (found, load) == (arm, name)]
        if not own and side != "package" and any(found == arm for found, _, _ in passes):
            continue  # this side was not asked to run this load
        if len(own) < FEWEST_PASSES:
            raise ValueError(
                f"{path}: {row}: {side}'s arm {arm!r} has {len(own)} passes on {name!r}, {FEWEST_PASSES} are needed; name another"
            )
        kept = {metric: [values[metric] for values in own if metric in values] for metric in METRICS}
        sides[side] = {metric: summary(values) for metric, values in kept.items() if len(values) == len(own)}
    return Load(name, sides)


def _facts(header: Record, arm: str) -> dict[str, str]:
    """Commit, versions and driver, from a header of ``bench`` or of a manual run, whose arms may name a commit."""
    versions, device = header.get("versions", header), header.get("device", "")
    found = {name: str(versions[name]) for name in ("commit", "sglang", "vllm", "torch", "triton") if versions.get(name)}
    if "commit" not in found and (told := re.findall(r"\b[0-9a-f]{7,12}\b", f"{header.get(arm, '')} {header.get('before', '')}")):
        found["commit"] = f"{told[0]} with the change that the run tests"
    if driver := device.get("driver") if isinstance(device, dict) else header.get("driver"):
        found["driver"] = str(driver)
    return found
