"""What holding one window gains and costs: loads whose sliding pool is too small, in both :data:`WAYS`.

    python -m tests.harness.programs.admission_loads FOLDER [--mtp]

runs every load on the CPU engine with each pool and writes ``raw.jsonl``. Prompts, answers and windows are a sixteenth of a card's. What a
run takes is counted, not timed: decode steps, prefills, and tokens prefilled, again after a retraction included.
"""

import json
import random
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery, Output, open_nursery, without
from tests.harness.programs.moving_boundary import MTP, prompts

MODEL = "tiny-26b-a4b"
REQUESTS = 48
SHARES = (0.3, 0.5, 0.7)
"""The sliding pool, as a share of what 32 running requests hold at most with one window each."""
MOST = 32 * (64 + 8)
ENGINE: dict[str, Any] = {"max_running_requests": 32, "chunked_prefill_size": 128, "decode_log_interval": 1}
INTERVAL = {"SGLANG_SWA_EVICTION_INTERVAL": "4"}
WAYS: dict[str, dict[str, str]] = {
    "two windows": without("own_window"),
    "one window": {},
}
"""As stock; as by default."""


@dataclass(frozen=True)
class Asked:
    """Requests: each prompt's tokens, the most tokens of its answer, and after how many it ends."""

    prompts: tuple[int, ...]
    most: tuple[int, ...]
    ends: tuple[int, ...]


def _mixed(low: int, high: int, seed: int) -> tuple[int, ...]:
    source = random.Random(seed)
    return tuple(round(low * (high / low) ** source.random()) for _ in range(REQUESTS))


def _all(tokens: int) -> tuple[int, ...]:
    return (tokens,) * REQUESTS


LOADS = {
    "1000/500": Asked(_all(62), _all(31), _all(31)),
    "short prompts, long answers": Asked(_all(12), _all(100), _all(100)),
    "mixed": Asked(_mixed(4, 375, 1), _mixed(4, 64, 2), _mixed(4, 64, 2)),
    "answers that end early": Asked(_mixed(4, 375, 3), _all(128), _mixed(4, 64, 4)),
}


@dataclass
class Counted:
    """What the log says of one run."""

    load: str
    mtp: bool
    share: float
    way: str
    decode_steps: int
    prefills: int
    prefilled: int
    retractions: int
    same_tokens: bool


def group(asked: Asked, answers: list[list[int]] | None = None) -> Group:
    """The requests, sent together. Of ``answers``, which a large pool gave, each request's token at its end is where it stops."""
    texts = [prompts(1, tokens, 97 * number)[0] for number, tokens in enumerate(asked.prompts)]
    sampling: list[dict[str, Any]] = [{"max_new_tokens": most} for most in asked.most]
    for one, answer, most, end in zip(sampling, answers or [], asked.most, asked.ends, strict=False):
        if end < most:
            one |= {"ignore_eos": False, "stop_token_ids": [answer[end - 1]]}
    return Group(texts, sampling)


def run(nursery: Nursery, mtp: bool, share: float, way: str, sent: list[Group]) -> tuple[list[list[Output]], list[str]]:
    """Run all loads on one engine; returns answers and log of each load. Share 0 is a pool with space for all
    requests."""
    tokens = round(share * MOST) if share else 32 * 1024
    sizes = {"max_total_tokens": 20_000, "swa_full_tokens_ratio": tokens / 20_000} if share else {"max_total_tokens": tokens}
    answers = nursery.run(resolve(MODEL), sent, {**INTERVAL, **WAYS[way]}, 600.0, **{**ENGINE, **sizes, **(MTP if mtp else {})})
    return answers, answers[0][0].log.split("HARNESS ")[1:]


def main(words: list[str]) -> int:
    """Exit status: 0 if every answer equals that of a pool with space for all requests."""
    folder, mtp = Path(words[0]), "--mtp" in words
    folder.mkdir(parents=True, exist_ok=True)
    same = True
    for nursery in open_nursery(folder):
        free, _ = run(nursery, mtp, 0, "one window", [group(asked) for asked in LOADS.values()])
        sent = [group(asked, [one.token_ids for one in answers]) for asked, answers in zip(LOADS.values(), free, strict=True)]
        free, _ = run(nursery, mtp, 0, "one window", sent)
        for share in SHARES:
            for way in WAYS:
                answers, logs = run(nursery, mtp, share, way, sent)
                for load, found, right, log in zip(LOADS, answers, free, logs, strict=False):
                    equal = [one.token_ids for one in found] == [one.token_ids for one in right]
                    counted = Counted(
                        load, mtp, share, way, len(re.findall("Decode batch", log)), len(re.findall("Prefill batch", log)),
                        sum(map(int, re.findall(r"#new-token: (\d+)", log))), log.count("KV cache pool is full"), equal,
                    )  # fmt: skip
                    same &= equal
                    print(counted, flush=True)
                    with (folder / "raw.jsonl").open("a") as raw:
                        raw.write(json.dumps(asdict(counted)) + "\n")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
