"""Loads of short and of long requests on pools of the same memory: two with a fixed split, or one whose split moves.

    python -m tests.harness.programs.moving_boundary FOLDER [--mtp]

runs all of :data:`SPLITS` on the CPU engine and writes ``raw.jsonl``.
"""

import json
import re
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery, Output, open_nursery

MODEL = "tiny-26b-a4b"
FULL_BYTES, SLIDING_BYTES = 512, 2560
"""A token's keys and values in the model's 1 full layer and in its 5 sliding ones, in float32."""
MEMORY = 1_600_000
MOVING = "moving"
SPLITS: tuple[float | str, ...] = (MOVING, 1.0, 0.75, 0.5, 0.25)
"""Sliding tokens for each full one."""
ENGINE: dict[str, Any] = {"max_running_requests": 32, "chunked_prefill_size": 128, "decode_log_interval": 1}
ENV = {"SGLANG_SWA_EVICTION_INTERVAL": "4"}
MTP = {
    "speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4, "speculative_eagle_topk": 1,
    "speculative_draft_model_path": f"{resolve(MODEL)}-assistant",
}  # fmt: skip


def prompts(count: int, tokens: int, salt: int) -> list[list[int]]:
    """Prompts without a common prefix but their first token."""
    return [[2, *((7 * place + 31 * number + salt) % 700 + 300 for place in range(tokens - 1))] for number in range(count)]


LOADS = {
    "short": Group(prompts(32, 24, 0), {"max_new_tokens": 20}),
    "long": Group(prompts(8, 400, 5), {"max_new_tokens": 24}),
    "short again": Group(prompts(32, 24, 0), {"max_new_tokens": 20}),
}
"""One after the other in the same server."""


@dataclass
class Load:
    """What the log says of one load."""

    split: float | str
    mtp: bool
    load: str
    running: float
    """Requests running at once, on average over the steps in which others wait."""
    peak: int
    retractions: int
    steps: int


def run(nursery: Nursery, split: float | str, mtp: bool = False) -> tuple[list[Load], list[list[Output]]]:
    """All loads on one engine."""
    ratio = 0.5 if split == MOVING else float(split)
    sizes: dict[str, Any] = {"max_total_tokens": int(MEMORY // (FULL_BYTES + ratio * SLIDING_BYTES)), "swa_full_tokens_ratio": ratio}
    sizes |= {"enable_unified_memory": True} if split == MOVING else {}
    answers = nursery.run(resolve(MODEL), list(LOADS.values()), ENV, 400.0, **{**ENGINE, **sizes, **(MTP if mtp else {})})
    parts = answers[0][0].log.split("HARNESS ")[1:]
    return [seen(split, mtp, name, part) for name, part in zip(LOADS, parts, strict=False)], answers


def seen(split: float | str, mtp: bool, name: str, log: str) -> Load:
    """The load of one part of a log, between two lines of the harness."""
    steps = [
        (int(running), int(waiting)) for running, waiting in re.findall(r"Decode batch.*?#running-req: (\d+).*?#queue-req: (\d+)", log)
    ]
    full = [running for running, waiting in steps if waiting]
    peak = max(running for running, _ in steps)
    return Load(split, mtp, name, round(statistics.mean(full or [peak]), 1), peak, log.count("KV cache pool is full"), len(steps))


def main(words: list[str]) -> int:
    """Exit status: 0 if every answer is the same on every split."""
    folder, mtp = Path(words[0]), "--mtp" in words
    folder.mkdir(parents=True, exist_ok=True)
    reference: list[list[list[int]]] | None = None
    equal = True
    for nursery in open_nursery(folder):
        for split in SPLITS:
            loads, answers = run(nursery, split, mtp)
            tokens = [[answer.token_ids for answer in group] for group in answers]
            reference = reference or tokens
            equal &= tokens == reference
            with (folder / "raw.jsonl").open("a") as raw:
                raw.writelines(json.dumps({**asdict(load), "same_tokens": tokens == reference}) + "\n" for load in loads)
            print(*loads, sep="\n", flush=True)
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
