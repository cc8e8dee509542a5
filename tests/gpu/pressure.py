"""Everything at once that takes a card's memory: mixed texts, long contexts, images, logprobs of prompts. Does the card hold it?

    python -m tests.gpu.pressure FOLDER [--model 26b-a4b] [--seconds 90] [--environment NAME=VALUE ...] [-- SERVER FLAGS]

A server with MTP is started as an operator starts it, and clients of all four kinds ask it for so many seconds. An answer that fails, "out
of memory" in the server's log and its end are failures; SGLang's own checks of the pools are fatal to it. FOLDER gets the server's log and
a line in ``raw.jsonl``: answers by kind, memory of the card at the start, at its peak and at the end, its size, KV tokens, retractions. A
tiny model (``--model tiny-26b-a4b``) runs it without a card.
"""

import argparse
import asyncio
import base64
import io
import json
import math
import random
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from sglang_gemma4.benchmark import machine
from sglang_gemma4.benchmark.gauges import GIB, memory_in_use, read_metrics
from sglang_gemma4.cpu.environment import has_accelerator
from sglang_gemma4.serving.launch import resolve
from sglang_gemma4.tiny import checkpoints
from tests.gpu.soak import CARD, GAUGES
from tests.gpu.soak_servers import MTP
from tests.harness.engine_fork import CHECKS
from tests.harness.live_server import Server, open_server

OUT_OF_MEMORY = ("outofmemory", "out of memory")
EVERY = 0.1
"""Seconds between two reads of the card's memory."""


@dataclass(frozen=True)
class Load:
    """Clients of each kind, and the sizes of what they ask."""

    texts: int = 64
    longest: int = 6000  # tokens of a text prompt; lengths are spread evenly by their logarithm
    answer: int = 600
    long: int = 2
    context: int = 64_000  # tokens of a long prompt
    images: int = 6
    pictures: int = 6  # of a request
    pixels: int = 960
    logprobs: int = 4
    prompt: int = 8000  # tokens of a prompt whose logprobs are asked for


TINY = Load(texts=3, longest=60, answer=12, long=1, context=200, images=1, pictures=2, pixels=96, logprobs=1, prompt=100)


@dataclass
class Counts:
    """Answers by kind, and what went wrong."""

    answers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("texts", "long", "images", "logprobs"), 0))
    failures: list[str] = field(default_factory=list)


