"""A run's raw lines sorted by type, without warm-ups and repetitions that generated nothing, for plots and report."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import records
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.workloads import load_name

METRIC = "output_throughput"
TIMED = 0.9  # share of the requests that must have times for a median of them to be shown


@dataclass
class Results:
    """One run. ``counted`` holds the repetitions and steps that count, ``empty`` the counted ones in which nothing
    was generated, and ``curves`` the counted curves of step times."""

    headers: list[Record]
    starts: list[Record]
    counted: list[Record]
    profiles: list[Record]
    crashes: list[Record]
    empty: list[Record]
    curves: list[Record]

    @property
    def header(self) -> Record:
        """The header of the last invocation."""
        return self.headers[-1]

    @property
    def arms(self) -> list[str]:
        """Names of the arms, the baseline first."""
        return [str(arm["name"]) for arm in self.header["arms"]]

    @property
    def workloads(self) -> list[str]:
        """Workloads with a counted repetition, in the header's order."""
        found = dict.fromkeys(str(record["workload"]) for record in self.counted if "workload" in record)
        order = [str(workload["name"]) for workload in self.header["workloads"]]
        return sorted(found, key=lambda name: order.index(name) if name in order else len(order))

    @property
    def batches(self) -> list[int]:
        """Batch sizes with a counted step time, ascending."""
        return sorted({int(record["batch"]) for record in self.counted if "batch" in record})

    @property
    def closed(self) -> list[str]:
        """Those of :attr:`workloads` whose throughput the server decides; that of an open-loop load is its rate."""
        return [name for name in self.workloads if load_name(name) is None]

    @property
    def places(self) -> list[str]:
        """Places at which throughput is measured: workloads, batch sizes of the offline engine, then the points of a sweep."""
        sweep = [name for name in self.closed if sweep_size(name)]
        return [*(name for name in self.closed if name not in sweep), *map(batch_place, self.batches), *sweep]

    def at(self, place: str, arm: str) -> list[Record]:
        """Counted results of one arm at one of :attr:`places`."""
        return [record for record in self.counted if record["arm"] == arm and place_of(record) == place]

    @property
    def place(self) -> str:
        """Model and GPU in a few words, and whether it was a dry run or had dummy weights."""
        marks = [name.replace("_", " ") for name in ("dummy_weights", "dry_run") if self.header.get(name)]
        return f"{model_name(self.header)} on {card_name(self.header)}" + (f" ({', '.join(marks)})" if marks else "")


def load(folder: Path) -> Results:
    """Sort the lines of ``folder/raw.jsonl``.

    Raises:
        ValueError: there is no header line, so nothing says what was measured.
    """
    path = folder / records.NAME
    lines = records.read(path)
    headers, starts, passes, steps, profiles, crashes, curves = ([line for line in lines if line["kind"] == kind] for kind in records.KINDS)
    if not headers:
        raise ValueError(f"{path} has no header line; give a folder that `sglang-gemma4 bench` wrote")
    counted = [record for record in passes + steps if record["counted"]]
    empty = [record for record in counted if not record[METRIC] > 0]
    kept = [record for record in counted if record[METRIC] > 0]
    return Results(headers, starts, kept, profiles, crashes, empty, [record for record in curves if record["counted"] and record["points"]])


def batch_place(batch: int) -> str:
    """The name of the place of an offline engine's batch size."""
    return f"batch {batch}"


def place_of(record: Record) -> str:
    """The name of the place of a ``repetition`` or ``step`` record."""
    return str(record["workload"]) if "workload" in record else batch_place(record["batch"])


def model_name(header: Record) -> str:
    """The last part of the model's path."""
    return str(header["model"]).rstrip("/").split("/")[-1]


def card_name(header: Record) -> str:
    """The GPU of a run, with the number of GPUs if there are several."""
    device = header["device"]
    count = int(device.get("count") or 1)
    return f"{count} x {device['name']}" if count > 1 else str(device["name"])


def values(found: Sequence[Record], name: str) -> list[float]:
    """One field of each record; records without a value are left out."""
    return [float(record[name]) for record in found if record.get(name) is not None]


def pooled(found: Sequence[Record], name: str) -> list[float]:
    """A field that holds one value per request, over all records."""
    return [float(value) for record in found for value in record.get(name) or []]


def sweep_size(workload: str) -> int | None:
    """Concurrency of a workload named ``sweep-N``, else None."""
    found = re.fullmatch(r"sweep-(\d+)", workload)
    return int(found[1]) if found else None


def number(value: Any) -> str:
    """Four significant digits without an exponent; ``-`` for None."""
    if value is None:
        return "-"
    size = abs(float(value))
    decimals = 0 if size >= 1000 or size == 0 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{float(value):.{decimals}f}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0) -> str:
    """A Markdown table; its last ``right`` columns are aligned to the right."""
    rules = ["---"] * (len(columns) - right) + ["---:"] * right
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(columns)} |", f"| {' | '.join(rules)} |", *body])
