"""Seconds that KV takes from a prefill to a decode server of equal size, stock and package in turn.

python runs/2026-11-25-transfer-time/measure.py run [ROUNDS]   adds to raw.jsonl: each round all pairs, page sizes and arms once
python runs/2026-11-25-transfer-time/measure.py report         the table of REPORT.md
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RAW = HERE / "raw.jsonl"
SIZES, PAGE_SIZES = (4, 1, 2), (64, 1)
ARMS = {"stock": {"SGLANG_GEMMA4": "0"}, "package": {"SGLANG_GEMMA4_STRICT": "1"}}
WARM, REPETITIONS, TOKENS = 2, 25, 600
"""Requests of a cell, the first ones to warm up, and tokens of each: 26B-A4B's layers and heads, the window cut to 256 tokens."""
AS_SGLANG = {"SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS": '{"num_threads": "8"}', "UCX_TLS": "all"}
"""SGLang's own number of UCX threads of a prefill rank, and UCX's own choice of transports; the tests' harness has less of both."""


def run(rounds: int) -> None:
    """Every cell once a round, arms in turn, so that what else the machine does falls on both."""
    arms = {arm: _start(variables) for arm, variables in ARMS.items()}
    done = [json.loads(line)["round"] for line in RAW.read_text().splitlines()] if RAW.exists() else []
    for number in range(1 + max(done, default=-1), 1 + max(done, default=-1) + rounds):
        for size in SIZES:
            for page_size in PAGE_SIZES:
                for arm in list(ARMS)[:: 1 if number % 2 else -1]:
                    row = {"round": number, "arm": arm, "size": size, "page_size": page_size, "load": os.getloadavg()[0]}
                    found = _ask(arms[arm], size, page_size)
                    row |= {name: found.get(name) for name in ("wrong", "bytes", "pieces", "slowest")}
                    with RAW.open("a") as raw:
                        raw.write(json.dumps(row) + "\n")
    for process in arms.values():
        process.communicate()


def _start(variables: dict[str, str]) -> "subprocess.Popen[str]":
    """An arm: it forks each cell's ranks, so SGLang is imported once."""
    command = [sys.executable, str(ROOT / "crash_repro" / "hetero_tp.py")]
    environment = {**os.environ, **variables, "HETERO_CELLS": "-"}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _ask(process: "subprocess.Popen[str]", size: int, page_size: int) -> dict[str, Any]:
    count = WARM + REPETITIONS  # one after the other, over the pages of two
    requests = [{"room": room, "tokens": TOKENS, "again": room > WARM and 1 + room % WARM} for room in range(1, 1 + count)]
    cell = {"model": "26b-a4b-full-heads", "prefill": size, "decode": [size], "page_size": page_size, "requests": requests}
    cell |= {"one_by_one": True, "seconds": 120.0, "env": AS_SGLANG}
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(cell) + "\n")
    process.stdin.flush()
    last: list[str] = []
    for line in process.stdout:
        last = [*last[-4:], line]
        if line.startswith("CELL "):
            found: dict[str, Any] = json.loads(line.removeprefix("CELL "))
            return found
    return {"wrong": f"the arm's process ended with status {process.wait()}: {''.join(last)}"}


def report() -> None:
    """Medians over all repetitions and rounds, the middle half of them, and the package's over stock's by round."""
    rows = [row for row in map(json.loads, RAW.read_text().splitlines()) if row["wrong"] is None]
    print("| P, D | page | MiB | stock, median (quartiles), ms | package, ms | fastest, stock, package | package / stock | by round |")
    print("| --- | ---: | ---: | --- | --- | --- | ---: | --- |")
    for size in sorted(SIZES):
        for page_size in PAGE_SIZES:
            mine = [row for row in rows if (row["size"], row["page_size"]) == (size, page_size)]
            times = {arm: [1e3 * each for row in mine if row["arm"] == arm for each in row["slowest"][WARM:]] for arm in ARMS}
            if not all(times.values()):
                continue
            said = [_spread(times[arm]) for arm in ARMS]
            mib = mine[0]["bytes"] / (WARM + REPETITIONS) / 2**20
            rounds = sorted({row["round"] for row in mine})
            ratios = [f"{_of_round(mine, 'package', each) / _of_round(mine, 'stock', each):.2f}" for each in rounds if _both(mine, each)]
            least = ", ".join(f"{min(times[arm]):.1f}" for arm in ARMS)
            ratio = statistics.median(times["package"]) / statistics.median(times["stock"])
            print(f"| {size}, {size} | {page_size} | {mib:.0f} | {said[0]} | {said[1]} | {least} | {ratio:.2f} | {', '.join(ratios)} |")


def _spread(times: list[float]) -> str:
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.1f} ({low:.1f} to {high:.1f}), {len(times)} requests"


def _both(rows: list[dict[str, Any]], number: int) -> bool:
    return {row["arm"] for row in rows if row["round"] == number} == set(ARMS)


def _of_round(rows: list[dict[str, Any]], arm: str, number: int) -> float:
    return statistics.median(each for row in rows if (row["arm"], row["round"]) == (arm, number) for each in row["slowest"][WARM:])


if __name__ == "__main__":
    run(int(sys.argv[2]) if len(sys.argv) > 2 else 3) if sys.argv[1] == "run" else report()
