"""A server that refuses questions while others are on their way: the run ends, no thread waits for a connection that was closed."""

import itertools
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_gemma4.quality.asking import Sampler
from sglang_gemma4.quality.endpoint import Endpoint
from sglang_gemma4.quality.questions import evaluator

THREADS, QUESTIONS, ROUNDS = 16, 60, 5
"""With connections closed under their readers, a thread of the first two rounds waited for its read timeout of 4 hours."""
SOON = 120.0
BODY = b'{"object": "error", "message": "too many tokens", "code": 400}'


class Refusing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(next(self.server.delays))  # type: ignore[attr-defined]
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.delays = itertools.cycle((0.0, 0.001, 0.002, 0.003))  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def answer(sampler: Sampler, questions: Iterator[int], errors: list[Exception]) -> None:
    gen = evaluator("types").GenConfig(0.0, max_tokens=5)
    for _ in questions:
        try:
            sampler([{"role": "user", "content": "?"}], gen)
        except Exception as error:
            errors.append(error)


def test_the_first_refusal_ends_the_run(url: str) -> None:
    for _ in range(ROUNDS):
        errors: list[Exception] = []
        given = (Sampler(Endpoint(url), "tiny", ""), iter(range(QUESTIONS)), errors)
        threads = [threading.Thread(target=answer, args=given, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + SOON
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in threads)
        assert len(errors) == QUESTIONS
        refused = [str(error) for error in errors if isinstance(error, ValueError)]
        assert 1 <= len(refused) <= THREADS, "those on their way, no others"
        assert all("a question could not be asked: Error code: 400" in one for one in refused)
