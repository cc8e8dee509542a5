"""A running request holds one window where KV has other places to go to: the host (HiCache), and a decode server of its own.

Engines of ``test_one_window.py``: a model with a window of 64 tokens and a sliding pool of some 1.5 windows for each request, with SGLang's
pool checks fatal in every step and when idle. Answers are those of plain decoding with room for all.
"""

import ast
import json
import re
from functools import cache
from typing import Any

import pytest

from tests.engine.test_dropped_layers import HOST
from tests.engine.test_host_windows import from_host
from tests.engine.test_one_window import LARGE, LOOPS, MODEL, SLIDING, WINDOW, endless, prompt
from tests.engine.test_prefill_beside import joined
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output, without
from tests.harness.inputs import mtp_cases
from tests.harness.inputs.mtp_cases import timed
from tests.harness.left_to_sglang import left
from tests.harness.oracles.reference import CHECKPOINTS

PROMPTS = [prompt(length, length) for length in (100, 101, 102, 103, 104, 105, 130, 200)]
SHORT = 789
"""Sliding tokens with which a part of a window that comes back from the host meets a full pool."""
AGAIN = 4
"""Prompts that come again while their first request, which took its window out of the tree, still runs."""


def groups() -> dict[str, Group]:
    """Eight sessions; prompts that come again; requests that are aborted. Each group fills the sliding pool; the last two flush it."""
    names = mtp_cases.named("some", 8)
    added = {"added": [[prompt(30, 10 * turn + place) for place in range(8)] for turn in range(2)], "together": 8}
    again = [{"rid": f"again-{place}", "after": [f"some-{place}", 60]} for place in range(AGAIN)]
    aborted = [{**one, "abort_at": 9 * place} if place % 3 == 1 else one for place, one in enumerate(names)]
    return {
        "sessions": Group(PROMPTS, endless(52), client="session_client:send", extra=added),
        "again": timed([*PROMPTS, *PROMPTS[:AGAIN]], [endless(90)] * 8 + [endless(20)] * AGAIN, [*names, *again]),
        "aborted": timed(PROMPTS, [endless(110)] * 8, aborted),
    }


def serve(nursery: Nursery, instruments: str, env: dict[str, str], **engine: Any) -> dict[str, list[Output]]:
    asked = groups()
    env = {"TEST_INSTRUMENTS": f"{instruments} window_watch:watch", "SGLANG_SWA_EVICTION_INTERVAL": "8", **env}
    found = nursery.run(CHECKPOINTS / MODEL, list(asked.values()), env=env, time_limit=400.0, **engine)
    return dict(zip(asked, found, strict=True))


@cache
def large(nursery: Nursery) -> dict[str, list[Output]]:
    return serve(nursery, LOOPS["plain"][0], without("own_window"), **LARGE)


def tokens_are_equal(found: dict[str, list[Output]], reference: dict[str, list[Output]]) -> None:
    for name in set(found) - {"aborted"}:
        assert [output.token_ids for output in found[name]] == [output.token_ids for output in reference[name]], name
    for one, whole in zip(found["aborted"], reference["again"], strict=False):
        assert one.token_ids[:90] == whole.token_ids[: len(one.token_ids)]
    assert any(output.meta_info["finish_reason"]["type"] == "abort" for output in found["aborted"])


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("loop", ["plain", "mtp-overlapped", "mtp-beside", "mtp-retracted"])
def test_windows_are_taken_back_beside_a_host_cache(loop: str, policy: str, nursery: Nursery) -> None:
    """The host's copy of a window that was taken is hit while its request still runs; nothing is left in any pool."""
    instruments, engine, env = LOOPS[loop]
    small = {**LARGE, "swa_full_tokens_ratio": SLIDING[1] / LARGE["max_total_tokens"], **HOST, "hicache_write_policy": policy, **engine}
    traced = "beside_trace:overlapped" if loop == "mtp-beside" else instruments
    found = serve(nursery, f"host_cache:torch_copies host_cache:all_comes_back {traced}", env, **small)
    tokens_are_equal(found, large(nursery))
    log = found["again"][0].log
    assert "own_window" not in left(log)
    beside = {rid for step in joined(log) for rid in step.prefilled}
    assert len(beside & {f"again-{place}" for place in range(AGAIN)}) == (AGAIN if loop == "mtp-beside" else 0)
    taken = re.findall(r"^TAKEN (\S+)", log, re.MULTILINE)
    assert len(taken) >= 8
    assert re.search(r"^UNLOCKED", log, re.MULTILINE)
    assert all(output.meta_info["cached_tokens"] > WINDOW for output in found["sessions"][8:]), "turns find the one before"
    again = found["again"][-AGAIN:]
    if policy == "write_through":
        assert all(output.meta_info["cached_tokens"] > WINDOW for output in again)
        assert any(from_host(output) > WINDOW for output in again), "what left the device has its copy"
    assert not sum(output.meta_info["num_retractions"] for output in found["sessions"]) or loop == "mtp-retracted"
    kept = [ast.literal_eval(text) for text in re.findall(r"^LEFT (.*)$", log, re.MULTILINE)]
    assert kept
    assert not any(tokens for one in kept for tokens in one.values()), kept


