"""Decode steps and prefills of a batch whose requests use none, 1, 8 or 32 LoRA adapters, beside the same engine without LoRA.

    python -m sglang_gemma4.benchmark.lora_times FOLDER [--models e2b 26b-a4b] [--cpu]

Random weights and random adapters of attention and the dense FFN. Each arm is an engine in a process of its own; those of a model start
side by side, over one copy of its weights, and measured in turn. ``stock-lora`` is SGLang with LoRA and none of the package: where it does
not start, the error is its result. FOLDER gets ``raw.jsonl``, a log an engine and ``REPORT.md``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from sglang_gemma4.benchmark import machine, records
from sglang_gemma4.benchmark.arms import stock_environment
from sglang_gemma4.benchmark.server import tail
from sglang_gemma4.benchmark.shared_card import SHARED_FROM
from sglang_gemma4.switches import SHARED_WEIGHTS

ARMS = {"stock": (True, False), "stock-lora": (True, True), "base": (False, False), "lora": (False, True)}
"""Stock or not, with LoRA or not."""
BESIDE = {"26b-a4b": ("base", "lora")}
"""Arms of a model whose weights leave no room for more on 80 GiB; others have all."""
FLAGS = (
    *("--load-format=dummy", "--attention-backend=triton", "--sampling-backend=pytorch", "--mm-attention-backend=triton_attn"),
    *("--disable-prefill-cuda-graph", "--swa-full-tokens-ratio=1.0", "--mem-fraction-static=0.95", "--sleep-on-idle"),
)
SAID = "LORA_TIMES_SAID"
"""The variable that tells an engine's process where to say what it has done."""
CPU_FLAGS = ("--load-format=dummy",)


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; the exit status."""
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("folder", type=Path)
    form.add_argument("--models", nargs="+", default=["e2b", "26b-a4b"])
    form.add_argument("--arms", nargs="+", choices=list(ARMS), help="of every model; the first one is what others are compared with")
    form.add_argument("--adapters", nargs="+", type=int, default=[0, 1, 8, 32], help="how many a batch uses, in turn")
    form.add_argument("--batch", type=int, default=32)
    form.add_argument("--tokens", nargs=2, type=int, default=[512, 96], metavar=("INPUT", "OUTPUT"))
    form.add_argument("--repetitions", type=int, default=3, help="counted ones, after one that warms up")
    form.add_argument("--rank", type=int, default=16)
    form.add_argument("--separate", action="store_true", help="a copy of the weights for each engine, where they cannot be shared")
    form.add_argument("--cpu", action="store_true", help="the CPU engine: a dry run")
    form.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    asked = form.parse_args(words)
    if asked.engine:
        _engine(json.loads(asked.engine.read_text()))
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    raw = asked.folder / records.NAME
    records.append(
        raw,
        "header",
        model=", ".join(asked.models),
        dummy_weights=True,
        command=sys.argv[1:],
        versions=machine.versions(),
        device=machine.device(),
        environment=machine.environment(),
    )
    for model in asked.models:
        _model(asked, model, raw)
    report = _report(list(records.read(raw)))
    (asked.folder / "REPORT.md").write_text(report)
    print(report)
    return 0


def _model(asked: argparse.Namespace, name: str, raw: Path) -> None:
    from sglang_gemma4.serving.launch import resolve
    from sglang_gemma4.tiny import checkpoints

    with ExitStack() as open_now:
        scratch = Path(open_now.enter_context(tempfile.TemporaryDirectory()))
        model = checkpoints.write(name, str(scratch / name), random=True)[0] if name in checkpoints.RANDOM_NAMES else resolve(name)
        began = time.monotonic()
        adapters = _adapters(Path(model), scratch, max(asked.adapters), asked.rank)
        print(f"{name}: {len(adapters)} adapters of rank {asked.rank} after {time.monotonic() - began:.0f} s", flush=True)
        chosen = asked.arms or BESIDE.get(name, tuple(ARMS))
        engines = {arm: open_now.enter_context(_Engine(asked, name, model, arm, adapters, scratch, raw)) for arm in chosen}
        for arm, engine in engines.items():
            print(f"{name} {arm}: {engine.step()}", flush=True)
        for arm, engine in engines.items():
            while engine.alive:
                print(f"{name} {arm}: {engine.step()}", flush=True)


def _adapters(model: Path, scratch: Path, count: int, rank: int) -> dict[str, str]:
    import torch

    from sglang_gemma4.tiny import random_adapters

    sizes = random_adapters.sizes_of_checkpoint(model)

    def one(number: int) -> str:
        path = random_adapters.write(scratch / f"adapter-{number}", sizes, rank, seed=number, spread=0.001, dtype=torch.bfloat16)
        return str(path)

    with ThreadPoolExecutor(8) as pool:
        return {f"adapter-{number}": path for number, path in enumerate(pool.map(one, range(count)))}


class _Engine:
    """The process of an arm, which does a step whenever it is told to and says what came of it in one line."""

    def __init__(
        self, asked: argparse.Namespace, name: str, model: str, arm: str, adapters: dict[str, str], scratch: Path, raw: Path
    ) -> None:
        self.who, self.raw, self.log = {"model": name, "arm": arm}, raw, asked.folder / f"{name}-{arm}.log"
        stock, lora = ARMS[arm]
        length = sum(asked.tokens) + 64
        flags = [*(CPU_FLAGS if asked.cpu else FLAGS), f"--context-length={length}", f"--max-total-tokens={asked.batch * length}"]
        flags.append(f"--max-running-requests={asked.batch}")
        flags += [] if asked.cpu else ["--cuda-graph-bs-decode", str(asked.batch)]
        if lora:
            flags += ["--enable-lora", f"--max-lora-rank={asked.rank}", f"--max-loras-per-batch={max(asked.adapters) + 1}"]
            flags += ["--lora-target-modules", *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")]
        order = {
            "model": model, "flags": flags, "cpu": asked.cpu, "adapters": adapters if lora else {}, "batch": asked.batch,
            "counts": asked.adapters if lora else [0], "tokens": asked.tokens, "repetitions": asked.repetitions, "raw": str(raw),
            "who": self.who,
        }  # fmt: skip
        path = scratch / f"{arm}.json"
        path.write_text(json.dumps(order))
        environment = {**os.environ, **(stock_environment(dummy_weights=True) if stock else {})}
        if not asked.separate:
            environment[SHARED_WEIGHTS] = f"{SHARED_FROM}:{_made(scratch / 'weights')}"
        self.said = (scratch / f"{arm}.said").open("w+")
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang_gemma4.benchmark.lora_times", str(asked.folder), "--engine", str(path)],
                env={**environment, SAID: self.said.name}, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.alive, self.up = True, False

    def __enter__(self) -> "_Engine":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def step(self) -> str:
        """What it says next: that it is up, a measurement, or that it has ended."""
        if self.up:
            assert self.process.stdin is not None
            self.process.stdin.write(b"go on\n")
            self.process.stdin.flush()
        while True:
            line = self.said.readline()
            if line:
                self.up, self.alive = True, line != "done\n"
                return line.strip()
            if self.process.poll() is not None:
                self.alive = False
                errors = [text for text in tail(self.log, 400) if "Error" in text.split(":")[0]]
                records.append(self.raw, "crash", **self.who, exit_status=self.process.returncode, error=errors[-1:] or tail(self.log)[-3:])
                return f"did not start: {errors[-1] if errors else 'see its log'}"
            time.sleep(0.1)


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _engine(order: dict[str, Any]) -> None:
    from sglang_gemma4.benchmark.step_times import measure, random_prompts

    said = open(os.environ[SAID], "a", buffering=1)  # noqa: SIM115 - as long as the process
    if order["cpu"]:
        from sglang_gemma4.cpu.environment import default_arguments, prepare_this_process

        prepare_this_process()
        order["flags"] += default_arguments(order["flags"])
    import sglang
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    began = time.monotonic()
    flags = ["--model-path", order["model"], "--skip-tokenizer-init", "--enable-metrics", *order["flags"]]
    engine = sglang.Engine(server_args=prepare_server_args(flags))
    for name, path in order["adapters"].items():
        loaded = engine.load_lora_adapter(name, path)
        if not loaded.success:
            raise RuntimeError(f"{name}: {loaded.error_message}")
    raw, who, seconds = Path(order["raw"]), order["who"], time.monotonic() - began
    records.append(raw, "start", **who, process="engine", seconds=seconds)
    said.write(f"up with {len(order['adapters'])} adapters after {seconds:.0f} s\n")
    prompts = random_prompts(order["model"], order["batch"], order["tokens"][0])
    for count, repetition in _turns(order):
        sys.stdin.readline()
        using = [f"adapter-{number % count}" if count else None for number in range(order["batch"])]
        row = measure(engine, prompts, order["tokens"][1], **({"lora_path": using} if order["adapters"] else {}))
        records.append(raw, "step", **who, adapters=count, batch=order["batch"], repetition=repetition, counted=repetition >= 0, **row)
        said.write(f"{count} adapters: {row['step_ms']:.2f} ms a step, prefill {row['prefill_ms']:.0f} ms\n")
    sys.stdin.readline()
    said.write("done\n")
    sys.stdin.read()
    engine.shutdown()


def _turns(order: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for repetition in range(-1, order["repetitions"]):
        for count in order["counts"]:
            yield count, repetition


def _report(lines: list[records.Record]) -> str:
    """A table: medians of the counted repetitions, least and most beside them."""
    device = next(line for line in lines if line["kind"] == "header")["device"]["name"]
    rows = [
        f"# LoRA: a batch whose requests use several adapters, on {device}", "",
        "Random weights, random adapters of attention and the dense FFN; offline engine, medians (least to most) of the repetitions.", "",
        "| model | arm | adapters in the batch | ms a decode step | output tok/s while decoding | prefill of the batch, ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    steps = [line for line in lines if line["kind"] == "step" and line["counted"]]
    for key in dict.fromkeys((line["model"], line["arm"], line["adapters"]) for line in steps):
        mine = [line for line in steps if (line["model"], line["arm"], line["adapters"]) == key]
        cells = [
            _spread([line[name] for line in mine], digits) for name, digits in (("step_ms", 2), ("output_throughput", 0), ("prefill_ms", 0))
        ]
        model, arm, count = key
        rows.append(f"| {model} | {arm} | {count if ARMS[arm][1] else 'no LoRA'} | {' | '.join(cells)} |")
    for line in lines:
        if line["kind"] == "crash":
            rows.append(f"| {line['model']} | {line['arm']} | | did not start: {' '.join(line['error'])[:200].replace('|', '/')} | | |")
    return "\n".join(rows) + "\n"


def _spread(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    sys.exit(main())
