"""Accept length of the tiny pairs: this engine with stock's draft and ours, and transformers.

    OMP_NUM_THREADS=1 PYTHONPATH=. python runs/2026-11-22-tiny-accept-length/accept_length.py WORK [--every 20 --raw FILE]

WORK is an empty folder for images, answers and logs. Adds its lines to raw.jsonl, leaving out what is there already (so with the file as
it is here nothing is left to do: give another one), then writes the report. All prompts take about an hour and a half on two busy cores,
every 20th eleven minutes.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

import asked  # noqa: E402
import report  # noqa: E402
import transformers_side  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from sglang_gemma4.tiny import checkpoints  # noqa: E402
from tests.harness.engine_fork import Group, open_nursery  # noqa: E402

ENGINE: dict[str, Any] = {"max_total_tokens": 32768, "max_running_requests": 24, "chunked_prefill_size": 2048, "log_level": "warning"}
MTP: dict[str, Any] = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": asked.STEPS,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": asked.STEPS + 1,
}
MTP_SWITCHES = """
    MTP_DEFAULTS FROZEN_VIEWS FROZEN_CHAIN DRAFT_GRAPH SHARED_QUERY DRAFT_PHASE ADAPTIVE_DRAFT STOP_ORDER SHARED_KV DRAFT_BUDGET
    PD_DRAFT VERIFY_PENALTIES VERIFY_CUTS VERIFY_ATTENTION
"""
# SYNC_MTP stays: without it stock's MTP does not run on this engine, which has no overlap scheduling. It changes no draft.
ARMS: dict[str, dict[str, str]] = {
    "stock's draft": {f"SGLANG_GEMMA4_{name}": "0" for name in MTP_SWITCHES.split()},
    "default": {},
    "DRAFT_PHASE": {"SGLANG_GEMMA4_DRAFT_PHASE": "1"},
    "FROZEN_CHAIN": {"SGLANG_GEMMA4_FROZEN_CHAIN": "1"},
    "SHARED_QUERY": {"SGLANG_GEMMA4_SHARED_QUERY": "1"},
    "all three": {f"SGLANG_GEMMA4_{name}": "1" for name in ("DRAFT_PHASE", "FROZEN_CHAIN", "SHARED_QUERY")},
}


def engine_side(work: Path, raw: Path, every: int, done: set[tuple[str, str, str]]) -> None:
    """Every arm on every family that is not in ``done``, on every ``every``-th prompt.

    The first arm's token ids are kept in WORK; later ones say where theirs differ.
    """
    left = [(family, arm) for family in asked.FAMILIES for arm in ARMS if (family, "engine", arm) not in done]
    if not left:
        return
    prompts = asked.prompts(work)[::every]
    tokenizer = Tokenizer.from_file(str(checkpoints.SHIPPED / asked.FAMILIES[0] / "tokenizer.json"))  # one for all three

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    sampling = {"max_new_tokens": asked.NEW_TOKENS}
    text = [prompt for prompt in prompts if not prompt["images"]]
    seen = prompts[len(text) :]
    groups = [
        Group([ids(prompt["text"]) for prompt in text], sampling),  # as text they would get a second <bos>
        Group([prompt["text"] for prompt in seen], sampling, images=[prompt["images"] for prompt in seen]),
    ]
    for nursery in open_nursery(work):
        for family, arm in left:
            model, kept, started = checkpoints.SHIPPED / family, work / f"{family}.json", time.time()
            options = {"speculative_draft_model_path": f"{model}-assistant", **MTP, **ENGINE}
            outputs = [output for group in nursery.run(model, groups, ARMS[arm], 3600.0, **options) for output in group]
            tokens = [output.token_ids for output in outputs]
            if not kept.exists():
                kept.write_text(json.dumps(tokens))
            asked.write(
                raw,
                family=family,
                side="engine",
                every=every,
                arm=arm,
                environment=ARMS[arm],
                steps=[output.meta_info["spec_verify_ct"] for output in outputs],
                other_tokens=sum(a != b for a, b in zip(tokens, json.loads(kept.read_text()), strict=True)),
                seconds=round(time.time() - started, 1),
            )
            print(family, arm, f"{time.time() - started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--every", type=int, default=1, help="every how manieth prompt (default: all)")
    parser.add_argument("--raw", type=Path, default=report.RAW)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if not given.raw.exists():
        prompts = asked.prompts(given.work)
        asked.write(given.raw, side="prompts", kinds=[prompt["kind"] for prompt in prompts], new_tokens=asked.NEW_TOKENS, seed=asked.SEED)
    done = {(record["family"], record["side"], record["arm"]) for record in asked.records(given.raw) if "arm" in record}
    engine_side(given.work, given.raw, given.every, done)
    transformers_side.run(given.work, given.raw, given.every, done)
    if given.raw == report.RAW:
        report.main()


if __name__ == "__main__":
    main()
