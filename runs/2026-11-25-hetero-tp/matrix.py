"""Every pair of prefill and decode sizes for five Gemma 4s, stock and package: does every byte arrive, and how many are moved.

python runs/2026-11-25-hetero-tp/matrix.py run stock|package   adds to raw.jsonl what it has not yet
python runs/2026-11-25-hetero-tp/matrix.py report              REPORT.md's table and matrix.png
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RAW = HERE / "raw.jsonl"
sys.path[:0] = [str(ROOT), str(ROOT / "crash_repro")]
MODELS = ("26b-a4b", "e2b", "e4b", "12b", "31b")
SIZES = (1, 2, 4, 8)
REQUESTS = [{"room": 1, "tokens": 130}, {"room": 2, "tokens": 100, "prefix": 64, "chunk": 32}, {"room": 3, "tokens": 7}]
PAGE_SIZE = 16


def run(arm: str) -> None:
    """Try every cell that raw.jsonl does not have, one process for each model."""
    done = {(row["arm"], row["model"], row["prefill"], row["decode"]) for row in _rows()}
    for model in MODELS:
        pairs = [pair for pair in itertools.product(SIZES, SIZES) if (arm, model, *pair) not in done]
        cells = [
            {"model": model, "prefill": prefill, "decode": [decode], "page_size": PAGE_SIZE, "requests": REQUESTS, "seconds": 20.0}
            for prefill, decode in pairs
        ]
        if not cells:
            continue
        switches = {"SGLANG_GEMMA4": "0"} if arm == "stock" else {"SGLANG_GEMMA4_STRICT": "1"}
        command = [sys.executable, str(ROOT / "crash_repro" / "hetero_tp.py")]
        environment = {**os.environ, **switches, "HETERO_CELLS": json.dumps(cells)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            lines = (line for line in process.stdout if line.startswith("CELL "))
            for (prefill, decode), line in zip(pairs, lines, strict=False):
                found = json.loads(line.removeprefix("CELL "))
                row = {"arm": arm, "model": model, "prefill": prefill, "decode": decode, "least": _least(model, decode)}
                row |= {name: found.get(name) for name in ("wrong", "bytes", "pieces", "seconds")}
                with RAW.open("a") as raw:
                    raw.write(json.dumps(row) + "\n")


def _rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RAW.read_text().splitlines()] if RAW.exists() else []


def _least(name: str, decode: int) -> int:
    import rank_memory  # type: ignore[import-not-found]

    from sglang_gemma4.disaggregation.plan import Group, least_bytes

    model = rank_memory.MODELS[name]
    kinds = (("full", model.full, None), ("sliding", model.sliding, model.window))
    groups = [Group(kind, layers.count, layers.heads, 2 * layers.head_dim, window) for kind, layers, window in kinds]
    return sum(least_bytes(groups, decode, request["tokens"], PAGE_SIZE, request.get("prefix", 0)) for request in REQUESTS)


def _state(row: dict[str, Any]) -> str:
    if row["wrong"] is None:
        return "every byte"
    return "no end" if "no end" in row["wrong"] else "wrong bytes" if "differs at" in row["wrong"] else "an error"


def report() -> None:
    """Print the tables and draw the matrix."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = _rows()
    colours = {"every byte": "#2e8b57", "an error": "#d9822b", "no end": "#b22222", "wrong bytes": "#000000"}
    figure, axes = pyplot.subplots(2, len(MODELS), figsize=(3 * len(MODELS), 6.4))
    print("| model | unequal pairs served, stock | package | bytes moved / least where served, stock | package |")
    print("| --- | --- | --- | --- | --- |")
    for column, model in enumerate(MODELS):
        cells, ratios = [], []
        for line, arm in enumerate(("stock", "package")):
            mine = [row for row in rows if (row["arm"], row["model"]) == (arm, model)]
            unequal = [row for row in mine if row["prefill"] != row["decode"]]
            right = [row for row in unequal if row["wrong"] is None]
            cells.append(f"{len(right)} of {len(unequal)}")
            ratios.append(f"{max(row['bytes'] / row['least'] for row in right):.2f} at most" if right else "none")
            axis = axes[line][column]
            for row in mine:
                at = SIZES.index(row["decode"]), SIZES.index(row["prefill"])
                axis.add_patch(pyplot.Rectangle(at, 1, 1, color=colours[_state(row)], ec="white"))
                if row["wrong"] is None:
                    axis.text(at[0] + 0.5, at[1] + 0.5, f"{row['bytes'] / row['least']:.2f}", ha="center", va="center", color="white")
            axis.set(xlim=(0, 4), ylim=(0, 4), title=f"{model}, {arm}", xlabel="decode ranks", ylabel="prefill ranks")
            axis.set_xticks([0.5, 1.5, 2.5, 3.5], SIZES)
            axis.set_yticks([0.5, 1.5, 2.5, 3.5], SIZES)
        print(f"| {model} | {cells[0]} | {cells[1]} | {ratios[0]} | {ratios[1]} |")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    figure.legend(handles, list(colours), loc="lower center", ncol=4)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(HERE / "matrix.png", dpi=80)
    print("\n| model | P | D | stock | package, bytes / least | stock's first error |\n| --- | ---: | ---: | --- | --- | --- |")
    by = {(row["arm"], row["model"], row["prefill"], row["decode"]): row for row in rows}
    for model, prefill, decode in itertools.product(MODELS, SIZES, SIZES):
        stock, ours = (by.get((arm, model, prefill, decode)) for arm in ("stock", "package"))
        if stock is None or ours is None:
            continue
        error = (stock["wrong"] or "").rpartition("KVTransferError")[2].partition(": ")[2] if _state(stock) == "an error" else ""
        said = f"{_state(stock)}, {stock['bytes'] / stock['least']:.2f}" if stock["wrong"] is None else _state(stock)
        print(f"| {model} | {prefill} | {decode} | {said} | {_state(ours)}, {ours['bytes'] / ours['least']:.2f} | {error[:90]} |")


if __name__ == "__main__":
    run(sys.argv[2]) if sys.argv[1] == "run" else report()
