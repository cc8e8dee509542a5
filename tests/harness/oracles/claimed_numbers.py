"""What README.md, docs/benchmarks.md and the README's chart say of speed, against the raw lines, without the code that wrote them.

Only the files of a repository and the standard library are read, so that an error of ``sglang_gemma4.benchmark.claims`` is seen too.
"""

import json
import re
import struct
import tomllib
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

SIDES = ("stock", "vllm", "package")
METRICS = ("tokens", "ttft", "itl")
NAMES = {"stock SGLang": "stock", "vLLM": "vllm", "this package": "package"}
LOSSES = {"tokens": "tokens/s", "ttft": "time to first token", "itl": "inter-token latency"}
WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}
SPEED = re.compile(r"\d[\d,.]* ?(?:[x×]\b|×|%|ms\b|µs\b|tokens/s|times\b|percent|faster|slower|-fold)", re.IGNORECASE)
"""A number of speed, which may stand in made text alone."""
Values = dict[str, list[float]]


def lies(root: Path, runs: Path) -> list[str]:
    """Each thing that the documents under ``root`` say of speed and the raw lines in ``runs`` do not; empty if all is true."""
    told = tomllib.loads((root / "docs/claims.toml").read_text())
    readme = (root / "README.md").read_text()
    before, rest = readme.split("<!-- claims:")
    made, after = rest.split("<!-- end of claims -->")
    entries = {entry["run"]: entry for entry in told["row"]}
    found = [f"README.md, not in the table: {number}" for number in SPEED.findall(before + after)]
    shown = [row for row in _rows(made) if "runs/" in row[0]]
    if {_run(row[0]) for row in shown} != {run for run, entry in entries.items() if "readme" in entry}:
        found.append("README.md: its rows are not those of docs/claims.toml")
    counts: dict[int, list[str]] = {}
    for row in shown:
        entry = entries[_run(row[0])]
        values = {side: passes(runs, entry, side, entry["readme"]) for side in SIDES if side in entry}
        found += _wrong_row(row, values) + _wrong_date(row[0], entry, runs, told["change"]) + _untold_losses(row, entry, after)
        counts.setdefault(min(len(side["tokens"]) for side in values.values() if side), []).append(entry["model"])
    found += [f"README.md says nothing of {WORDS[n]} passes" for n in counts if WORDS[n] not in made.rpartition("Medians of")[2]]
    return found + _wrong_chart(root, runs, told["row"]) + list(_wrong_page((root / "docs/benchmarks.md").read_text(), runs, entries))


def passes(runs: Path, entry: dict[str, Any], side: str, load: str) -> Values:
    """A side's values of each counted pass of a load, by metric; a metric that not every pass has is empty."""
    own = [line for line in _lines(runs / entry["run"] / entry.get("file", "raw.jsonl")) if line.get("arm") == entry.get(side)]
    kept = [line for line in own if _load(line) == load and line.get("counted", True)]
    found: dict[str, list[float]] = {
        "tokens": [float(line.get("output_throughput") or line["out_tps"]) for line in kept],
        "ttft": [_p99(line["ttft_ms"]) for line in kept if line.get("ttft_ms")],
        "itl": [line["itl_ms"]["p99"] for line in kept if line.get("itl_ms")],
    }
    return {metric: values if len(values) == len(kept) else [] for metric, values in found.items()}


def mark(values: dict[str, Values], metric: str) -> str:
    """The mark that the passes allow: ▲ only where each of ours is better than each other one."""
    ours = values["package"][metric]
    others = [side[metric] for name, side in values.items() if name != "package" and side[metric]]
    if not ours or not others:
        return ""
    sign = 1 if metric == "tokens" else -1
    if all(min(sign * a for a in ours) > max(sign * b for b in other) for other in others):
        return "▲"
    return "▼" if any(max(sign * a for a in ours) < min(sign * b for b in other) for other in others) else "="


def _wrong_row(row: list[str], values: dict[str, Values]) -> list[str]:
    found = []
    for place, (metric, side) in enumerate(((metric, side) for metric in METRICS for side in SIDES), 1):
        own = values.get(side, {}).get(metric, [])
        cell = row[place].replace("&nbsp;", " ").replace("*", "")
        wanted = f"{median(own):,.0f}" if own else "–"
        if side == "package":
            wanted = f"{wanted} {mark(values, metric)}".strip()
        if cell != wanted:
            found.append(f"README.md, {row[0]}: {side}'s {metric} are {wanted}, not {cell}")
    return found


