"""Workloads of sessions: what they send, what of them is measured, cold answers against warm ones, and the report."""

import http.server
import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.benchmark import client, records, report, results, server_side, session_report, sessions, warm_check, workloads
from sglang_gemma4.benchmark.server import Died
from sglang_gemma4.benchmark.workloads import Workload
from tests.harness.inputs import bench_synthetic
from tests.unit.test_bench_loads import _events, _tokens, row, streamed

WORDS = range(100_000, 101_000)
"""Ids that no letter has."""


def encode(text: str) -> list[int]:
    """Markers are single tokens, as they are for the model; all else is its letters."""
    return [
        ord(piece) if len(piece) == 1 else 50_000 + hash(piece) % 1000 for piece in re.split(r"(<[^<>]+>|.)", text, flags=re.S) if piece
    ]


def text_of(ids: list[int]) -> str:
    return "".join(chr(token) if token < 50_000 else "~" if token >= 100_000 else "<>" for token in ids)


def asked(name: str, think: float = 2.0) -> Workload:
    (found,) = workloads.named([name], think=think)
    return found


def by_session(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [[one for one in rows if one["session"] == number] for number in range(max(one["session"] for one in rows) + 1)]


@pytest.mark.parametrize("name", ["sessions-12x10000/6", "sessions-12x10000/6@3"])
def test_sessions_share_a_prompt_with_tools_and_end_at_their_tokens(name: str) -> None:
    workload = asked(name)
    rows = sessions.rows(workload, 1, WORDS, encode)
    assert (len(rows), workload.requests, workload.longest) == (72, 72, 10_000)
    assert [one["at"] for one in rows] == sorted(one["at"] for one in rows)
    shared = rows[0]["shared"]
    assert shared == 1500
    assert len({tuple(one["ids"][:shared]) for one in rows if not one["turn"]}) == 1
    system = text_of(next(one["ids"] for one in rows if not one["turn"])[:shared])
    assert system.startswith("<><>system\n~")
    assert system.count("<>declaration:") >= 3
    assert system.count("<>declaration:") == system.count("}}<>"), "every declaration is whole"
    for turns in by_session(rows):
        assert [one["turn"] for one in turns] == list(range(6))
        for before, one in pairwise(turns):
            assert one["prompt"] == before["prompt"] + before["output"] + len(one["ids"])
        assert turns[0]["prompt"] == len(turns[0]["ids"])
        assert turns[-1]["prompt"] + turns[-1]["output"] == 10_000
        assert all(4 <= one["output"] <= 400 for one in turns)
    begin = [text_of(one["ids"])[:10] for one in rows if one["turn"]]
    kinds = {"<>call:": 0, "<>\n<>user\n": 0}
    for text in begin:
        kinds[next(kind for kind in kinds if text.startswith(kind))] += 1
    assert min(kinds.values()) > 15, "about half the turns are tools'"
    assert {(one["session"], one["turn"]) for one in rows if one.get("keep")} == {(number, 5) for number in range(4)}


def test_the_same_sessions_come_closed_and_open() -> None:
    closed, slow, fast = (
        sessions.rows(asked(name), 1, WORDS, encode) for name in ("sessions-20x5000", "sessions-20x5000@2", "sessions-20x5000@4")
    )
    for one, other in ((closed, slow), (slow, fast)):
        assert [[turn["ids"] for turn in each] for each in by_session(one)] == [
            [turn["ids"] for turn in each] for each in by_session(other)
        ]
    assert [turn["at"] for turn in fast] == pytest.approx([turn["at"] / 2 for turn in slow])
    assert len(slow) / (slow[-1]["at"] / 1000) == pytest.approx(2, rel=0.2), "the rate is of turns"
    assert {turn["think"] for turn in slow} == {0.0}
    assert [turn["session"] for turn in slow] != sorted(turn["session"] for turn in slow)
    thinks = [turn["think"] for turn in closed if turn["turn"]]
    assert sum(thinks) / len(thinks) == pytest.approx(2.0, rel=0.3)
    assert all(len({turn["at"] for turn in each}) == 1 for each in by_session(closed)), "a later turn follows its answer"
    assert 0 < max(turn["at"] for turn in closed) < 2000
    assert sessions.rows(asked("sessions-20x5000", 0.0), 1, WORDS, encode)[-1]["at"] == 0


def test_names_of_sessions() -> None:
    assert (asked("sessions-50x10000").turns, asked("sessions-50x10000").think, asked("sessions-50x10000").open_loop) == (8, 2.0, False)
    opened = asked("sessions-200x20000/10@0.5")
    assert (opened.sessions, opened.turns, opened.rate, opened.requests, opened.think) == (200, 10, 0.5, 2000, 0.0)
    assert workloads.load_name("sessions-200x20000/10@0.5") == ("sessions-200x20000/10", 0.5)
    assert workloads.load_name("sessions-200x20000/10") is None
    assert "sessions" not in workloads.WORKLOADS["mix"][0].as_data()
    small, warm = workloads.miniature(opened), workloads.warm_up(asked("sessions-50x10000"))
    assert (small.requests, small.longest, warm.requests, warm.think) == (12, 600, 16, 0.0)
    assert sessions.rows(small, 1, WORDS, lambda text: [1] * (1 + len(text) // 4))[-1]["shared"] == 187


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sessions-50x2000/8", "166 tokens are left for each of 8 turns, at least 300 are needed"),
        ("sessions-50x10000@0", "a rate of 0 sends nothing"),
        ("sessions-0x10000", "unknown workload 'sessions-0x10000'"),
        ("sessions-50", r"sessions as sessions-NxTOKENS\[/TURNS\]\[@RATE\]"),
    ],
)
def test_sessions_that_cannot_be_are_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        workloads.named([name])


def test_a_turn_too_short_for_its_markup_is_refused() -> None:
    with pytest.raises(ValueError, match="a system prompt of 5 tokens has no room"):
        sessions.system_prompt(5, random.Random(1), WORDS, encode)
    with pytest.raises(ValueError, match=r"a turn of \d+ tokens has no room"):
        sessions.rows(asked("sessions-2x3000/6"), 1, WORDS, lambda text: [1] * 200 * len(text) if "user" in text else encode(text))


def test_the_client_keeps_what_the_server_found_and_what_is_asked_again() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: Any) -> Any:
        bodies.append(await request.json())
        found = {"choices": [], "sglext": {"cached_tokens_details": {"device": 2, "host": 3}}}
        return await _events(request, _tokens(5), _tokens(6), *([found] if len(bodies) > 1 else []))

    rows = [row(2, session=0, turn=turn, think=0.0, shared=1, **({"keep": True} if turn else {})) for turn in (0, 1)]
    sent, _ = streamed(rows, answer)
    first, second = sent.streams
    assert first is not None
    assert second is not None
    assert (first["cached"], second["cached"]) == (None, 5)
    assert (second["prompt"], second["tokens"]) == ([1, 2, 5, 6, 1, 2], [5, 6])
    assert "tokens" not in first
    assert all(body["return_cached_tokens_details"] and body["stream_options"] == {"include_usage": True} for body in bodies)


