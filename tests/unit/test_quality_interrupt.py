"""Ctrl-C during eval, in a process of its own: a server that takes questions and never answers them cannot hold it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.quality import interrupt

MODEL = {"id": "tiny", "max_model_len": 4096}
SOON = 60.0
"""Seconds that ending a process takes at most."""
LONG = 600.0
"""A time limit that no test sees the end of: what ends a process before was not it."""
PATIENT = f"""
import sys
from sglang_gemma4 import cli
from sglang_gemma4.quality import interrupt
interrupt.GRACE_SECONDS = {LONG}
sys.exit(cli.main())
"""


class Server(ThreadingHTTPServer):
    """Says what it serves, and keeps every request for an answer open until it is closed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = threading.Semaphore(0)
        self.closing = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.say({"data": [MODEL]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.say({"tokens": list(range(len(body["prompt"])))})
            return
        self.server.asked.release()
        self.server.closing.wait(LONG)
        self.close_connection = True

    def say(self, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.closing.set()
    made.shutdown()
    made.server_close()


@pytest.fixture
def evaluation(server: Server, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``eval`` of the parametrised kind with two requests in flight and more to come."""
    (tmp_path / "text").write_text("a text " * 20)
    name, _, how = request.param.partition(" ")
    kind = {
        "mmlu": ["mmlu", "--dataset", "world", "--questions", "4"],
        "colors": ["colors", "--questions", "4"],
        "text": ["text", str(tmp_path / "text"), "--window", "16", "--stride", "16"],
    }[name]
    program = ["-c", PATIENT] if how == "patient" else ["-m", "sglang_gemma4.cli"]
    command = [sys.executable, *program, "eval", *kind, "--concurrency", "2", "--out", str(tmp_path / "out.jsonl")]
    process = subprocess.Popen(
        [*command, "--url", f"http://127.0.0.1:{server.server_port}"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        for _ in range(2):
            assert server.asked.acquire(timeout=120), "no question was asked"
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[str]) -> None:
    """Send SIGINT, and wait until the process has said that it came and had time to act on it."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while line := process.stderr.readline():
        if line.startswith("interrupted: "):
            time.sleep(0.3)
            return
    raise AssertionError("it ended without a word")


def ended(process: subprocess.Popen[str], within: float) -> tuple[int, str]:
    """Exit status and stderr; subprocess.TimeoutExpired after ``within`` seconds."""
    _, said = process.communicate(timeout=within)
    return process.returncode, said


@pytest.mark.parametrize("evaluation", ["mmlu", "colors", "text"], indirect=True)
def test_one_interrupt_ends_it_within_seconds(evaluation: subprocess.Popen[str], tmp_path: Path) -> None:
    evaluation.send_signal(signal.SIGINT)
    status, said = ended(evaluation, interrupt.GRACE_SECONDS + SOON)
    assert status == interrupt.STATUS
    assert f"interrupted: {interrupt.KEPT}; ending within 3 s, at once on another Ctrl-C" in said
    assert "Traceback" not in said
    assert [json.loads(line)["kind"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == ["header"]


@pytest.mark.parametrize("evaluation", ["mmlu patient"], indirect=True)
def test_the_second_interrupt_ends_it_at_once(evaluation: subprocess.Popen[str]) -> None:
    interrupted(evaluation)
    evaluation.send_signal(signal.SIGINT)
    assert ended(evaluation, SOON)[0] == interrupt.STATUS


@pytest.mark.parametrize("evaluation", ["mmlu patient", "colors patient", "text patient"], indirect=True)
def test_without_a_request_in_flight_it_ends_by_itself(evaluation: subprocess.Popen[str], server: Server) -> None:
    interrupted(evaluation)
    server.closing.set()  # both connections are closed; the queue behind them must not be asked
    status, said = ended(evaluation, SOON)
    assert (status, said.splitlines()[-1]) == (interrupt.STATUS, "sglang-gemma4: interrupted")
    assert "Traceback" not in said
    assert not server.asked.acquire(blocking=False)


def test_a_block_that_ends_in_time_is_interrupted_and_puts_the_handler_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(interrupt, "GRACE_SECONDS", 0.2)
    before = signal.getsignal(signal.SIGINT)
    with interrupt.ending(lambda: None):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    called: list[str] = []

    def aborted() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("what abort made of it")

    with pytest.raises(KeyboardInterrupt), interrupt.ending(lambda: called.append("abort")):
        aborted()
    assert (called, signal.getsignal(signal.SIGINT)) == (["abort"], before)
    time.sleep(0.4)
    assert ends == [], "the time limit ended with the block"