def _wrong_date(name: str, entry: dict[str, Any], runs: Path, changes: list[dict[str, Any]]) -> list[str]:
    """The run's day is in the row, and "stale" exactly where a change of a default overtook it."""
    header = next(line for line in _lines(runs / entry["run"] / entry.get("file", "raw.jsonl")) if line.get("kind", "header") == "header")
    began = datetime.fromisoformat(header.get("time", entry["run"][:10])).replace(tzinfo=UTC)
    overtaken = any(
        entry["model"] in change.get("models", [entry["model"]])
        and entry["weights"] in change.get("weights", [entry["weights"]])
        and entry["run"] not in change.get("measured", [])
        and began < change["when"]
        for change in changes
    )
    found = [] if f"[{began.day} {began:%b}](" in name else [f"README.md, {name}: it began on {began.day} {began:%b}"]
    if ("stale" in name) != overtaken:
        found.append(f"README.md, {name}: a change of a default {'overtook it' if overtaken else 'did not overtake it'}")
    return found


def _untold_losses(row: list[str], entry: dict[str, Any], prose: str) -> list[str]:
    """A loss of the table is said in words under "Not yet", with the model's name."""
    advice = re.sub(r"\s+", " ", prose.partition("**Not yet, if**")[2].partition("\n## ")[0])
    lost = [metric for place, metric in enumerate(METRICS) if "▼" in row[3 + 3 * place]]
    missing = [metric for metric in lost if not re.search(rf"{LOSSES[metric]} of {re.escape(entry['model'])}\b", advice)]
    return [f"README.md: 'Not yet' does not say that {entry['model']} loses in {LOSSES[metric]}" for metric in missing]


def _wrong_chart(root: Path, runs: Path, rows: list[dict[str, Any]]) -> list[str]:
    drawn = [list(sides.items()) for sides in json.loads(_png_text(root / "docs/img/mixed-load.png")["Description"]).values()]
    wanted = [
        [(side, median(passes(runs, entry, side, entry["readme"])["tokens"])) for side in SIDES if side in entry]
        for entry in rows
        if entry.get("chart")
    ]
    return [] if drawn == wanted else [f"docs/img/mixed-load.png shows {drawn}, the runs have {wanted}"]


def _wrong_page(text: str, runs: Path, entries: dict[str, Any]) -> Iterator[str]:
    """Each line of a table of docs/benchmarks.md: passes, medians and ranges."""
    for section in text.split("\n## ")[1:]:
        named = [entries[run] for run in re.findall(r"^- \d+: \[([\w-]+)\]", section, re.MULTILINE)]
        for number, _, load, side, count, *cells in (row[:8] for row in _rows(section) if row[0].isdecimal()):
            values = passes(runs, named[int(number) - 1], NAMES[side], load)
            if len(values["tokens"]) != int(count):
                yield f"docs/benchmarks.md: {section.split()[0]}, {load}, {side}: {len(values['tokens'])} passes, not {count}"
            for metric, cell in zip(METRICS, cells, strict=True):
                own = values[metric]
                digits = 1 if own and max(own) < 100 else 0
                wanted = "{:,.{d}f} ({:,.{d}f} to {:,.{d}f})".format(median(own), min(own), max(own), d=digits) if own else "not measured"
                if cell != wanted:
                    yield f"docs/benchmarks.md: {section.split()[0]}, {load}, {side}: {metric} are {wanted}, not {cell}"


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]


def _run(cell: str) -> str:
    return re.search(r"runs/([\w-]+)", cell)[1]  # type: ignore[index]


@lru_cache
def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _load(line: dict[str, Any]) -> str | None:
    match line:
        case {"out_tps": _, "load": ["mix", count, *_]}:
            return f"mix of {count}"
        case {"out_tps": _, "load": [count, given, made]}:
            return f"{count}x{given}/{made}"
        case {"kind": "repetition", "workload": name}:
            return str(name)
    return None


def _p99(values: list[float]) -> float:
    """The 99th percentile, between the two nearest values."""
    ordered = sorted(values)
    whole, part = divmod(0.99 * (len(ordered) - 1), 1)
    upper = ordered[min(int(whole) + 1, len(ordered) - 1)]
    return ordered[int(whole)] + part * (upper - ordered[int(whole)])


def _png_text(path: Path) -> dict[str, str]:
    """The text fields of a PNG."""
    data, at, found = path.read_bytes(), 8, {}
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if kind == b"tEXt":
            key, _, value = body.partition(b"\0")
            found[key.decode()] = value.decode("latin-1")
        elif kind == b"zTXt":
            key, _, value = body.partition(b"\0")
            found[key.decode()] = zlib.decompress(value[1:]).decode("latin-1")
        at += size + 12
    return found
