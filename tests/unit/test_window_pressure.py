"""Who gives a window back when sliding tokens are short: before a retraction, and while prompts wait."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import ScheduleBatch

from sglang_gemma4.memory import own_window, window_nodes, window_pressure
from tests.harness.inputs.radix_world import SWA, WINDOW, World
from tests.harness.inputs.window_case import PROMPT, crowd, fits, plain_server, scheduler, waiting


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    return plain_server(monkeypatch)


@pytest.mark.parametrize("core", ["rust", "python"])
def test_requests_take_back_before_any_is_retracted(core: str) -> None:
    world = World(core)
    batch = crowd(world)
    leave = world.occupy()
    assert not batch.check_decode_mem()
    assert not window_pressure.make_decode_fit(ScheduleBatch.check_decode_mem, batch, [0, 1]), "while SGLang retracts, nothing is taken"
    assert own_window.COUNTS.taken_back == 0
    assert fits(batch)
    assert own_window.Counts(taken_back=1, taken_tokens=WINDOW) == own_window.COUNTS, "the last frees 8, and a step of four takes 4"
    assert [window_nodes.locks_window(req) for req in world.running] == [True, True, True, False]
    leave()
    for req in list(world.running):
        world.end(req)
    world.empties()


def test_what_lies_behind_their_own_windows_goes_first() -> None:
    world = World()
    batch = crowd(world)
    late = world.running[0]
    window_pressure.unlock_after_step(None, batch)
    world.decode(late, WINDOW + 8, interval=100)
    leave = world.occupy()
    assert fits(batch)
    assert own_window.COUNTS.taken_back == 0
    assert world.allocator.swa_available_size() == late.kv.get_evicted_seqlen(SWA) - late.kv.cache_protected_len > 8
    leave()


def test_a_full_pool_that_is_short_takes_nothing_back() -> None:
    world = World()
    batch = crowd(world)
    pool = world.allocator.full_attn_allocator
    pool.alloc(pool.available_size() - 2)
    assert not fits(batch)
    assert own_window.Counts() == own_window.COUNTS


def test_a_request_that_could_not_is_asked_again_before_anybody_is_retracted() -> None:
    """Its window began in a token that others read, such as the first of every prompt."""
    world = World()
    requests = [world.prefill([1, *range(100 * number, 100 * number + WINDOW - 2)]) for number in range(2, 4)]
    for req in requests:
        world.decode(req, 1)
        assert window_pressure.take_back(world.cache, req) == 0, "the window begins in the first token"
        world.decode(req, 4)
        assert not window_pressure._may_take(req)
    leave = world.occupy()
    assert fits(world.batch())
    assert own_window.COUNTS.taken_back == 1
    leave()
    for req in requests:
        world.end(req)
    world.empties()


def test_a_request_that_could_not_is_left_alone_for_some_steps_while_prompts_wait() -> None:
    world = World()
    twins = [world.prefill(PROMPT), world.prefill(PROMPT)]
    for req in twins:
        world.decode(req, 10)
    leave = world.occupy()
    for asked in (2, 2, 4):
        window_pressure.make_room(scheduler(world, waiting(40)), None, world.batch())
        assert own_window.COUNTS.refused == asked
        for req in twins:
            req.decode_batch_idx += window_pressure.ASK_EVERY // 2
    leave()


@pytest.mark.parametrize(
    ("free", "given", "taken"),
    [
        (150, {"waiting": waiting(40)}, 0),  # four requests will hold up to 21 tokens more each, 40 wait
        (20, {"waiting": []}, 0),
        (20, {"waiting": waiting(40), "rows": 4}, 0),
        (20, {"waiting": waiting(40)}, 4),
        (70, {"waiting": waiting(40)}, 3),
        (70, {"waiting": waiting(40), "ratio": 0.0}, 0),
        (70, {"waiting": waiting(4000)}, 4),
        (70, {"waiting": waiting(4000), "chunk": 40}, 3),
        (70, {"waiting": [], "cut": SimpleNamespace(origin_input_ids=[0] * 100, prefix_len=60)}, 3),
    ],
)
def test_prompts_wait_while_sliding_tokens_are_short(free: int, given: dict[str, Any], taken: int) -> None:
    world = World()
    batch = crowd(world)
    leave = world.occupy(left=free)
    window_pressure.make_room(scheduler(world, **given), None, batch)
    world.running, running = [], world.running
    assert own_window.COUNTS.taken_back == taken
    leave()
    world.running = running
    world.sums()


def test_an_empty_batch_makes_no_room() -> None:
    window_pressure.make_room(scheduler(World(), waiting(40)), None, ScheduleBatch(reqs=[]))


def test_growth_by_hand() -> None:
    """Of two requests the first ends after 5 tokens, when both hold most; the second then has its window full."""
    assert window_pressure.growth([10, 0], [0, 8], [5, 20], most=12) == 5 + 4
    assert window_pressure.growth([10], [0], [50], most=12) == 12
    assert window_pressure.growth([10], [30], [50], most=12) == 0
    assert window_pressure.growth([], [], [], most=12) == 0
    assert window_pressure.growth([100, 0], [0, 0], [0, 8], most=12) == 0, "the first ends before the second grows by as much"


def test_growth_of_many_requests_is_that_of_a_sample_of_moments() -> None:
    rng = random.Random(0)
    held, left = [rng.randrange(1500) for _ in range(2000)], [rng.randrange(1, 3000) for _ in range(2000)]
    locked = [rng.randrange(1024) for _ in range(2000)]
    exact = max(
        sum(lock + min(own + t, 1156) for lock, own, rest in zip(locked, held, left, strict=True) if rest >= t) for t in sorted(set(left))
    )
    now = sum(lock + min(own, 1156) for lock, own in zip(locked, held, strict=True))
    assert window_pressure.growth(locked, held, left, 1156) == pytest.approx(exact - now, rel=0.05)
