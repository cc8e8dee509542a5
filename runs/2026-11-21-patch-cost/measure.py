"""What the correctness patches cost in plain decoding: stock and package, interleaved, one engine process each.

    python runs/2026-11-21-patch-cost/measure.py OUT.jsonl            on a machine with a card
    python runs/2026-11-21-patch-cost/measure.py --report             make REPORT.md from raw.jsonl

Both arms load the same random weights of the real 26B-A4B's shape, so the stock arm keeps that one switch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BATCHES, PROMPT, NEW, REPETITIONS = (1, 32), 2048, 128, 5
KEPT = {"SGLANG_GEMMA4", "SGLANG_GEMMA4_STRICT", "SGLANG_GEMMA4_CPU", "SGLANG_GEMMA4_DUMMY_WEIGHTS"}


def arms() -> dict[str, dict[str, str]]:
    """Environment of each arm."""
    from sglang_gemma4.switches import SWITCHES

    return {"stock": {name: "0" for name in SWITCHES if name not in KEPT}, "package": {}}


def one_engine(arm: str, out: Path) -> None:
    """Measure in this process; one JSON line for each repetition."""
    import random

    import sglang
    import torch

    from sglang_gemma4.tiny import checkpoints

    folder = tempfile.mkdtemp()
    checkpoints.write("26b-a4b", f"{folder}/26b-a4b", random=True)
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "attention_backend": "triton", "sampling_backend": "pytorch"}
    options |= {"mem_fraction_static": 0.85, "random_seed": 0, "context_length": 16384, "max_running_requests": 32}
    options["cuda_graph_max_bs_decode"] = max(BATCHES)
    engine = sglang.Engine(model_path=f"{folder}/26b-a4b", disable_prefill_cuda_graph=True, **options)
    rng = random.Random(0)
    prompts = [[rng.randrange(10, 262_000) for _ in range(PROMPT)] for _ in range(max(BATCHES))]
    for batch in BATCHES:
        for repetition in range(-1, REPETITIONS):  # -1 warms up
            engine.flush_cache()
            started = time.perf_counter()
            outputs = engine.generate(
                input_ids=prompts[:batch], sampling_params={"max_new_tokens": NEW, "temperature": 0, "ignore_eos": True}
            )
            seconds = time.perf_counter() - started
            if repetition >= 0:
                first = [output["output_ids"] for output in outputs]
                row = {"arm": arm, "batch": batch, "repetition": repetition, "seconds": seconds, "tokens_per_s": batch * NEW / seconds}
                row |= {"distinct_tokens": len({token for ids in first for token in ids}), "gpu": torch.cuda.get_device_name()}
                with out.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
    engine.shutdown()


RUNS = {
    "raw.jsonl": "One engine of each arm.",
    "raw-one-token.jsonl": "Before the dummy weights were mended, so that few experts work; two engines of each arm, interleaved.",
}


def table(raw: Path) -> tuple[list[str], str]:
    """One row for each batch size (median, range, ratio), and the ratios in words."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in raw.read_text().splitlines()]
    lines = ["| batch | stock, output tokens/s: median (range) | package | ratio | distinct tokens |", "| --- | --- | --- | --- | --- |"]
    ratios = []
    for batch in sorted({row["batch"] for row in rows}):
        found = {arm: [row["tokens_per_s"] for row in rows if (row["arm"], row["batch"]) == (arm, batch)] for arm in ("stock", "package")}
        middle = {arm: statistics.median(values) for arm, values in found.items()}
        ratio = middle["package"] / middle["stock"]
        ratios.append(f"{ratio:.3f}x at batch {batch}")
        cells = [f"{middle[arm]:.1f} ({min(found[arm]):.1f}-{max(found[arm]):.1f}, n={len(found[arm])})" for arm in ("stock", "package")]
        distinct = sorted({row["distinct_tokens"] for row in rows if row["batch"] == batch})
        lines.append(f"| {batch} | {cells[0]} | {cells[1]} | {ratio:.3f} | {distinct[0]}-{distinct[-1]} of {batch * NEW} |")
    return lines, ", ".join(ratios)


def report() -> str:
    """REPORT.md from the raw lines."""
    tables = {name: table(HERE / name) for name in RUNS}
    gpu = json.loads((HERE / "raw.jsonl").read_text().splitlines()[0])["gpu"]
    parts = [f"Output tokens/s with the correctness patches over stock, plain decoding: {tables['raw.jsonl'][1]}."]
    parts.append(f"{gpu}, 26B-A4B, dummy weights in bfloat16, triton attention, CUDA graphs, {PROMPT} prompt and {NEW} new tokens.")
    parts.append("Command: `python runs/2026-11-21-patch-cost/measure.py OUT.jsonl --rounds N`, then `--report`.")
    parts.append("The loss at batch 32 is larger than the spread; which patch it comes from was not separated.")
    for name, what in RUNS.items():
        parts += [f"`{name}`: {what}", "\n".join(tables[name][0])]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run one engine, all engines, or the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?", help="JSON lines are added to this file")
    parser.add_argument("--rounds", type=int, default=2, help="engine processes of each arm, interleaved")
    parser.add_argument("--arm", help="one engine in this process (what each round starts)")
    parser.add_argument("--report", action="store_true", help="make REPORT.md from raw.jsonl beside this file")
    arguments = parser.parse_args()
    if arguments.report:
        (HERE / "REPORT.md").write_text(report())
    elif arguments.arm:
        one_engine(arguments.arm, arguments.out)
    else:
        for _ in range(arguments.rounds):
            for arm, environ in arms().items():
                command = [sys.executable, __file__, str(arguments.out), "--arm", arm]
                subprocess.run(command, env={**os.environ, **environ}, check=True, timeout=200)


if __name__ == "__main__":
    main()
