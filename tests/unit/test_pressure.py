"""The clients that take a card's memory: what they ask, and that an answer that fails is a failure. Real engines run it as a stage."""

import asyncio
import json
import random
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from tests.gpu import pressure


def kind_of(path: str, body: dict[str, Any]) -> str:
    if path == "/v1/chat/completions":
        return "images"
    if body.get("return_logprob"):
        return "logprobs"
    return "long" if len(body["input_ids"]) == pressure.TINY.context else "texts"


def run(fails: str = "") -> tuple[pressure.Counts, list[tuple[str, dict[str, Any]]]]:
    """All clients, until each kind was asked for twice; what the server was asked. Paths that begin with ``fails`` get a status 500."""
    asked: list[tuple[str, dict[str, Any]]] = []
    client = pressure.Client(SimpleNamespace(url=""), pressure.TINY, 900, time.monotonic() + 300)  # type: ignore[arg-type]

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, await request.json()))
        kinds = Counter(kind_of(*each) for each in asked)
        if len(kinds) == 4 and min(kinds.values()) >= 2:
            client.ends = 0.0
        if fails and request.path.startswith(fails):
            return web.Response(status=500, text="CUDA out of memory")
        return web.json_response({})

    async def serve() -> pressure.Counts:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        client.server = SimpleNamespace(url=f"http://127.0.0.1:{port}")  # type: ignore[assignment]
        await client.all()
        await runner.cleanup()
        return client.counts

    return asyncio.run(serve()), asked


def test_all_kinds_are_asked_for() -> None:
    counts, asked = run()
    assert all(counts.answers.values())
    assert not counts.failures
    bodies = [body for path, body in asked if path == "/generate"]
    assert {len(body["input_ids"]) for body in bodies} >= {pressure.TINY.context, pressure.TINY.prompt}
    assert any(body.get("return_logprob") and body["logprob_start_len"] == 0 for body in bodies)
    assert all(min(body["input_ids"]) >= 2 and max(body["input_ids"]) < 900 for body in bodies)
    pictures = [json.dumps(body) for path, body in asked if path == "/v1/chat/completions"]
    assert all(text.count("data:image/png;base64,") == pressure.TINY.pictures for text in pictures)
    assert len(set(pictures)) == len(pictures), "none was seen before"


@pytest.mark.parametrize(("path", "kind"), [("/v1", "images"), ("/generate", "texts")])
def test_an_answer_that_fails_is_a_failure(path: str, kind: str) -> None:
    counts, _ = run(path)
    assert counts.answers[kind] == 0
    assert any(said.startswith(f"{kind}: ValueError: status 500: CUDA out of memory") for said in counts.failures)


def test_sizes_of_texts_are_spread() -> None:
    client = pressure.Client(SimpleNamespace(url=""), pressure.Load(), 1000, 0)  # type: ignore[arg-type]
    rng = random.Random(1)
    lengths = [len(client.text(rng)[1]["input_ids"]) for _ in range(300)]
    assert min(lengths) < 30
    assert max(lengths) > 4000
    assert max(lengths) <= pressure.Load().longest
