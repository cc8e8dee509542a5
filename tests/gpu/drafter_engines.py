"""EAGLE-3, DFlash and DSpark drafts beside the package: start, tokens against plain decoding, step times. One process per engine.

    python -m tests.gpu.drafter_engines FOLDER MODEL [ARM ...] [--limit 240] [--passes 3] [--same SHARE] [--engine JSON]

MODEL is a released size with random weights, or a tiny checkpoint in float32 with drafts that are partly accepted. A tiny one also runs on
the CPU reference engine. Arms: ``plain``, ``dflash``, ``eagle3``, ``dspark``. An engine that takes longer than ``--limit`` seconds is
killed. FOLDER gets each arm's log (ARM.log) and its result (ARM.json):

- ``start_seconds``: from the process's start until the engine answers.
- ``equal``: share of the tokens before an answer differs from that of ``plain``, if FOLDER has ``plain``.
- ``step_ms``: time of a decode or verify step at batch 1 and 16, one value per pass.
- ``states``, ``not_active``: how many patches are in each state, and the reasons of those that are not active.
- ``last``: the last 30 lines of a failed engine's log.

Exit status 1 where an engine failed, or where ``equal`` is below ``--same``.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4.cpu.environment import default_engine_arguments, has_accelerator, launch_environment
from sglang_gemma4.diagnostics import status
from sglang_gemma4.tiny import checkpoints, real_sizes
from tests.harness.checkpoints import other_drafts
from tests.harness.oracles.reference import text_prompts

ROOT = Path(__file__).parents[2]
TOKENS = 64
"""Of an answer that is compared with plain decoding's."""
SHORT, LONG = 24, 120
"""Tokens of the two answers whose difference in time is that of their steps."""
BATCHES = (1, 16)
TINY_LENGTHS = (20, 150, 90, 333, 64, 65, 700, 40)
LARGE_LENGTHS = (64, 200, 517, 1024, 1500, 3000, 33, 800)
LAST_LINES = 30

DRAFTS: dict[str, dict[str, Any]] = {
    "dflash": {"speculative_algorithm": "DFLASH"},
    "eagle3": {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    },
    "dspark": {"speculative_algorithm": "DSPARK"},
}
ARMS = ("plain", *DRAFTS)
COMMON = {"max_running_requests": max(BATCHES), "random_seed": 0, "log_level": "info", "skip_server_warmup": True}
ON_GPU = {
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "mm_attention_backend": "triton_attn",
    "cuda_graph_max_bs_decode": max(BATCHES),
}
TINY = {"dtype": "float32", "max_total_tokens": 32_768, "mem_fraction_static": 0.3, "context_length": 4096}
LARGE = {"load_format": "dummy", "mem_fraction_static": 0.85, "context_length": 16_384}
POOLS = ("max_total_num_tokens", "swa_full_tokens_ratio", "attention_backend", "speculative_draft_attention_backend")


def is_tiny(model: str) -> bool:
    return model in checkpoints.NAMES


def prompts(model: str) -> list[list[int]]:
    """Token ids: passages of the tiny models' world, or random ones for random weights."""
    if is_tiny(model):
        return text_prompts(model, list(TINY_LENGTHS))
    rng = random.Random(0)
    vocabulary = real_sizes.target(model)["text_config"].get("vocab_size", 262_144)
    return [[2, *(rng.randrange(300, vocabulary) for _ in range(length - 1))] for length in LARGE_LENGTHS]


def target_of(model: str, folder: Path) -> str:
    """Path of the target: the shipped tiny checkpoint, or a config-only one that is written below ``folder``."""
    if is_tiny(model):
        return str(checkpoints.SHIPPED / model)
    return checkpoints.write(model, str(folder / model), random=True)[0]


