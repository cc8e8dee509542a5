"""A soak: a server with pools a tenth too small, clients that come and go, SGLang's own checks fatal, every answer compared.

    python -m tests.gpu.soak FOLDER [--minutes 30] [--bind both] [--bold] [--share 0.9] [--environment NAME=VALUE ...]

A quiet server with room for everything answers each prompt once, greedily and without speculation: the reference. A server with MTP and
``--share`` of a pool's tokens that its running requests need then serves 12 clients, of whom 8 may run: random lengths, one in five aborted
by a closed connection, one in ten by /abort_request. ``--bind`` says which pool: the full one, needed on average; the sliding one, one
window for each request and a chunk; both, each for half of the minutes on a server of its own.
With ``--bold`` answers end by themselves and SGLang expects a tenth of the tokens that they may give: it admits too many and retracts.

On a CPU (float32) an answer must be a prefix of its reference. On a card SGLang's norms take 16-bit types only, so an answer may leave its
reference where two tokens are nearly tied: the quiet server then scores it, and no token may be :data:`TIE` less likely than the best, but
one at which rounding may have turned a router's choice (:data:`FLIP`), where the model has routers.
SIGTERM, as ``timeout`` sends it, ends the clients: what was found until then is reported as after all minutes, and the exit status is 1.
FOLDER gets the servers' logs and a line in ``raw.jsonl`` for each pool; the exit status is 1 where an answer was wrong, the server died or
memory leaked, and where a pool was too large: no window was taken back and nobody retracted, which a full pool needs ``--bold`` for.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from sglang_gemma4.benchmark import machine
from sglang_gemma4.benchmark.gauges import read_metrics
from sglang_gemma4.cpu.environment import has_accelerator
from sglang_gemma4.diagnostics.pool_hits import PREFIX
from sglang_gemma4.serving.launch import resolve
from tests.gpu.soak_servers import DRAFTED, RUNNING, Pool, Server, launch, text_config

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "runs/2026-11-21-tiny-quality/text.txt"
CLIENTS, PROMPTS = 12, 48
POOLS = ("full", "sliding")
TIE = 0.3
"""Natural logarithms between a token of a 16-bit answer and the best one."""
FLIP, FLIPPED = 4.0, 0.02
"""The same for one token of an MoE model's answer, and the part of all answers that may have one. Where rounding turns a router's choice,
tiny-26b-a4b leaves its own float32 by up to 3.4 (run 2026-11-28-h100-soak: 11 of 2,833 answers of an H100 had such a token). An answer
that read somebody else's keys goes on with unlikely tokens, or is one of many."""
CARD = ("--attention-backend=triton", "--sampling-backend=pytorch", "--mm-attention-backend=triton_attn", "--mem-fraction-static=0.9")
GAUGES = {
    "retractions": "sglang:num_retracted_requests_total",
    "full_pool_in_use": "sglang:full_token_usage",
    "sliding_pool_in_use": "sglang:swa_token_usage",
    "verify_steps": "sglang:spec_verify_calls_total",
    "windows_taken_back": f"{PREFIX}windows_taken_back_total",
}


