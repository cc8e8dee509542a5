"""Servers of a soak: with room for everything, and with a pool that is too small, SGLang's own checks fatal."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import CHECKS

RUNNING, DRAFTED = 8, 3
CHUNK, INTERVAL = 96, 8
"""Tokens of a prefill chunk; and those behind a window that are freed together, where the sliding pool binds."""
MTP = ("--speculative-algorithm=NEXTN", "--speculative-num-steps=3", "--speculative-eagle-topk=1", "--speculative-num-draft-tokens=4")


@dataclass
class Server:
    """A server's process, its address and its log."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path

    def wait(self) -> "Server":
        """Until it answers."""
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        raise SystemExit(f"the server ended at its start with status {self.process.returncode}; see {self.log}")

    def end(self) -> None:
        """It has a session of its own, and so hears neither Ctrl-C nor ``timeout``."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def launch(model: str, port: int, log: Path, environment: dict[str, str], *flags: str) -> Server:
    """A server that begins to start."""
    words = [sys.executable, "-m", "sglang_gemma4.cli", "serve", model, "--port", str(port), f"--max-running-requests={RUNNING}"]
    own = {**os.environ, **CHECKS, **environment}
    with log.open("wb") as out:  # a session of its own: ``timeout`` signals the soak's whole group, and its last answers are to come
        process = subprocess.Popen([*words, "--enable-metrics", *flags], env=own, stdout=out, stderr=out, start_new_session=True)
    return Server(process, f"http://127.0.0.1:{port}", log)


def text_config(model: str) -> dict[str, Any]:
    """The language model's part of a checkpoint's config.json."""
    return dict(json.loads((Path(resolve(model)) / "config.json").read_text())["text_config"])


def too_small(pool: str, model: str, share: float, need: int) -> tuple[dict[str, str], list[str], int]:
    """Variables and flags of a server with ``share`` of what its running requests need of ``pool``, and how many tokens those are.

    Args:
        need: full tokens that they need on average. Where the sliding pool binds, the full one has four times as many.
    """
    if pool == "full":
        return {}, [f"--max-total-tokens={int(share * need)}"], need
    sliding = RUNNING * (int(text_config(model)["sliding_window"]) + INTERVAL + 2 * (DRAFTED + 1)) + CHUNK
    ratio = (share * sliding + 0.5) / (4 * need)
    return {"SGLANG_SWA_EVICTION_INTERVAL": str(INTERVAL)}, [f"--max-total-tokens={4 * need}", f"--swa-full-tokens-ratio={ratio}"], sliding


@dataclass
class Pool:
    """A pool that is too small, and how its server is started."""

    name: str
    asked: argparse.Namespace
    need: int
    environment: dict[str, str] = field(init=False)
    flags: list[str] = field(init=False)
    needed: int = field(init=False)

    def __post_init__(self) -> None:
        own, sized, self.needed = too_small(self.name, self.asked.model, self.asked.share, self.need)
        self.environment = own | dict(pair.split("=", 1) for pair in self.asked.environment)
        draft = f"--speculative-draft-model-path={resolve(self.asked.model)}-assistant"
        self.flags = [*MTP, draft, f"--chunked-prefill-size={CHUNK}", *sized, *(f"--{flag}" for flag in self.asked.flags)]
        self.flags += ["--schedule-conservativeness=0.1"] if self.asked.bold else []

    def launch(self, shared: Sequence[str]) -> Server:
        """Its server, which begins to start."""
        asked = self.asked
        return launch(asked.model, asked.port + 100, asked.folder / f"busy-{self.name}.log", self.environment, *shared, *self.flags)