def draft_of(arm: str, model: str, folder: Path) -> str:
    """Path of the arm's draft for ``model``, which is written below ``folder``."""
    where = folder / f"{model}-{arm}"
    if is_tiny(model):
        return str({"dflash": other_drafts.dflash, "eagle3": other_drafts.eagle3, "dspark": other_drafts.dspark}[arm](where, model))
    return str(other_drafts.large(where, DRAFTS[arm]["speculative_algorithm"], real_sizes.target(model)))


def engine_arguments(arm: str, model: str, folder: Path, more: dict[str, Any], on_gpu: bool) -> dict[str, Any]:
    """Arguments of the arm's ``sglang.Engine`` beside the target's path; ``more`` overrides them."""
    given: dict[str, Any] = {**COMMON, **(TINY if is_tiny(model) else LARGE)}
    if arm in DRAFTS:
        given |= DRAFTS[arm] | {"speculative_draft_model_path": draft_of(arm, model, folder)}
    return {**given, **ON_GPU, **more} if on_gpu else default_engine_arguments({**given, **more})


def generate(engine: Any, ids: Sequence[list[int]], tokens: int) -> tuple[list[dict[str, Any]], float]:
    """In the engine's process: greedy answers of so many tokens, and the seconds that all took together."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    began = time.perf_counter()
    answers = engine.generate(input_ids=ids, sampling_params=[sampling] * len(ids))
    return answers, time.perf_counter() - began


def steps(answers: Sequence[dict[str, Any]]) -> int:
    """Steps after the prefill: verify steps with a draft, else one for each further token."""
    told = [answer["meta_info"] for answer in answers]
    return max(int(meta.get("spec_verify_ct") or meta["completion_tokens"] - 1) for meta in told)


def step_ms(engine: Any, ids: Sequence[list[int]], passes: int) -> list[float]:
    """Milliseconds of a step, by the difference of a long and a short answer; one value per pass."""
    generate(engine, ids, SHORT)  # the prompts are in the radix cache afterwards
    found = []
    for _ in range(passes):
        (short, fast), (long, slow) = generate(engine, ids, SHORT), generate(engine, ids, LONG)
        found.append(round(1000 * (slow - fast) / max(1, steps(long) - steps(short)), 3))
    return found


def reported(engine: Any) -> dict[str, Any]:
    """Pools and backends of the server, and the states of the package's patches; stock SGLang has none."""
    info = engine.get_server_info()
    package = info["internal_states"][0].get("sglang_gemma4") or {}
    rows = status.merged(package.get("scheduler") or (), package.get("frontend") or ())
    return {
        "pools": {name: info.get(name) for name in POOLS},
        "states": status.counts(rows),
        "not_active": {row["name"]: f"{row['state']}: {row['reason']}" for row in rows if row["state"] not in ("active", "off")},
    }