@dataclass
class Soak:
    """What is asked, of which servers, and what came back."""

    prompts: list[list[int]]
    most: int  # new tokens
    bold: bool
    exact: bool
    experts: bool = False
    quiet: str = ""  # address
    busy: str = ""
    stopped: bool = False  # by SIGTERM
    expected: list[list[int]] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("finished", "aborted", "closed", "tokens", "ties", "flips", "wrong"), 0)
    )

    async def ask(self, session: aiohttp.ClientSession, url: str, ids: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": not self.bold}
        async with session.post(f"{url}/generate", json={"input_ids": list(ids), "sampling_params": sampling, **more}) as answer:
            return dict(await answer.json())

    async def references(self) -> None:
        """The quiet server's answers, one after the other."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
            for prompt in self.prompts:
                if self.stopped:
                    raise SystemExit(f"stopped before the load began, after {len(self.expected)} of {len(self.prompts)} references")
                self.expected.append(list((await self.ask(session, self.quiet, prompt, self.most))["output_ids"]))

    async def clients(self, ends: float) -> None:
        """Until ``ends``, a time of the monotonic clock, or until they are stopped."""
        await asyncio.gather(*(self.client(number, ends) for number in range(CLIENTS)))

    async def client(self, number: int, ends: float) -> None:
        """One request after the other, some of them aborted."""
        rng, turn = random.Random(number), 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
            while time.monotonic() < ends and not self.stopped:
                turn += 1
                which, tokens, rid = rng.randrange(len(self.prompts)), rng.randint(1, self.most), f"c{number}-{turn}"
                how = rng.random()
                task = asyncio.create_task(self.ask(session, self.busy, self.prompts[which], tokens, rid=rid))
                if how < 0.3:
                    await asyncio.sleep(rng.uniform(0, 3 if self.exact else 0.3))
                    if how < 0.2:
                        task.cancel()
                    else:
                        await session.post(f"{self.busy}/abort_request", json={"rid": rid})
                try:
                    answer = await task
                except asyncio.CancelledError:
                    self.counts["closed"] += 1
                    continue
                await self.compare(session, which, tokens, answer)

    async def compare(self, session: aiohttp.ClientSession, which: int, tokens: int, answer: dict[str, Any]) -> None:
        """Count one answer, and say what is wrong with it."""
        found = list(answer.get("output_ids") or [])
        aborted = (answer.get("meta_info", {}).get("finish_reason") or {}).get("type") == "abort"
        self.counts["aborted" if aborted else "finished"] += 1
        self.counts["tokens"] += len(found)
        due = self.expected[which][:tokens]  # shorter than asked for where it ends by itself
        # In the step that ends it, an aborted answer keeps what that step accepted too many.
        length = len(found) <= tokens + DRAFTED if aborted else len(found) == len(due)
        known = found[: len(self.expected[which])]
        if known == self.expected[which][: len(known)] and length:
            return
        gaps = [] if self.exact else await self.gaps(session, self.prompts[which], found[:tokens])
        too_long = len(found) > tokens and not aborted
        what = "wrong" if self.exact or too_long else verdict(gaps, shared(known, self.expected[which]), experts=self.experts)
        self.counts[what] += 1
        if what == "wrong":
            far = [(place, round(gap, 3)) for place, gap in enumerate(gaps) if gap > TIE]
            print(f"WRONG prompt {which}, {tokens} tokens, gaps {far}: {found} for {due} ({answer})", flush=True)

    async def gaps(self, session: aiohttp.ClientSession, prompt: list[int], found: list[int]) -> list[float]:
        """How much less likely than the best one each token of an answer is, by the quiet server."""
        more: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
        meta = (await self.ask(session, self.quiet, prompt + found, 1, **more))["meta_info"]
        pairs = list(zip(meta["input_token_logprobs"], meta["input_top_logprobs"], strict=True))[len(prompt) :]
        return [top[0][0] - own[0] for own, top in pairs]


def shared(found: Sequence[int], expected: Sequence[int]) -> int:
    """Tokens at their beginnings that are the same."""
    return next(
        (place for place, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), min(len(found), len(expected))
    )


def verdict(gaps: Sequence[float], same: int, *, experts: bool) -> str:
    """``ties``, ``flips`` or ``wrong``: what an answer is that leaves its reference after ``same`` tokens.

    Args:
        gaps: of each token, natural logarithms to the best one.
        experts: whether the model chooses experts; without them no token is rounded away.
    """
    far = [gap for gap in gaps[same:] if gap > TIE]
    if not far:
        return "ties"
    return "flips" if experts and len(far) == 1 and far[0] <= FLIP else "wrong"


def prompts_of(model: str, longest: int) -> list[list[int]]:
    """Pieces of the tiny world's text, which the draft can predict; every second one begins as another does (radix hits)."""
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(resolve(model))(TEXT.read_text(), add_special_tokens=False)["input_ids"]
    rng = random.Random(7)
    starts = [rng.randrange(0, len(ids) - longest) for _ in range(PROMPTS // 2)]
    return [[2, *ids[start : start + rng.randint(4, longest)]] for start in starts for _ in range(2)]


def parser() -> argparse.ArgumentParser:
    """Its arguments."""
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("folder", type=Path, metavar="FOLDER")
    form.add_argument("--minutes", type=float, default=30)
    form.add_argument("--model", default="tiny-26b-a4b")
    form.add_argument("--bold", action="store_true", help="answers end by themselves; SGLang expects a tenth of what they may give")
    form.add_argument(
        "--bind", choices=(*POOLS, "both"), default="both", help="the pool that is too small (default: each half of the time)"
    )
    form.add_argument("--share", type=float, default=0.9, help="of the tokens that the running requests need (default 0.9)")
    form.add_argument("--port", type=int, default=31900)
    form.add_argument("--environment", nargs="*", default=[], metavar="NAME=VALUE", help="of the busy server")
    form.add_argument("--flags", nargs="*", default=[], metavar="FLAG", help="of the busy server, without their dashes: page-size=16")
    return form


def soak_one(soak: Soak, pool: Pool, minutes: float, busy: Server) -> int:
    """A server whose ``pool`` is too small, for so many minutes; its line in raw.jsonl, and the exit status."""
    soak.counts = dict.fromkeys(soak.counts, 0)
    asked, died, seen = pool.asked, None, {}
    try:
        soak.busy = busy.wait().url
        began = time.monotonic()
        try:
            asyncio.run(soak.clients(began + 60 * minutes))
            time.sleep(15)  # idle: SGLang's check of an empty server
            seen = read_metrics(soak.busy)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            died = f"{type(error).__name__}: {error}"
        status = busy.process.poll()
    finally:
        busy.end()
    row = {"minutes": round((time.monotonic() - began) / 60, 1), "model": asked.model, "pool_environment": pool.environment}
    row |= {"asked_minutes": minutes, "flags": asked.flags, "bold": asked.bold, "card": not soak.exact, "pool": pool.name}
    row |= {"pool_tokens": int(asked.share * pool.needed), "pool_needed": pool.needed}
    row |= {
        **machine.facts(sys.argv),
        **soak.counts,
        "stopped": soak.stopped,
        "server_died": died,
        "exit_status": status,
        **{name: seen.get(gauge) for name, gauge in GAUGES.items()},
    }
    with (asked.folder / "raw.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row, indent=2))
    # Where SGLang counts on all tokens that answers may have, it retracts nobody from a full pool.
    bound = (pool.name == "full" and not asked.bold) or bool((row["windows_taken_back"] or 0) + (row["retractions"] or 0))
    flipped = soak.counts["flips"] > FLIPPED * (soak.counts["finished"] + soak.counts["aborted"])
    return int(bool(died) or status is not None or soak.counts["wrong"] > 0 or flipped or not bound or soak.stopped)


def main(words: Sequence[str] | None = None) -> int:
    """The exit status."""
    asked = parser().parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    longest, most = (160, 320) if asked.bold else (360, 96)
    exact = not has_accelerator()
    experts = bool(text_config(asked.model).get("enable_moe_block"))
    soak = Soak(prompts_of(asked.model, longest), most, asked.bold, exact, experts)
    signal.signal(signal.SIGTERM, lambda *_: setattr(soak, "stopped", True))
    shared = () if exact else CARD
    need = RUNNING * (sum(map(len, soak.prompts)) // PROMPTS + most // 2)
    pools = [Pool(name, asked, need) for name in (POOLS if asked.bind == "both" else (asked.bind,))]
    servers = [launch(asked.model, asked.port, asked.folder / "quiet.log", {}, *shared, f"--max-total-tokens={4 * need}")]
    statuses = []
    try:
        if not exact:  # starts while the references are asked; two cores would be shared with them
            servers.append(pools[0].launch(shared))
        soak.quiet = servers[0].wait().url
        asyncio.run(soak.references())
        for pool in pools:
            if soak.stopped:
                break
            busy = servers.pop() if len(servers) > 1 else pool.launch(shared)
            statuses.append(soak_one(soak, pool, asked.minutes / len(pools), busy))
        return max(statuses, default=1)  # without one: stopped while the last reference was answered
    finally:
        for server in servers:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
