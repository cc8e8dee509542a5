"""A soak: a server with a pool a tenth too small, clients that come and go, SGLang's own checks fatal, every answer compared.

    python runs/2026-11-21-soak/soak.py --minutes 30 --out runs/2026-11-21-soak

A quiet server with room for everything answers each prompt once, greedily and without speculation: the reference. Then a server with
MTP and a full pool of
nine tenths of what its running requests need on average serves 12 clients (8 may run): random lengths, one in five aborted by a closed
connection, one in ten by /abort_request. An answer must be a prefix of its reference.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp

CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_INVARIANT_CHECK": "2",
    "SGLANG_GEMMA4_STRICT": "1",
}
# With SOAK_BOLD=1 answers end by themselves and SGLang expects a tenth of the tokens they may give: it admits too many and retracts.
BOLD = os.environ.get("SOAK_BOLD") == "1"
RUNNING, CLIENTS, PROMPTS = 8, 12, 48
LONGEST, MOST = (160, 320) if BOLD else (360, 96)  # prompt and output tokens
DRAFTED = 3
MTP = ["--speculative-algorithm=NEXTN", "--speculative-num-steps=3", "--speculative-eagle-topk=1", "--speculative-num-draft-tokens=4"]
URL = "http://127.0.0.1:{port}"


def start(model: str, port: int, log: Path, environment: dict[str, str], *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sglang_gemma4.cli", "serve", model, "--port", str(port), f"--max-running-requests={RUNNING}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--enable-metrics", *flags], env={**os.environ, **CHECKS, **environment}, stdout=out, stderr=out
        )
    while True:
        if process.poll() is not None:
            raise SystemExit(f"the server ended at its start with status {process.returncode}; see {log}")
        try:
            with urllib.request.urlopen(f"{URL.format(port=port)}/health", timeout=5):
                return process
        except (urllib.error.URLError, OSError):
            time.sleep(1)


def metrics(port: int) -> dict[str, float]:
    from sglang_gemma4.benchmark.gauges import read_metrics

    return read_metrics(URL.format(port=port))


async def ask(session: aiohttp.ClientSession, port: int, ids: list[int], tokens: int, rid: str) -> dict[str, object]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": not BOLD}
    async with session.post(
        f"{URL.format(port=port)}/generate", json={"input_ids": ids, "sampling_params": sampling, "rid": rid}
    ) as answer:
        return dict(await answer.json())


async def references(port: int, prompts: list[list[int]]) -> list[list[int]]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
        return [list((await ask(session, port, prompt, MOST, f"r{i}"))["output_ids"]) for i, prompt in enumerate(prompts)]  # type: ignore[call-overload]


async def client(number: int, port: int, prompts: list[list[int]], expected: list[list[int]], ends: float, counts: dict[str, int]) -> None:
    rng = random.Random(number)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        turn = 0
        while time.monotonic() < ends:
            turn += 1
            which, tokens, rid = rng.randrange(len(prompts)), rng.randint(1, MOST), f"c{number}-{turn}"
            how = rng.random()
            task = asyncio.create_task(ask(session, port, prompts[which], tokens, rid))
            if how < 0.3:
                await asyncio.sleep(rng.uniform(0, 3))
                if how < 0.2:
                    task.cancel()
                else:
                    await session.post(f"{URL.format(port=port)}/abort_request", json={"rid": rid})
            try:
                answer = await task
            except asyncio.CancelledError:
                counts["closed"] += 1
                continue
            meta = dict(answer.get("meta_info") or {})  # type: ignore[call-overload]
            finish = dict(meta.get("finish_reason") or {})
            found = list(answer.get("output_ids") or [])  # type: ignore[call-overload]
            counts["aborted" if finish.get("type") == "abort" else "finished"] += 1
            counts["tokens"] += len(found)
            due = expected[which][:tokens]  # shorter than asked for where it ends by itself
            aborted = finish.get("type") == "abort"  # in the step that ends it, an answer keeps what that step accepted too many
            known = found[: len(expected[which])]
            if known != expected[which][: len(known)] or (len(found) > len(due) + DRAFTED if aborted else len(found) != len(due)):
                counts["wrong"] += 1
                print(f"WRONG prompt {which}, {tokens} tokens: {found} for {expected[which][:tokens]} ({answer})", flush=True)


def windows(model: str) -> list[list[int]]:
    """Prompts: pieces of the tiny world's text, which the draft can predict; every second one begins as another does (radix hits)."""
    from transformers import AutoTokenizer

    from sglang_gemma4.serving.launch import resolve

    text = (Path(__file__).parents[1] / "2026-11-21-tiny-quality" / "text.txt").read_text()
    ids = AutoTokenizer.from_pretrained(resolve(model))(text, add_special_tokens=False)["input_ids"]
    rng = random.Random(7)
    starts = [rng.randrange(0, len(ids) - LONGEST) for _ in range(PROMPTS // 2)]
    return [[2, *ids[start : start + rng.randint(4, LONGEST)]] for start in starts for _ in range(2)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--model", default="tiny-26b-a4b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, default=31900)
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=VALUE", help="of the second server")
    arguments = parser.parse_args()
    prompts = windows(arguments.model)
    need = RUNNING * (sum(map(len, prompts)) // PROMPTS + MOST // 2)
    quiet = start(arguments.model, arguments.port, arguments.out / "quiet.log", {}, f"--max-total-tokens={4 * need}")
    expected = asyncio.run(references(arguments.port, prompts))
    quiet.terminate()
    quiet.wait()
    environment = dict(pair.split("=", 1) for pair in arguments.environment)
    from sglang_gemma4.serving.launch import resolve

    draft = f"--speculative-draft-model-path={resolve(arguments.model)}-assistant"
    flags = [*MTP, draft, f"--max-total-tokens={int(0.9 * need)}", "--chunked-prefill-size=96"]
    flags += ["--schedule-conservativeness=0.1"] if BOLD else []
    busy = start(arguments.model, arguments.port, arguments.out / "busy.log", environment, *flags)
    counts = dict.fromkeys(("finished", "aborted", "closed", "tokens", "wrong"), 0)
    started = time.monotonic()

    async def everyone() -> None:
        ends = started + 60 * arguments.minutes
        await asyncio.gather(*(client(n, arguments.port, prompts, expected, ends, counts) for n in range(CLIENTS)))

    died = None
    try:
        asyncio.run(everyone())
        time.sleep(15)  # idle: SGLang's check of an empty server
        seen = metrics(arguments.port)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        died, seen = f"{type(error).__name__}: {error}", {}
    status = busy.poll()
    busy.terminate()
    names = {"retractions": "sglang:num_retracted_requests_total", "full_pool_in_use": "sglang:full_token_usage"}
    names |= {"sliding_pool_in_use": "sglang:swa_token_usage", "verify_steps": "sglang:spec_verify_calls_total"}
    row = {
        "minutes": round((time.monotonic() - started) / 60, 1),
        "model": arguments.model,
        "environment": environment,
        "bold": BOLD,
        "pool_tokens": int(0.9 * need),
    }
    row |= {
        "pool_needed_on_average": need,
        **counts,
        "server_died": died,
        "exit_status": status,
        **{k: seen.get(v) for k, v in names.items()},
    }
    with (arguments.out / "raw.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row, indent=2))
    raise SystemExit(int(bool(died) or status is not None or counts["wrong"] > 0))


if __name__ == "__main__":
    main()
