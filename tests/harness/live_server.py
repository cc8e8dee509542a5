"""A real server through `sglang-gemma4 serve`: started, waited for, asked and ended."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from tests.harness.ports import free_port

MODEL = "tiny-26b-a4b"
FLAGS = (
    "--enable-metrics",  # and no parsers: the package chooses them
    *("--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", f"{MODEL}-assistant"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    "--sleep-on-idle",  # it lives through the session: without this its scheduler takes a core from the other tests
)
UP_WITHIN = 600


class Server:
    """A running server: its address, its log file, and a client for it."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process, self.url, self.log = process, f"http://127.0.0.1:{port}", log
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=300, max_retries=0)

    def ask(self, content: Any, **options: Any) -> Any:
        """One chat completion at temperature 0."""
        messages = content if isinstance(content, list) and "role" in content[0] else [{"role": "user", "content": content}]
        return self.client.chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, "max_tokens": 40, **options})


@contextmanager
def open_server(
    folder: Path, model: str = MODEL, flags: Sequence[str] = FLAGS, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server that answers /health; its log goes to ``folder``."""
    log, port = folder / "log", free_port()
    command = [sys.executable, "-m", "sglang_gemma4.cli", "serve", model, "--port", str(port), "--nccl-port", str(free_port()), *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **(environment or {})}
        )
    try:
        deadline = time.monotonic() + UP_WITHIN
        while True:
            assert process.poll() is None, f"the server ended:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"not up within {UP_WITHIN} s:\n{log.read_text()[-3000:]}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(1)
        yield Server(process, port, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