def session_row(turn: int, ids: int, prompt: int) -> dict[str, Any]:
    return {"turn": turn, "ids": [0] * ids, "prompt": prompt}


def stream(seconds: float, cached: int | None, **more: Any) -> dict[str, Any]:
    return {"events": [[seconds, 1]], "cached": cached, "error": "", **more}


def test_turns_are_sorted_by_what_the_server_found() -> None:
    rows = [session_row(0, 100, 100), session_row(1, 50, 200), session_row(1, 50, 200), session_row(2, 50, 300), session_row(2, 9, 300)]
    streams = [stream(0.4, None), stream(0.1, 149), stream(0.5, 100), stream(0.2, 249, prompt=[1], tokens=[2]), stream(9, 9, error="no")]
    found = session_report.measured(rows, streams)
    assert found["sessions"]["ttft_ms"] == {"first": [400.0], "found": [100.0, 200.0], "missed": [500.0]}
    assert found["sessions"]["computed"] == {"first": 100.0, "found": 51.0, "missed": 100.0}
    assert (found["sessions"]["prompt_tokens"], found["sessions"]["cached_tokens"]) == (800, 498)
    assert found["kept"] == [{"prompt": [1], "tokens": [2]}]
    silent = session_report.measured(rows[:2], [stream(0.4, None), stream(0.1, None)])
    assert silent["sessions"]["ttft_ms"] == {"first": [400.0], "found": [], "missed": []}, "a server that does not say what it found"
    assert "cached_tokens" not in silent["sessions"]


