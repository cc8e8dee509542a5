"""Random engines under random loads, each beside a plain engine with room for all: for what no test was written for.

    python -m tests.harness.programs.random_loads FIRST LAST [--kv-cache-dtype KIND] [--requests N] [--memory KIND] [--near-end]

A number is a case: one of the tiny models; a KV cache of float32, or of int8 or fp8 with scales by token and head; plain decoding or MTP,
overlapped or not, of one length or adaptive, or the safe mode; prompts in turn or beside running requests; pages, chunks and pools of many
sizes; requests that share prefixes, follow each other, end by stops, grammars and lengths, and are aborted. Answers are compared token by
token with those over the same kind of cache (``--kv-cache-dtype`` chooses it for all cases), grammars and log-probabilities are looked at,
and SGLang's pool checks are fatal in every step and when idle. Exit status 1 if one differs or an engine ends; its log is kept. It takes
some 8 s a case of 5 to 12 requests (``--requests`` has as many in each), and found ``crash_repro/two_chunks.py``.

KV is in two pools; with ``--memory unified`` in SGLang's unified memory, whose pages move, and with ``--memory host`` in two pools with
HiCache behind them. Both have a radix cache, no quantised KV, which SGLang or this package refuses there, and unified memory pages of one
token, since longer ones are allocated by a kernel for a card.

With ``--near-end`` twenty requests come at once, each of any length that the pool can hold with nobody beside it; pages have up to 128
tokens, and some prompts go whole. An answer that reaches the end of the pool is compared as far as ``request_limit`` has the pool hold it.

Known and left out: penalties in plain decoding, which SGLang counts a token late if it is overlapped, and anew after a retraction; an
aborted request with a grammar, for which SGLang returns a token of no prompt; tokens past ``max_new_tokens`` of a request that was
aborted in the same verify step.
"""

import argparse
import json
import math
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_gemma4.kernels.kv_cache.formats import FORMATS
from sglang_gemma4.memory.request_limit import Pools
from sglang_gemma4.patching import switches
from tests.engine.test_dropped_layers import HOST, HOST_ENV
from tests.engine.test_host_windows import from_host
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output, without
from tests.harness.inputs.mtp_cases import NO_END
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

MODELS = ("tiny-26b-a4b", "tiny-26b-a4b", "tiny-e2b", "tiny-31b")
ROOM: dict[str, Any] = {"max_total_tokens": 8000, "swa_full_tokens_ratio": 0.9, "max_running_requests": 16, "chunked_prefill_size": 512}
_PENALTIES = {"frequency_penalty", "repetition_penalty"}
ALWAYS: dict[str, Any] = {"constrained_json_disable_any_whitespace": True}
FLOAT = "auto"
POOLS, UNIFIED, BEHIND = "pools", "unified", "host"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"enum": ["Arvo", "Belm"]}, "ruler": {"enum": ["Adela", "Bruno"]}},
    "required": ["town", "ruler"],
    "additionalProperties": False,
}


@dataclass
class Case:
    """An engine and its load."""

    model: str
    engine: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    prompts: list[list[int]] = field(default_factory=list)
    sampling: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    kv: str = FLOAT
    most: int | None = None  # prompt and answer tokens that the pool holds; None where no request comes near

    def group(self, at_once: bool = False) -> Group:
        """For ``timeline.play``; ``at_once``: without waiting for each other and without aborts."""
        asked = (
            [{name: one[name] for name in ("rid", "top_logprobs") if name in one} for one in self.requests] if at_once else self.requests
        )
        return Group(self.prompts, self.sampling, client="timeline:play", extra={"requests": asked})


