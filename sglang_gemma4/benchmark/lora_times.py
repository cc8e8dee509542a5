"""Decode steps and prefills of a batch whose requests use none, 1, 8 or 32 LoRA adapters, and of the same engine without LoRA.

    python -m sglang_gemma4.benchmark.lora_times FOLDER MODEL [--arms stock base lora] [--cpu]

Random weights and random adapters of attention and the dense FFN. Each arm is an engine in a process of its own. The
engines start in parallel, over one copy of the weights, and are measured alternately. ``stock-lora`` is SGLang with
LoRA and none of the package: if it does not start, the error is its result. FOLDER gets ``raw.jsonl``, a log per
engine and ``REPORT.md``.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from sglang_gemma4.benchmark import machine, records
from sglang_gemma4.benchmark.arms import Arm, stock_environment
from sglang_gemma4.benchmark.plan import WARM_UP, Plan, Task, adapters_kind
from sglang_gemma4.benchmark.results import table
from sglang_gemma4.benchmark.server import Died
from sglang_gemma4.benchmark.statistics import summary
from sglang_gemma4.benchmark.step_engine import StepEngine, environment

ARMS = {"stock": (True, False), "stock-lora": (True, True), "base": (False, False), "lora": (False, True)}
"""By arm: whether it is stock, and whether it has LoRA."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FLAGS = (
    *("--attention-backend=triton", "--sampling-backend=pytorch", "--mm-attention-backend=triton_attn"),
    *("--disable-prefill-cuda-graph", "--swa-full-tokens-ratio=1.0", "--mem-fraction-static=0.95", "--sleep-on-idle"),
)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("folder", type=Path)
    form.add_argument("model", help="a real size with random weights (e2b, 26b-a4b) or a checkpoint, whose weights are not read")
    form.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="two of 26b-a4b fit 80 GiB: base and lora")
    form.add_argument("--adapters", nargs="+", type=int, default=[0, 1, 8, 32], help="how many a batch uses, in turn")
    form.add_argument("--batch", type=int, default=32)
    form.add_argument("--tokens", nargs=2, type=int, default=[512, 96], metavar=("INPUT", "OUTPUT"))
    form.add_argument("--repetitions", type=int, default=3, help="counted ones, after one that warms up")
    form.add_argument("--rank", type=int, default=16)
    form.add_argument("--separate", action="store_true", help="a copy of the weights for each engine, where they cannot be shared")
    form.add_argument("--cpu", action="store_true", help="the CPU engine: a dry run")
    return form


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; exit status 1 if an arm crashed, which the report names."""
    asked = parser().parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        plan = _plan(asked, Path(scratch))
        records.append(plan.raw, "header", **plan.header(), **machine.facts(sys.argv))
        _measure(plan, asked)
    lines = list(records.read(plan.raw))
    report = _report(lines)
    (asked.folder / "REPORT.md").write_text(report)
    print(report)
    return int(any(line["kind"] == "crash" for line in lines))


def _plan(asked: argparse.Namespace, scratch: Path) -> Plan:
    from sglang_gemma4.serving.launch import resolve
    from sglang_gemma4.tiny import checkpoints

    random = asked.model in checkpoints.RANDOM_NAMES
    model = checkpoints.write(asked.model, str(scratch / asked.model), random=True)[0] if random else resolve(asked.model)
    length = sum(asked.tokens) + 64
    flags = ["--load-format=dummy", f"--context-length={length}", f"--max-total-tokens={asked.batch * length}"]
    flags.append(f"--max-running-requests={asked.batch}")
    flags += [] if asked.cpu else [*FLAGS, "--cuda-graph-bs-decode", str(asked.batch)]
    lora = ["--enable-lora", f"--max-lora-rank={asked.rank}", f"--max-loras-per-batch={max(asked.adapters) + 1}"]
    lora += ["--lora-target-modules", *TARGETS]
    if any(ARMS[name][1] for name in asked.arms):
        lora += ["--lora-paths", *_adapters(Path(model), scratch, max(asked.adapters), asked.rank)]
    arms = [
        Arm(name, stock_environment(dummy_weights=True) if ARMS[name][0] else {}, tuple(lora) if ARMS[name][1] else ())
        for name in asked.arms
    ]
    return Plan(
        model, asked.model, arms, asked.folder, batches=[asked.batch], step_tokens=tuple(asked.tokens), rounds=1,
        repetitions=asked.repetitions, arguments=flags, together=len(arms), share_weights=not asked.separate, dummy_weights=True,
        cpu=asked.cpu,
    )  # fmt: skip


def _adapters(model: Path, scratch: Path, count: int, rank: int) -> list[str]:
    """Write ``count`` random adapters and return their ``--lora-paths`` entries."""
    import torch

    from sglang_gemma4.tiny import random_adapters

    sizes = random_adapters.sizes_of_checkpoint(model)

    def one(number: int) -> str:
        path = random_adapters.write(scratch / f"adapter-{number}", sizes, rank, seed=number, spread=0.001, dtype=torch.bfloat16)
        return f"adapter-{number}={path}"

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(count)))


def _measure(plan: Plan, asked: argparse.Namespace) -> None:
    """Run all engines in parallel; one that dies is named in the raw lines, and the others continue."""
    said = partial(print, flush=True)
    with ExitStack() as running:
        shared = running.enter_context(environment(plan))
        engines = []
        for arm in plan.arms:
            counts = asked.adapters if ARMS[arm.name][1] else [None]
            tasks: list[Task] = [
                (adapters_kind(count), asked.batch, number) for number in range(WARM_UP, plan.repetitions) for count in counts
            ]
            engines.append(StepEngine(plan, arm, shared, 0, tasks, None))
            running.callback(engines[-1].stop)
        for task in (None, *dict.fromkeys(task for engine in engines for task in engine.tasks)):
            for engine in engines.copy():
                try:
                    if task is None:
                        engine.wait_until_up(None, said)
                    elif task in engine.tasks:
                        engine.do(task, None, said)
                except Died as death:
                    engines.remove(engine)
                    crash = {"exit_status": death.exit_status, "log_tail": death.log_tail}
                    during = f"step batch {asked.batch}" if task else "start of the engine"
                    records.append(plan.raw, "crash", arm=engine.arm.name, round=0, during=during, **crash)


def _report(lines: list[records.Record]) -> str:
    """A table of medians over the counted repetitions, with minimum and maximum."""
    header = next(line for line in lines if line["kind"] == "header")
    rows = []
    steps = [line for line in lines if line["kind"] == "step" and line["counted"]]
    for arm, count in dict.fromkeys((line["arm"], line.get("adapters")) for line in steps):
        cells = []
        for name, digits in (("step_ms", 2), ("output_throughput", 0), ("prefill_ms", 0)):
            found = summary([line[name] for line in steps if (line["arm"], line.get("adapters")) == (arm, count)])
            cells.append(f"{found.median:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})")
        rows.append([arm, "no LoRA" if count is None else str(count), *cells])
    for line in lines:
        if line["kind"] == "crash":
            errors = [text for text in line["log_tail"] if "Error" in text.split(":")[0]] or line["log_tail"][-1:]
            rows.append([line["arm"], "", f"died during {line['during']}: {' '.join(errors)[-200:].replace('|', '/')}", "", ""])
    columns = ["arm", "adapters in the batch", "ms a decode step", "output tok/s while decoding", "prefill of the batch, ms"]
    return f"""\
# LoRA on {header["model"]}: a batch whose requests use several adapters, on {header["device"]["name"]}

Random weights, random adapters of attention and the dense FFN; offline engine, medians (least to most) of the repetitions.

{table(columns, rows)}
"""


if __name__ == "__main__":
    sys.exit(main())
