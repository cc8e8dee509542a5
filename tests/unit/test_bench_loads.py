"""Loads are what they say: arrivals, lengths, sessions, and a client that times what the server streamed."""

import asyncio
import itertools
import json
import math
import random
from pathlib import Path
from statistics import mean, median, stdev
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sglang_gemma4 import cli
from sglang_gemma4.benchmark import workloads
from sglang_gemma4.benchmark.client_process import StreamClient
from sglang_gemma4.benchmark.workloads import Workload

WORDS = range(100, 1000)
(MIX,) = workloads.WORKLOADS["mix"]


def load(name: str, rate: float = 4.0, seconds: float = 60.0) -> Workload:
    (found,) = workloads.named([name], [rate], seconds)
    return found


def test_arrivals_are_a_poisson_process_of_the_rate_from_a_seed() -> None:
    times = list(itertools.islice(workloads.arrival_times(3, 5.0), 5000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0
    assert mean(gaps) == pytest.approx(200, rel=0.05)
    assert stdev(gaps) == pytest.approx(mean(gaps), rel=0.05), "an exponential's standard deviation is its mean"
    assert times == list(itertools.islice(workloads.arrival_times(3, 5.0), 5000))
    assert times != list(itertools.islice(workloads.arrival_times(4, 5.0), 5000))
    assert list(itertools.islice(workloads.arrival_times(3, 10.0), 5)) == pytest.approx([time / 2 for time in times[:5]])
    assert list(itertools.islice(workloads.arrival_times(3, None), 3)) == [0, 0, 0]


def test_another_rate_changes_only_when_requests_come() -> None:
    slow, fast = (workloads.rows(load("log-uniform", rate), 1, WORDS) for rate in (2.0, 4.0))
    assert [(row["ids"], row["output"]) for row in slow] == [(row["ids"], row["output"]) for row in fast[: len(slow)]]
    assert [row["at"] for row in fast[: len(slow)]] == pytest.approx([row["at"] / 2 for row in slow])
    assert (len(slow), len(fast)) == (120, 240), "60 s of arrivals"
    assert workloads.rows(load("log-uniform"), 1, WORDS) != workloads.rows(load("log-uniform"), 2, WORDS)


def test_the_mix_has_the_lengths_of_the_recipe_in_every_pass() -> None:
    draw = random.Random(7)
    expected = [tuple(int(math.exp(draw.uniform(math.log(a), math.log(b)))) for a, b in ((50, 6000), (50, 600))) for _ in range(120)]
    for seed in (1, 2):
        rows = workloads.rows(MIX, seed, WORDS)
        assert [(len(row["ids"]), row["output"]) for row in rows] == expected
        assert {row["at"] for row in rows} == {0}
    cut = workloads.rows(workloads.warm_up(MIX), 0, WORDS)
    assert ([len(row["ids"]) for row in cut], {row["output"] for row in cut}) == ([tokens for tokens, _ in expected], {32})


def test_sharegpt_like_lengths_are_lognormal_within_their_limits() -> None:
    rows = workloads.rows(load("sharegpt-like", 50.0), 1, WORDS)
    tokens_in, tokens_out = ([row[name] for row in rows] for name in ("prompt", "output"))
    assert median(tokens_out) == pytest.approx(415, rel=0.1)
    assert 1200 < median(tokens_in) < 1730, "the longest are left out, which lowers the median"
    assert (max(tokens_in) <= 6656, max(tokens_out) <= 1536, len(rows)) == (True, True, 3000)
    assert max(tokens_in) > 6000


def test_a_session_goes_on_from_a_prompt_that_sessions_share() -> None:
    rows = workloads.rows(load("multi-turn"), 1, WORDS)
    assert len(rows) == 240
    sessions = [rows[first : first + 4] for first in range(0, len(rows), 4)]
    assert len({tuple(session[0]["ids"][:1024]) for session in sessions}) == 8
    for session in sessions:
        assert [row["turn"] for row in session] == [0, 1, 2, 3]
        assert len({row["at"] for row in session}) == 1, "a later turn comes when the answer before is there"
        assert session[0]["think"] == 0 < session[1]["think"]
        for before, row in itertools.pairwise(session):
            assert row["prompt"] == before["prompt"] + before["output"] + len(row["ids"])
        assert session[-1]["prompt"] + session[-1]["output"] <= load("multi-turn").longest
    length = rows[-1]["at"] / 1000
    assert len(rows) / length == pytest.approx(4, rel=0.3), "the rate is of requests, not of sessions"


def test_a_load_in_a_dry_run_is_small() -> None:
    for name in workloads.LOADS:
        small = workloads.miniature(load(name))
        rows = workloads.rows(small, 1, WORDS)
        assert len(rows) == 8
        assert max(row["prompt"] + row["output"] for row in rows) < 130
        assert max(row.get("think", 0) for row in rows) < 0.5


def test_requests_at_once_by_their_numbers() -> None:
    (found,) = workloads.named(["32x1000/200"])
    assert (found.requests, found.input_tokens, found.output_tokens, found.open_loop) == (32, 1000, 200, False)
    assert {len(row["ids"]) for row in workloads.rows(found, 1, WORDS)} == {1000}
    assert "rate" not in found.as_data()
    assert "lengths" not in found.as_data()


def status_of(words: list[str]) -> int | str | None:
    """Of the command line, whether its words or what they ask for is refused."""
    try:
        return cli.main(words)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workload", "log-uniform"], "is open-loop and has no rates"),
        (["--workload", "log-uniform", "--rates", "0"], "--rates: 0 is not a number above 0"),
        (["--workload", "log-uniform", "--rates", "1,-2"], "--rates: -2 is not a number above 0"),
        (["--workload", "log-uniform", "--rates", "1,inf"], "--rates: inf is not a number above 0"),
        (["--workload", "log-uniform", "--rates", "2,1"], "--rates: 2,1 does not rise"),
        (["--workload", "log-uniform", "--rates", "2,2"], "--rates: 2,2 does not rise"),
        (["--workload", "log-uniform", "--rates", "1,fast"], "--rates: '1,fast' is not a list of numbers"),
        (["--workload", "chat", "--rates", "1"], "--rates belongs to loads"),
        (["--workload", "log-uniform", "--rates", "1", "--load-seconds", "0"], "--load-seconds: 0 is not a number above 0"),
        (["--workload", "log-uniform", "--rates", "1", "--itl-limit", "-1"], "--itl-limit: -1 is not a number above 0"),
        (["--workload", "log-uniform", "--rates", "1"], "one request reaches 6600 tokens, the context is 4096"),
        (["--workload", "0x100/10"], "unknown workload '0x100/10'"),
        (["--workload", "log-uniform", "--rates", "1", "--arm", "package", "--arm", "x:stock,only=log-uniform@2"], "unknown workload"),
    ],
)
def test_a_load_that_cannot_be_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert status_of(["bench", "tiny-e2b", *words, "--no-report", "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def streamed(rows: list[dict[str, Any]], answer: Any) -> tuple[StreamClient, list[Any]]:
    """What the client makes of ``rows`` at a server on a real socket whose ``/v1/completions`` is ``answer``."""

    class Output(SimpleNamespace):
        @staticmethod
        def init_new(_: Any) -> "Output":
            return Output(success=False, error="", output_len=0)

    async def run() -> list[Any]:
        app = web.Application()
        app.add_routes([web.post("/v1/completions", answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        asked = [
            SimpleNamespace(
                extra_request_body={"row": index}, model="m", output_len=row["output"], api_url=f"http://{host}:{port}/v1/completions"
            )
            for index, row in enumerate(rows)
        ]
        found = await asyncio.gather(*map(client.send, asked))
        await runner.cleanup()
        return list(found)

    serving = SimpleNamespace(RequestFuncOutput=Output, _create_bench_client_session=aiohttp.ClientSession)
    client = StreamClient(serving, rows)
    return client, asyncio.run(run())


def row(tokens: int, **more: Any) -> dict[str, Any]:
    return {"ids": [1, 2], "prompt": 2, "output": tokens, "at": 0.0, **more}


async def _events(request: web.Request, *events: dict[str, Any], wait: float = 0.0) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for event in events:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await asyncio.sleep(wait)
    await response.write(b"data: [DONE]\n\n")
    return response


def _tokens(*ids: int, text: str = "") -> dict[str, Any]:
    return {"choices": [{"text": text, "token_ids": list(ids)}]}


def test_events_are_timed_by_their_tokens_with_or_without_text() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await _events(request, _tokens(), _tokens(5), _tokens(6, 7, text="ab"), {"choices": [], "usage": {}}, wait=0.05)

    client, (output,) = streamed([row(3)], answer)
    (stream,) = client.streams
    assert stream is not None
    assert [count for _, count in stream["events"]] == [1, 2], "an event without tokens is none"
    assert stream["events"][0][0] >= 0.05
    assert 0.005 <= stream["events"][1][0] - stream["events"][0][0] < 2, "0.05 s, and what a busy machine adds"
    assert (output.success, output.output_len) == (True, 3)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([_tokens(5)], "1 of the 3 tokens asked for came"),
        ([], "0 of the 3 tokens asked for came"),
        ([{"choices": [{"text": "a"}]}], "the server streams no token ids"),
        ([_tokens(5), {"error": {"message": "out of memory"}}], "the server ended the stream: {'message': 'out of memory'}"),
    ],
)
def test_an_answer_that_is_not_whole_is_a_failed_request(events: list[dict[str, Any]], said: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await _events(request, *events)

    client, (output,) = streamed([row(3)], answer)
    assert not output.success
    assert client.streams[0] is not None
    assert said in client.streams[0]["error"]


def test_a_turn_goes_on_from_the_answer_before_and_fails_with_it() -> None:
    asked: list[list[int]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        prompt = (await request.json())["prompt"]
        asked.append(prompt)
        if prompt[-1] == 9:
            return web.json_response({"error": "no"}, status=400)
        return await _events(request, _tokens(5, 6))

    def turn(session: int, number: int, *ids: int) -> dict[str, Any]:
        return row(2, session=session, turn=number, think=0.01) | {"ids": list(ids)}

    rows = [turn(0, 0, 1), turn(0, 1, 3), turn(1, 0, 2), turn(1, 1, 9), turn(1, 2, 4)]
    client, outputs = streamed(rows, answer)
    assert sorted(asked) == [[1], [1, 5, 6, 3], [2], [2, 5, 6, 9]]
    assert [output.success for output in outputs] == [True, True, True, False, False]
    assert client.streams[3] is not None
    assert client.streams[4] is not None
    assert "HTTP 400" in client.streams[3]["error"]
    assert "the turn before it failed" in client.streams[4]["error"]
    assert client.streams[1] is not None
    assert client.streams[1]["at"] is None, "a later turn is not planned"