@contextmanager
def server(answers: Iterator[tuple[list[int], int]], busy: int = 0) -> Iterator[tuple[str, list[str]]]:
    """A server that empties its cache after ``busy`` refusals, and gives each answer once; its address and the paths asked for."""
    asked_for: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked_for.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            refuses = self.path == "/flush_cache" and asked_for.count(self.path) <= busy
            body: dict[str, Any] = {}
            if self.path == "/v1/completions":
                tokens, cached = next(answers)
                body = {"choices": [{"token_ids": tokens}], "sglext": {"cached_tokens_details": {"device": cached, "host": 0}}}
            self.send_response(400 if refuses else 200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            pass

    running = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", asked_for
    finally:
        running.shutdown()
        running.server_close()


def test_cold_answers_are_compared_with_warm_ones() -> None:
    kept = [{"prompt": [1, 2], "tokens": [5, 6, 7]}, {"prompt": [3], "tokens": [8, 9]}]
    cold, again, warm = ([5, 6, 7], 0), ([5, 6, 7], 0), ([5, 0, 7], 1)
    with server(iter([cold, again, warm, ([8, 8], 0), ([8, 8], 0), ([8, 8], 0)]), busy=2) as (url, asked_for):
        found = warm_check.check(url, "sglang", "m", kept)
    assert found == {
        "sessions": 2, "tokens": [3, 2], "warm_cached": [1, 0], "again": [None, None], "warm": [1, None], "load": [None, 1],
    }  # fmt: skip
    assert asked_for == ["/flush_cache"] * 3 + ["/v1/completions", "/flush_cache"] + ["/v1/completions"] * 2 + [
        "/flush_cache", "/v1/completions", "/flush_cache", "/v1/completions", "/v1/completions",
    ]  # fmt: skip


def test_a_comparison_that_fails_leaves_the_pass_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "GRACE", 0.0)
    plan = SimpleNamespace(environment={}, model="m")
    arm = SimpleNamespace(environment={}, uses_mtp=True)

    def found(url: str, check: Any = lambda: None) -> dict[str, Any]:
        side: Any = SimpleNamespace(plan=plan, arm=arm, server=SimpleNamespace(url=url, engine="sglang", check=check))
        return server_side.ServerSide._warm_check(side, [{"prompt": [1], "tokens": [2]}], lambda _: None)

    with server(iter([([2], 0)] * 3)) as (url, _):
        assert found(url)["warm"] == [None]
    assert found("http://127.0.0.1:1")["why"].startswith("a request failed (URLError: ")

    def dead() -> None:
        raise Died(9, [])

    with pytest.raises(Died):
        found("http://127.0.0.1:1", dead)
    plan.environment = {"SGLANG_SIMULATE_ACC_LEN": "2.8"}
    assert "simulated" in found("http://127.0.0.1:1")["why"]


def test_where_two_answers_part() -> None:
    assert warm_check.first_difference([1, 2], [1, 2]) is None
    assert warm_check.first_difference([1, 2], [1, 3]) == 1
    assert warm_check.first_difference([1, 2], [1]) == 1
    assert warm_check.first_difference([], [1]) == 0


