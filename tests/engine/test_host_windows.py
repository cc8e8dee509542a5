"""HiCache with sliding windows: sessions whose KV went to the host come back with their windows, and answer as if they had never left."""

import random
from typing import Any

import pytest

from sglang_gemma4.diagnostics.pool_hits import PREFIX
from tests.engine.test_dropped_layers import HOST, HOST_ENV
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.inputs.drafting import with_assistant
from tests.harness.oracles.reference import CHECKPOINTS

SESSIONS, NEW = 6, 24
SHARED, OWN, ADDED, TURNS = 60, 90, 40, 3


def sessions(together: int = 1) -> Group:
    """Sessions that share a system prompt; each is several windows long at its end."""
    rng = random.Random(5)

    def words(count: int) -> list[int]:
        return [rng.randrange(5, 900) for _ in range(count)]

    shared = [2, *words(SHARED - 1)]
    added = [[words(ADDED) for _ in range(SESSIONS)] for _ in range(TURNS - 1)]
    extra = {"added": added, "together": together}
    return Group([shared + words(OWN) for _ in range(SESSIONS)], {"max_new_tokens": NEW}, client="session_client:send", extra=extra)


def from_host(answer: Output) -> int:
    return int((answer.meta_info.get("cached_tokens_details") or {}).get("host", 0))


POOLS = {"max_total_tokens": 700, "swa_full_tokens_ratio": 0.6, "max_running_requests": 2, "chunked_prefill_size": 64}
"""420 sliding tokens and 700 full ones: two running sessions and little else."""
FULL_ROOM = {**POOLS, "max_total_tokens": 4000, "swa_full_tokens_ratio": 0.1}
"""All full KV would stay on the device; the windows of few sessions do."""


def run(
    nursery: Nursery, model: str, speculative: bool, together: int = 1, two_windows: dict[str, str] | None = None, **engine: Any
) -> list[Output]:
    """The sessions with small pools and a host cache, which must answer as with large pools and no prefix cache."""
    asked = {**HOST, **POOLS, **engine, **(with_assistant(CHECKPOINTS / model) if speculative else {}), "enable_metrics": True}
    (cold,) = nursery.run(CHECKPOINTS / model, [sessions(together)], disable_radix_cache=True, max_total_tokens=8192)
    env = HOST_ENV if two_windows is None else {**HOST_ENV, **two_windows}
    (found,) = nursery.run(CHECKPOINTS / model, [sessions(together)], env=env, **asked)
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in cold]
    counters = found[-1].meta_info["counters"]
    assert counters[f"{PREFIX}hit_tokens_total"] == sum(answer.meta_info["cached_tokens"] for answer in found), "those on the host count"
    return found[SESSIONS:]


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("model", ["tiny-26b-a4b", "tiny-31b", "tiny-e2b"])
@pytest.mark.parametrize("speculative", [False, True], ids=["plain", "mtp"])
def test_sessions_come_back_from_the_host(nursery: Nursery, speculative: bool, model: str, page: int) -> None:
    later = run(nursery, model, speculative, page_size=page)
    assert all(from_host(answer) >= OWN for answer in later[2:])


@pytest.mark.parametrize(
    ("together", "engine"),
    [(3, {"max_total_tokens": 1400, "swa_full_tokens_ratio": 0.4}), (1, {"hicache_write_policy": "write_back"}), (1, FULL_ROOM)],
    ids=["three-at-once", "write-back", "full-pool-has-room"],
)
@pytest.mark.parametrize("speculative", [False, True], ids=["plain", "mtp"])
def test_other_ways_to_the_host(nursery: Nursery, speculative: bool, together: int, engine: dict[str, Any]) -> None:
    later = run(nursery, "tiny-26b-a4b", speculative, together, **engine)
    assert all(from_host(answer) >= OWN for answer in later[2:])


@pytest.mark.parametrize("speculative", [False, True], ids=["plain", "mtp"])
def test_sessions_are_retracted_and_come_back(nursery: Nursery, speculative: bool) -> None:
    """Without own_window, with which nobody is retracted here."""
    tight = {"max_total_tokens": 1300, "swa_full_tokens_ratio": 0.3, "max_running_requests": 6, "schedule_conservativeness": 0.01}
    later = run(nursery, "tiny-26b-a4b", speculative, 6, without("own_window"), hicache_write_policy="write_back", **tight)
    assert "KV cache pool is full. Retract requests" in later[0].log
    assert sum(from_host(answer) >= OWN for answer in later) >= SESSIONS


def test_turns_that_are_written_at_their_second_hit_are_lost(nursery: Nursery) -> None:
    """Of write_through_selective only what two requests found is kept: the shared prompt, not what a session said last."""
    later = run(nursery, "tiny-26b-a4b", False, hicache_write_policy="write_through_selective")
    assert all(answer.meta_info["cached_tokens"] < SHARED + OWN for answer in later)