def test_a_window_half_of_which_is_on_the_host_finds_room(nursery: Nursery) -> None:
    """Copies end late, so that windows on their way to the host are locked and the pool is short: without ``host_hits`` the server ends."""
    _, engine, env = LOOPS["mtp-beside"]
    short = {**LARGE, "swa_full_tokens_ratio": SHORT / LARGE["max_total_tokens"], **HOST, **engine}
    instruments = "host_cache:torch_copies host_cache:all_comes_back late_copies:install beside_trace:overlapped"
    tokens_are_equal(serve(nursery, instruments, env, **short), large(nursery))
    with pytest.raises(EngineFailed, match=r"RuntimeError: Out of memory\. Try to lower your batch size"):
        serve(nursery, instruments, env | without("host_hits"), **short)


DECODE = {"max_running_requests": 4, "swa_full_tokens_ratio": 0.01, "num_reserved_decode_tokens": 16}
"""Twelve rows: four run, and eight may wait with their windows transferred. The ratio asks for fewer sliding tokens than those need."""


@pytest.mark.parametrize("loop", ["plain", "mtp"])
def test_a_decode_server_never_holds_two(loop: str, nursery: Nursery) -> None:
    """It has no radix tree (SGLang refuses one for Gemma 4), so ``own_window`` is idle there, and a sliding pool of one window for each of
    its rows is filled and never overrun; on the prefill server, where nothing decodes, it is declined."""
    instruments, engine, env = LOOPS[loop]
    asked = [Group(PROMPTS * 2, endless(90))] * 2
    env = {
        "TEST_INSTRUMENTS": f"{instruments} window_watch:watch window_watch:states pd_pair:pair",
        "SGLANG_SWA_EVICTION_INTERVAL": "8",
        **env,
    }
    env["TEST_DECODE_ARGUMENTS"] = json.dumps(DECODE)
    found = nursery.run(CHECKPOINTS / MODEL, asked, env=env, time_limit=400.0, **{**LARGE, "page_size": 16, **engine})
    whole = [output.token_ids for output in large(nursery)["again"][:8]]
    assert [[output.token_ids for output in group] for group in found] == [whole * 2] * 2
    log = found[0][0].log
    assert left(log)["own_window"].count("prefill and decode are on servers of their own") == 1, "of the prefill server"
    assert "STATE own_window idle --disable-radix-cache" in log, "of the decode server"
    assert not re.search(r"^(TAKEN|UNLOCKED)", log, re.MULTILINE)
    used = [float(share) for share in re.findall(r"Decode batch.* swa token usage: ([0-9.]+)", log)]
    assert 0.8 < max(used) <= 1
    assert re.search(r"Decode batch, #running-req: 4.* #prealloc-req: [1-9].* #queue-req: [1-9]", log), (
        "the sliding pool is what they wait for"
    )