POOLS: dict[str, float] = {
    "prompt": 1000,
    "hit": 600,
    "full_hit": 800,
    "missed": 200,
    "full_evicted": 7,
    "swa_evicted": 70,
    "taken_back": 3,
    "unlocked": 4,
}
POOLS |= {"full_bound": 0, "swa_bound": 2.25, "limit_bound": 0.5}


def run_of(folder: Path) -> Path:
    """A run with sessions beside the others, of stock and the package."""
    bench_synthetic.write(folder, ("stock", "package"), 1, 1)
    lines = records.read(folder / records.NAME)
    (folder / records.NAME).unlink()
    name, most = "sessions-50x10000/8@4", asked("sessions-50x10000/8@4").as_data()
    for line in lines:
        if line["kind"] == "header":
            line["workloads"] = [*line["workloads"], most]
        with (folder / records.NAME).open("a") as file:
            file.write(json.dumps(line) + "\n")
    for arm, slow in (("stock", 4.0), ("package", 1.0)):
        times = {"first": [400.0, 500.0], "found": [100.0 * slow, 120.0 * slow], "missed": [300.0] if arm == "stock" else []}
        computed = {"first": 1500.0, "found": 400.0} | ({"missed": 900.0} if arm == "stock" else {})
        own = {"ttft_ms": times, "computed": computed, "prompt_tokens": 1000, "cached_tokens": 500}
        gaps: dict[str, float] = dict.fromkeys(("p50", "p90", "p99", "mean", "max"), 10.0) | {"count": 9}
        check = {"sessions": 2, "tokens": [9, 9], "warm_cached": [8, 8], "again": [None, None], "warm": [None, 4], "load": [None, None]}
        more: dict[str, Any] = {
            "sessions": own,
            "pools": POOLS if arm == "package" else {},
            "ttft_ms": [*times["first"], *times["found"]],
            "itl_ms": gaps,
        }
        more["warm_check"] = check if arm == "package" else {"why": "a reason"}
        common: dict[str, Any] = {
            "completed": 4,
            "failed": 0,
            "output_tokens": 40,
            "output_throughput": 4.0,
            "input_throughput": 9.0,
            "seconds": 10.0,
        }
        common |= {"tpot_ms": [10.0] * 4, "requests_per_second": 0.4, "token_itl_ms": gaps, "retractions": 2, "running_peak": 31}
        records.append(
            folder / records.NAME, "repetition", arm=arm, round=0, workload=name, repetition=0, counted=True, rate=4.0, **common, **more
        )
    return folder


def test_the_report_has_hits_pools_and_what_differs(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run")
    text = report.write(folder).read_text()
    assert (folder / "sessions.png").exists()
    (stock, package) = (line for line in text.splitlines() if line.startswith("| sessions-50x10000/8@4 |"))
    assert "| 440.0 / 479.2, 400 (2) | 300.0 / 300.0, 900 (1) |" in stock
    assert "| 50.0 / - / - | - | - | - | - | 31 | 2 |" in stock, "stock has no such counters"
    assert "| 110.0 / 119.8, 400 (2) | - |" in package
    assert "| 60.0 / 80.0 / 75.0 | 200 | 7 / 70 | 3 / 4 | 0.0 / 2.2 / 0.5 | 31 | 2 |" in package
    assert "- stock on sessions-50x10000/8@4: not compared: a reason." in text
    assert "a second cold answer is the same in all; a warm answer differs in 1 (first at token 4 of 9)" in text
    assert "### sessions-50x10000/8" in text, "goodput, as of other loads"
    assert "ask for more sessions" not in text


def test_a_server_that_is_not_deterministic_is_said_to_be(tmp_path: Path) -> None:
    check = {"sessions": 1, "tokens": [9], "warm_cached": [8], "again": [3], "warm": [3], "load": [None]}
    said = session_report._compared(check)
    assert "a second cold answer differs in 1 (first at token 3 of 9)" in said
    assert said.endswith("a difference of warm ones shows nothing.")
    assert session_report.rows(results.load(bench_synthetic.write(tmp_path / "other"))) == ""