def measured(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """A client of ``engine_case``: what the engine answers, how long its steps take, and what the package does in it."""
    ready = time.time()
    asked = group["prompts"]
    answers, _ = generate(engine, asked, TOKENS)
    again, _ = generate(engine, asked, TOKENS)
    several = [ids[:512] for ids in asked * 2]
    found = {
        "ready": ready,
        "tokens": [answer["output_ids"] for answer in answers],
        "same_again": sum(one["output_ids"] == other["output_ids"] for one, other in zip(answers, again, strict=True)),
        "accept_length": [answer["meta_info"].get("spec_accept_length") for answer in answers],
        "step_ms": {batch: step_ms(engine, several[:batch], group["passes"]) for batch in BATCHES},
    }
    return [found | reported(engine)]


def ended(command: Sequence[str], log: Path, limit: float, environment: dict[str, str]) -> int:
    """A command's exit status, 124 where it took longer than ``limit`` seconds; all that it started is killed in any case."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(arm: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The result of one arm, which is also written to its file."""
    folder, on_gpu = asked.folder, has_accelerator()
    request, answer, log = (folder / f"{arm}.{kind}" for kind in ("request", "answer", "log"))
    group = {"client": "tests.gpu.drafter_engines:measured", "prompts": prompts(asked.model), "passes": asked.passes}
    engine = engine_arguments(arm, asked.model, folder, asked.engine, on_gpu)
    request.write_text(json.dumps({"model": target_of(asked.model, folder), "engine": engine, "groups": [group]}))
    command = [sys.executable, "-m", "tests.gpu.engine_case", str(request), str(answer)]
    began = time.time()
    code = ended(command, log, asked.limit, dict(os.environ) if on_gpu else launch_environment())
    found: dict[str, Any] = {"arm": arm, "status": code, "seconds": round(time.time() - began, 1)}
    if code:
        found["last"] = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    else:
        ((told,),) = json.loads(answer.read_text())
        found |= {"start_seconds": round(told.pop("ready") - began, 1), **told}
    (folder / f"{arm}.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def equal(plain: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    """Share of the tokens of ``plain`` before each answer's first difference."""
    alike = 0
    for one, two in zip(plain, other, strict=True):
        alike += next((place for place, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1]), len(one))
    return round(alike / sum(map(len, plain)), 4)


def compare(folder: Path, arm: str) -> float | None:
    """``equal`` of an arm, added to its file; None where its answers or those of ``plain`` are missing."""
    files = [folder / f"{name}.json" for name in ("plain", arm)]
    if arm == "plain" or not all(file.exists() for file in files):
        return None
    plain, found = (json.loads(file.read_text()) for file in files)
    if "tokens" not in plain or "tokens" not in found:
        return None
    found["equal"] = equal(plain["tokens"], found["tokens"])
    files[1].write_text(json.dumps(found, indent=1) + "\n")
    return float(found["equal"])


def summary(found: dict[str, Any], share: float | None) -> str:
    """One line of an arm; its steps are the fastest pass's."""
    if found["status"]:
        return f"{found['arm']}: status {found['status']} after {found['seconds']} s"
    times = ", ".join(f"{min(values):.2f} ms at {batch}" for batch, values in found["step_ms"].items())
    alike = "" if share is None else f", {share:.1%} equal"
    return f"{found['arm']}: start {found['start_seconds']} s, steps {times}{alike}"


def parser() -> argparse.ArgumentParser:
    """Of all words."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path)
    made.add_argument("model", choices=(*checkpoints.NAMES, *checkpoints.RANDOM_NAMES))
    made.add_argument("arms", nargs="*", metavar="ARM", help=f"of {', '.join(ARMS)}; default: all")
    made.add_argument("--limit", type=float, default=240.0, help="seconds of one engine")
    made.add_argument("--passes", type=int, default=3, help="of the step times")
    made.add_argument("--same", type=float, default=0.0, help="least share of tokens equal to plain decoding's")
    made.add_argument("--engine", type=json.loads, default={}, help="further arguments of sglang.Engine, as a JSON object")
    return made


def main(words: Sequence[str]) -> int:
    """Exit status: 0 all engines answered alike enough, 1 otherwise, 2 a wrong argument."""
    form = parser()
    asked = form.parse_args(words)
    if strange := set(asked.arms) - set(ARMS):
        form.error(f"no arm is called {', '.join(sorted(strange))}; there are {', '.join(ARMS)}")
    if not is_tiny(asked.model) and not has_accelerator():
        form.error(f"random weights of {asked.model} need a GPU; take {', '.join(checkpoints.NAMES)} without one")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked.folder = asked.folder.resolve()
    asked.folder.mkdir(parents=True, exist_ok=True)
    lines, well = [], True
    for arm in asked.arms or ARMS:
        found = run(arm, asked)
        share = compare(asked.folder, arm)
        well = well and not found["status"] and (share is None or share >= asked.same)
        lines.append(summary(found, share))
        print("\n".join([*found.get("last", ()), lines[-1]]), flush=True)
        if "states" in found:
            print(json.dumps({name: found[name] for name in ("accept_length", "pools", "states", "not_active")}), flush=True)
    print("; ".join(lines))
    return int(not well)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
