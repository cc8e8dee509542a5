"""A run's raw lines sorted by what they say, warm-ups and empty repetitions set aside. Plots and report both read this."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import records
from sglang_gemma4.benchmark.records import Record

TIMED = 0.9  # of the requests must have times before a median of them stands for all
_SWEEP = re.compile(r"sweep-(\d+)")


@dataclass
class Results:
    """One run. ``repetitions`` and ``steps`` hold only what counts; ``empty`` the counted repetitions in which nothing was generated."""

    headers: list[Record]
    starts: list[Record] = field(default_factory=list)
    repetitions: list[Record] = field(default_factory=list)
    steps: list[Record] = field(default_factory=list)
    profiles: list[Record] = field(default_factory=list)
    crashes: list[Record] = field(default_factory=list)
    empty: list[Record] = field(default_factory=list)

    @property
    def header(self) -> Record:
        """What was asked for, as the last invocation had it."""
        return self.headers[-1]

    @property
    def arms(self) -> list[str]:
        """Names of the arms, the baseline first."""
        return [str(arm["name"]) for arm in self.header["arms"]]

    @property
    def workloads(self) -> list[str]:
        """Workloads with a counted repetition, in the header's order."""
        order = [str(workload["name"]) for workload in self.header["workloads"]]
        found = dict.fromkeys(str(record["workload"]) for record in self.repetitions)
        return [name for name in order if name in found] + [name for name in found if name not in order]

    @property
    def batches(self) -> list[int]:
        """Batch sizes with a counted step time, ascending."""
        return sorted({int(record["batch"]) for record in self.steps})

    def of_workload(self, workload: str, arm: str) -> list[Record]:
        """Counted repetitions of one arm."""
        return [record for record in self.repetitions if record["workload"] == workload and record["arm"] == arm]

    def of_batch(self, batch: int, arm: str) -> list[Record]:
        """Counted step times of one arm."""
        return [record for record in self.steps if record["batch"] == batch and record["arm"] == arm]

    @property
    def place(self) -> str:
        """Model and card in a few words, with what makes the numbers less than a measurement of the released model."""
        device = self.header["device"]
        count = int(device.get("count") or 1)
        card = f"{count} x {device['name']}" if count > 1 else str(device["name"])
        marks = [name.replace("_", " ") for name in ("dummy_weights", "dry_run") if self.header.get(name)]
        return f"{model_name(self.header)} on {card}" + (f" ({', '.join(marks)})" if marks else "")


def load(folder: Path) -> Results:
    """Sort the lines of ``folder/raw.jsonl``.

    Raises:
        ValueError: there is no header line, so nothing says what was measured.
    """
    path = folder / records.NAME
    by_kind: dict[str, list[Record]] = {kind: [] for kind in records.KINDS}
    for record in records.read(path):
        by_kind.setdefault(record["kind"], []).append(record)
    if not by_kind["header"]:
        raise ValueError(f"{path} has no header line; give a folder that `sglang-gemma4 bench` wrote")
    counted = {kind: [record for record in by_kind[kind] if record["counted"]] for kind in ("repetition", "step")}
    return Results(
        by_kind["header"],
        by_kind["start"],
        [record for record in counted["repetition"] if record["output_throughput"] > 0],
        [record for record in counted["step"] if record["output_throughput"] > 0],
        by_kind["profile"],
        by_kind["crash"],
        [record for kind in ("repetition", "step") for record in counted[kind] if not record["output_throughput"] > 0],
    )


def model_name(header: Record) -> str:
    """The model's last path part."""
    return str(header["model"]).rstrip("/").split("/")[-1]


def values(found: Sequence[Record], name: str) -> list[float]:
    """One field of each record, those without a value left out."""
    return [float(record[name]) for record in found if record.get(name) is not None]


def pooled(found: Sequence[Record], name: str) -> list[float]:
    """A field that holds one value per request, over all records."""
    return [float(value) for record in found for value in record.get(name) or []]


def sweep_size(workload: str) -> int | None:
    """Concurrency of a workload named ``sweep-N``, else None."""
    found = _SWEEP.fullmatch(workload)
    return int(found.group(1)) if found else None


def number(value: Any) -> str:
    """Four significant digits without an exponent; ``-`` for None."""
    if value is None:
        return "-"
    size = abs(float(value))
    decimals = 0 if size >= 1000 or size == 0 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{float(value):.{decimals}f}"