class Client:
    """What all clients share: the server, the load, when to end."""

    def __init__(self, server: Server, load: Load, words: int, ends: float) -> None:
        self.server, self.load, self.words, self.ends, self.counts = server, load, words, ends, Counts()

    async def all(self) -> None:
        """All clients until the end."""
        asks = {"texts": self.text, "long": self.long, "images": self.image, "logprobs": self.logprob}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
            await asyncio.gather(
                *(self.one(session, kind, ask, number) for kind, ask in asks.items() for number in range(getattr(self.load, kind)))
            )

    async def one(self, session: aiohttp.ClientSession, kind: str, ask: Any, number: int) -> None:
        """One request after the other."""
        rng = random.Random(f"{kind}{number}")
        while time.monotonic() < self.ends:
            path, body = await asyncio.to_thread(ask, rng)  # six pictures take half a second
            try:
                async with session.post(f"{self.server.url}{path}", json=body) as answer:
                    said = await answer.text()
                    if answer.status != 200:
                        raise ValueError(f"status {answer.status}: {said[:300]}")
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                self.counts.failures.append(f"{kind}: {type(error).__name__}: {error}")
                if len(self.counts.failures) > 20:
                    return  # it does not answer any more
                await asyncio.sleep(1)
                continue
            self.counts.answers[kind] += 1

    def ids(self, rng: random.Random, length: int) -> list[int]:
        return [2, *(rng.randrange(4, self.words) for _ in range(length - 1))]

    def generate(self, ids: list[int], tokens: int, **more: Any) -> tuple[str, dict[str, Any]]:
        sampling = {"temperature": 0.7, "max_new_tokens": tokens, "ignore_eos": True}
        return "/generate", {"input_ids": ids, "sampling_params": sampling, **more}

    def text(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """A prompt and an answer of any length."""
        length = int(math.exp(rng.uniform(math.log(10), math.log(self.load.longest))))
        return self.generate(self.ids(rng, length), rng.randint(self.load.answer // 10, self.load.answer))

    def long(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """A long context."""
        return self.generate(self.ids(rng, self.load.context), self.load.answer // 10)

    def logprob(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """The logprobs of a whole prompt, and of the best five tokens at each place."""
        ids = self.ids(rng, self.load.prompt)
        return self.generate(ids, 4, return_logprob=True, logprob_start_len=0, top_logprobs_num=5)

    def image(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Pictures of noise, none seen before."""
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": picture(rng, self.load.pixels)}} for _ in range(self.load.pictures)
        ]
        parts.append({"type": "text", "text": "red"})
        body = {"model": "x", "messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
        return "/v1/chat/completions", body


def picture(rng: random.Random, pixels: int) -> str:
    """A PNG as a data URL."""
    from PIL import Image

    noise = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (pixels // 16, pixels // 16, 3), dtype=np.uint8)
    made = io.BytesIO()
    Image.fromarray(noise).resize((pixels, pixels)).save(made, "PNG")
    return "data:image/png;base64," + base64.b64encode(made.getvalue()).decode()


class Peak:
    """The most memory in use, in GiB, from the start of ``thread`` until ``done`` is set."""

    def __init__(self, process: int) -> None:
        self.read = memory_in_use(process)
        self.most, self.done = self.read(), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self.done.wait(EVERY):
            self.most = max(self.most, self.read())


def card_size() -> float | None:
    """GiB of all visible cards, or None."""
    if not has_accelerator():
        return None
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return float(sum(pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles) / GIB)


def parser() -> argparse.ArgumentParser:
    """Its arguments."""
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("folder", type=Path, metavar="FOLDER")
    form.add_argument("--model", default="26b-a4b", help="a real size with random weights, or a tiny model")
    form.add_argument("--seconds", type=float, default=90)
    form.add_argument("--environment", nargs="*", default=[], metavar="NAME=VALUE", help="of the server")
    form.add_argument("flags", nargs="*", metavar="FLAG", help="of the server, behind --")
    return form


def model_of(name: str, folder: Path) -> tuple[str, list[str]]:
    """A checkpoint and the flags that it needs."""
    if name in checkpoints.NAMES:
        return name, [*MTP, f"--speculative-draft-model-path={resolve(name)}-assistant"]
    path = str(folder / name)
    checkpoints.write(name, path, random=True)
    return path, ["--load-format=dummy", *MTP, f"--speculative-draft-model-path={path}-assistant"]


def main(words: Sequence[str] | None = None) -> int:
    """The exit status: 1 where anything failed."""
    asked = parser().parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    model, flags = model_of(asked.model, asked.folder)
    load = TINY if asked.model in checkpoints.NAMES else Load()
    simulated = {"SGLANG_SIMULATE_ACC_LEN": "2.8", "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"} if load != TINY else {}
    card = [flag for flag in CARD if "mem-fraction" not in flag] if has_accelerator() else []
    environment = {**CHECKS, **simulated, **dict(pair.split("=", 1) for pair in asked.environment)}
    with open_server(asked.folder, model, [*flags, *card, "--enable-metrics", *asked.flags], environment) as server:
        told = {"model": asked.model, "asked_environment": asked.environment, "flags": asked.flags}
        row = machine.facts(sys.argv) | told | under(server, load, asked.seconds)
    said = server.log.read_text(errors="replace")
    row["out_of_memory"] = sum(any(sign in line.lower() for sign in OUT_OF_MEMORY) for line in said.splitlines())
    row["kept"] = [
        line.split("sglang-gemma4: ")[-1] for line in said.splitlines() if "--mem-fraction-static" in line and "server_args" not in line
    ]
    with (asked.folder / "raw.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row, indent=2))
    return int(bool(row["failures"] or row["out_of_memory"] or row["server_ended"] or not all(row["answers"].values())))


def under(server: Server, load: Load, seconds: float) -> dict[str, Any]:
    """What a load did to a server."""
    info = server_info(server)
    client = Client(server, load, int(info["vocabulary"]), time.monotonic() + seconds)
    peak = Peak(server.process.pid)
    first = peak.read()
    peak.thread.start()
    asyncio.run(client.all())
    peak.done.set()
    time.sleep(5)  # idle: SGLang's check of an empty server
    ended = server.process.poll()
    seen = {} if ended is not None else read_metrics(server.url)
    sizes = {"start": first, "peak": peak.most, "end": peak.read(), "card": card_size()}
    return {
        "seconds": seconds,
        "answers": client.counts.answers,
        "failures": client.counts.failures[:20],
        "server_ended": ended,
        "memory_gib": {name: None if size is None else round(size, 2) for name, size in sizes.items()},
        "kv_tokens": info["tokens"],
        **{name: seen.get(gauge) for name, gauge in GAUGES.items()},
    }


def server_info(server: Server) -> dict[str, int]:
    """Words of the model's vocabulary and tokens of the full pool."""
    with urllib.request.urlopen(f"{server.url}/server_info", timeout=30) as answer:
        found = json.load(answer)
    config = json.loads((Path(resolve(found["model_path"])) / "config.json").read_text())
    return {"vocabulary": int(config["text_config"]["vocab_size"]), "tokens": int(found["max_total_num_tokens"])}


if __name__ == "__main__":
    sys.exit(main())