def case(number: int, kv: str | None = None, requests: int | None = None, memory: str = POOLS) -> Case:
    """The case of a number; with ``kv`` as its --kv-cache-dtype, so many ``requests``, and its KV in such a ``memory``."""
    rng = random.Random(number)
    made = Case(rng.choice(MODELS))
    own = random.Random(f"KV cache of {number}")  # beside the other numbers: a case is what it was before there were such caches
    made.kv = kv or (own.choice((FLOAT, FLOAT, *FORMATS)) if memory == POOLS else FLOAT)
    _choose_engine(made, rng)
    _put_into(memory, made, own)
    penalties = "speculative_algorithm" in made.engine or made.engine["disable_overlap_schedule"]
    passages = text_prompts(made.model, [320] * 4)[: rng.choice((1, 2, 4))]
    few = rng.randrange(5, 13)
    for place in range(requests or few):
        length = rng.choice((1, 2, rng.randrange(2, 40), rng.randrange(30, 130), rng.randrange(60, 300)))
        more = [rng.randrange(300, 1000) for _ in range(rng.randrange(1, 30))] if rng.random() < 0.4 else []
        made.prompts.append(rng.choice(passages)[:length] + more)
        made.sampling.append(_sampling(rng, penalties))
        request: dict[str, Any] = {"rid": f"case{place}-"}  # SGLang aborts every request whose rid begins with the one named
        if place and rng.random() < 0.6:
            request["after"] = [f"case{rng.randrange(place)}-", rng.choice((-1, 0, 1, 2, 5, 20))]
        if rng.random() < 0.15:
            request["abort_at"] = rng.choice((0, 1, 5, 17))
        if rng.random() < 0.1:
            request["top_logprobs"] = 2
        made.requests.append(request)
    if memory == BEHIND:  # prompts come again, after others have evicted them
        for place in range(2, len(made.prompts)):
            if own.random() < 0.5:
                made.prompts[place] = made.prompts[own.randrange(place)] + [own.randrange(300, 1000) for _ in range(own.randrange(4))]
    return made


def near_the_end(number: int, requests: int = 20) -> Case:
    """The engine of a number, but for its pool, under requests that come at once and are each up to as large as the pool can hold."""
    made, rng = case(number), random.Random(f"near the end of {number}")
    engine, page = made.engine, rng.choice((1, 16, 64, 128))
    pool, chunk = rng.choice((512, 640, 1024)), rng.choice([-1, *(size for size in (16, 64, 128, 256) if size % page == 0)])
    engine |= {"page_size": page, "max_total_tokens": pool, "chunked_prefill_size": chunk, "max_running_requests": requests}
    engine["schedule_conservativeness"] = rng.choice((0.01, 0.3, 1.0))
    engine.pop("speculative_adaptive", None)  # its steps have lengths of their own
    if page > 16 or chunk < 0:
        engine["swa_full_tokens_ratio"] = 1.0
    drafted = engine.get("speculative_num_draft_tokens", 0)
    limit = Pools(pool, page, 2 * drafted, pool if chunk < 0 else None)
    longest = min(limit.most_prompt, pool - 7)  # SGLang leaves five tokens for the answer
    passages = text_prompts(made.model, [pool] * 4)
    made.kv, made.most, made.prompts, made.sampling = FLOAT, limit.most, [], []
    for _ in range(requests):
        length = rng.choice((rng.randrange(1, longest), rng.randrange(longest // 2, longest), longest))
        made.prompts.append(rng.choice(passages)[:length])
        asked = {"temperature": 0, "max_new_tokens": rng.choice((1, rng.randrange(2, 30), rng.randrange(30, 150)))}
        made.sampling.append(asked | ({"ignore_eos": True} if rng.random() < 0.3 else {"ignore_eos": False, "logit_bias": NO_END}))
    made.requests = [{"rid": f"case{place}-"} for place in range(requests)]
    return made


def _choose_engine(made: Case, rng: random.Random) -> None:
    engine, env = made.engine, made.env
    overlapped, page = rng.random() < 0.6, rng.choice((1, 1, 4, 16))
    if rng.random() < 0.7:
        steps = rng.choice((1, 2, 3, 3, 3, 5))
        engine |= {"speculative_algorithm": "NEXTN", "speculative_draft_model_path": CHECKPOINTS / f"{made.model}-assistant"}
        engine |= {"speculative_num_steps": steps, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": steps + 1}
        kind = rng.random()
        if kind < 0.15:
            env[switches.MTP_V2], overlapped = "0", False
        elif kind < 0.3 and steps == 3:
            engine["speculative_adaptive"] = True
    retracted = rng.random() < 0.25
    if overlapped or retracted:
        mode = ("overlapped" if retracted else "overlapping") if overlapped else "retracting"
        env["TEST_INSTRUMENTS"] = f"loop_modes:{mode}"
    beside = rng.random() < 0.6
    env[switches.BESIDE] = str(int(beside))
    if beside:
        env[switches.BESIDE_TOKENS] = str(rng.choice((1, 8, 17, 64, 4096)))
    engine["disable_overlap_schedule"] = not overlapped
    engine["page_size"] = page
    engine["chunked_prefill_size"] = rng.choice([size for size in (16, 32, 48, 64, 128, 512) if size % page == 0])
    engine["max_running_requests"] = rng.randrange(2, 9)
    engine["schedule_conservativeness"] = rng.choice((0.01, 0.3, 1.0))
    engine["max_total_tokens"] = rng.choice((560, 640, 800, 1200, 2048))
    for chance, name, values in (
        (0.5, "swa_full_tokens_ratio", (0.5, 0.7, 1.0)),
        (0.2, "disable_radix_cache", (True,)),
        (0.15, "schedule_policy", ("lpm", "fcfs", "random")),
        (0.15, "enable_mixed_chunk", (True,)),
    ):
        if rng.random() < chance:
            engine[name] = rng.choice(values)
    rng.random()  # decided about a part that is gone; a case keeps its number, by which tests and notes name it
    if rng.random() < 0.2:
        env |= without("own_window")
    if rng.random() < 0.5:
        env["SGLANG_SWA_EVICTION_INTERVAL"] = str(rng.choice((1, 4, 8, 32)))


def _put_into(memory: str, made: Case, rng: random.Random) -> None:
    engine, env = made.engine, made.env
    if memory == POOLS:
        return
    engine.pop("disable_radix_cache", None)
    if memory == UNIFIED:
        engine |= {"enable_unified_memory": True, "page_size": 1}
        return
    policy = rng.choice(("write_through", "write_through", "write_back", "write_through_selective"))
    engine |= {**HOST, "hicache_ratio": rng.choice((2.0, 3.0, 8.0)), "hicache_write_policy": policy}
    engine["max_total_tokens"] = rng.choice((480, 560, 640))
    env["TEST_INSTRUMENTS"] = " ".join(filter(None, (env.get("TEST_INSTRUMENTS"), HOST_ENV["TEST_INSTRUMENTS"])))


def _sampling(rng: random.Random, penalties: bool) -> dict[str, Any]:
    if rng.random() < 0.08:
        return {"temperature": 0, "max_new_tokens": 60, "ignore_eos": False, "json_schema": json.dumps(SCHEMA)}
    tokens = rng.choice((1, 2, 5, rng.randrange(1, 40), rng.randrange(40, 120)))
    found: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": rng.random() < 0.25}
    if not found["ignore_eos"] and rng.random() < 0.6:
        found["logit_bias"] = NO_END
    if penalties and rng.random() < 0.2:
        found |= rng.choice(({"frequency_penalty": 0.7}, {"repetition_penalty": 1.3}))
    if rng.random() < 0.1:
        found["stop_token_ids"] = [rng.randrange(300, 1000) for _ in range(40)]
    return found


def wrong_in_itself(sampling: dict[str, Any], found: Output) -> str | None:
    """What both engines may have wrong alike: an answer that its grammar does not allow, numbers that are none."""
    if not all(map(math.isfinite, found.logprobs)):
        return f"log-probabilities {found.logprobs}"
    if "json_schema" in sampling and found.meta_info["finish_reason"]["type"] == "stop":
        try:
            said = json.loads(found.text)
        except json.JSONDecodeError:
            return f"{found.text!r} is no JSON"
        if said.keys() != SCHEMA["properties"].keys() or any(said[name] not in one["enum"] for name, one in SCHEMA["properties"].items()):
            return f"{found.text!r} is not of the schema"
    return None


def difference(made: Case, place: int, found: Output, reference: Output) -> str | None:
    """How an answer differs from the plain engine's, or None."""
    ours, theirs = found.token_ids, reference.token_ids
    if made.most is not None and len(theirs) > made.most - len(made.prompts[place]):
        theirs = theirs[: made.most - len(made.prompts[place])]
        if ours == theirs and found.meta_info["finish_reason"]["type"] == "length":
            return None
    if found.meta_info["finish_reason"]["type"] == "abort" and "abort_at" in made.requests[place]:
        shared = min(len(ours), len(theirs))
        if ours[:shared] == theirs[:shared] or "json_schema" in made.sampling[place]:
            return None
    elif "speculative_algorithm" not in made.engine and found.meta_info.get("num_retractions") and _PENALTIES & made.sampling[place].keys():
        return None
    elif ours == theirs and found.text == reference.text:
        return wrong_in_itself(made.sampling[place], found)
    return f"request {place}, {len(made.prompts[place])} tokens: {found.meta_info['finish_reason']}, {ours} for {theirs}"


def run(number: int, nursery: Nursery, folder: Path, kv: str | None = None, requests: int | None = None, memory: str = POOLS) -> bool:
    """Whether a case is right; prints what is to be said of it."""
    return compare(number, case(number, kv, requests, memory), nursery, folder, memory)


def compare(number: int, made: Case, nursery: Nursery, folder: Path, memory: str = POOLS) -> bool:
    """The same of a case that was made."""
    began = time.monotonic()
    always = {**ALWAYS, "kv_cache_dtype": made.kv}
    (reference,) = nursery.run(CHECKPOINTS / made.model, [made.group(at_once=True)], time_limit=200.0, **ROOM, **always)
    try:
        (found,) = nursery.run(CHECKPOINTS / made.model, [made.group()], made.env, 200.0, **made.engine, **always)
    except EngineFailed as error:
        refused = [line for line in str(error).splitlines() if "PoolTooSmallError: " in line or "PreflightError: " in line]
        if refused:
            print(f"{number} is refused: {refused[-1].partition('Error: ')[2]}", flush=True)
            return True
        (folder / f"{number}.txt").write_text(str(error))
        print(f"{number} ENDED {made.model} {made.kv} {made.engine} {made.env}\n{str(error)[-2000:]}", flush=True)
        return False
    wrong = [text for place, pair in enumerate(zip(found, reference, strict=True)) if (text := difference(made, place, *pair))]
    if wrong:
        (folder / f"{number}.txt").write_text(found[0].log)
        print(f"{number} DIFFERS {made.model} {made.kv} {made.engine} {made.env}", *wrong, sep="\n  ", flush=True)
    else:
        retracted = sum(output.meta_info.get("num_retractions") or 0 for output in found)
        hits = f", {sum(map(from_host, found))} tokens from the host" if memory == BEHIND else ""
        told = f"{made.model}, cache {made.kv}, {retracted} retractions{hits}"
        print(f"{number} is right: {told}, {time.monotonic() - began:.0f} s", flush=True)
    return not wrong


def main(words: list[str]) -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--kv-cache-dtype", choices=(FLOAT, *FORMATS))
    parser.add_argument("--requests", type=int)
    parser.add_argument("--memory", choices=(POOLS, UNIFIED, BEHIND), default=POOLS)
    parser.add_argument("--near-end", action="store_true")
    asked = parser.parse_args(words)
    if asked.memory != POOLS and asked.kv_cache_dtype not in (None, FLOAT):
        parser.error(f"--kv-cache-dtype {asked.kv_cache_dtype} is refused with --memory {asked.memory}; leave one of the two away")
    own = asked.kv_cache_dtype, asked.requests, asked.memory
    folder = Path(tempfile.mkdtemp(prefix="random-loads-"))
    nursery = Nursery(folder)
    try:
        numbers = range(asked.first, asked.last)
        if asked.near_end:
            wrong = [number for number in numbers if not compare(number, near_the_end(number), nursery, folder)]
        else:
            wrong = [number for number in numbers if not run(number, nursery, folder, *own)]
    finally:
        nursery.close()
    print(f"wrong: {', '.join(map(str, wrong)) or 'none'}; logs are in {folder}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
