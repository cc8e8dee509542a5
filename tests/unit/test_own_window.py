"""A running request's window and the radix tree: SGLang's own tree (both cores) and allocator, sums of slots after every change."""

from collections.abc import Callable
from typing import Any

import pytest

from sglang_gemma4.memory import own_window, window_nodes, window_pressure
from tests.harness.inputs.radix_world import GEMMA, SWA, WINDOW, World
from tests.harness.inputs.window_case import PROMPT, TURN, answer, plain_server, take


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    return plain_server(monkeypatch)


@pytest.fixture(params=[(core, page, bigrams) for core in ("rust", "python") for page in (1, 4) for bigrams in (False, True)], ids=str)
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


@pytest.mark.parametrize("length", [8, WINDOW, WINDOW + 4, len(PROMPT)])
def test_a_request_that_took_back_holds_one_window(length: int, world: World) -> None:
    prompt = PROMPT[:length]
    req = world.prefill(prompt)
    world.decode(req, WINDOW)
    before = world.taken()
    assert take(world, req) >= min(length, WINDOW) - world.page
    assert world.taken() <= min(WINDOW + 2 * world.page, before)
    assert length < WINDOW or world.taken() < before
    assert world.hit(prompt) < length - world.page, "nobody else finds its window"
    world.decode(req, 2 * WINDOW)
    assert world.taken() <= WINDOW + 2 * world.page
    assert world.reads(req)
    world.end(req)
    assert world.hit(prompt, answer(req)) >= length + 3 * WINDOW - world.page, "prompt and answer are found again"
    world.empties()


def test_the_last_chunk_of_a_prompt_is_shorter_than_the_window(world: World) -> None:
    req = world.prefill(PROMPT, 20, 16, 4)
    world.decode(req, 4)
    before = world.taken()
    assert take(world, req) >= WINDOW - world.page, "the node in which the window begins is not the last"
    assert world.taken() < before
    world.end(req)
    world.empties()


def test_the_same_prompt_again_meanwhile(world: World) -> None:
    first = world.prefill(PROMPT)
    world.decode(first, 10)
    assert take(world, first)
    second = world.prefill(PROMPT)
    world.sums()
    world.decode(second, 4)
    take(world, second)
    assert second.kv.cache_protected_len <= second.seqlen - 1 - WINDOW + world.page, "it reads nothing of the tree"
    world.decode(first, 10)
    world.end(first)
    assert world.reads(second)
    assert world.hit(PROMPT, answer(first)) >= len(PROMPT) + 16
    world.end(second)
    assert world.hit(PROMPT, answer(first)) >= len(PROMPT) + 16
    world.empties()


def test_what_another_request_reads_stays(world: World) -> None:
    twins = [world.prefill(PROMPT), world.prefill(PROMPT)]
    for req in twins:
        world.decode(req, 10)
    held = world.taken()
    turn = world.prefill(PROMPT + TURN)
    for req in twins:
        lock = req.lock.node
        assert take(world, req) == 0
        assert req.lock.node == lock
    world.decode(turn, 6)
    hit = world.hit(PROMPT)
    take(world, turn)
    assert world.hit(PROMPT) == hit, "only its own end of the path was taken"
    world.end(turn)
    assert world.taken() == held
    for req in twins:
        world.end(req)
    world.empties()


def test_a_turn_that_came_meanwhile_is_not_cut_off(world: World) -> None:
    first = world.prefill(PROMPT)
    world.decode(first, 6)
    turn = world.prefill(PROMPT + TURN)
    assert take(world, first) == 0
    world.end(turn)
    assert take(world, first) == 0, "the tree goes on behind its prompt"
    world.end(first)
    assert world.hit(PROMPT, TURN) >= len(PROMPT)
    world.empties()


def test_a_prompt_that_is_in_the_tree_up_to_a_fork_only(world: World) -> None:
    """SGLang puts it there up to where another one branches off, if sliding slots are missing there, and frees what its window has
    passed behind that: whoever took the window back before the first decode step freed it again."""
    world.end(world.prefill(PROMPT))
    req = world.prefill([*PROMPT[:12], *range(400, 430)], meanwhile=world.forget_windows)
    assert world.page <= req.kv.cache_protected_len <= 12 < req.kv.get_evicted_seqlen(SWA)
    assert take(world, req) == 0
    window = own_window.window_of(world.cache, GEMMA)
    assert window is not None
    window_pressure.unlock_passed(world.cache, window, [req])
    assert own_window.COUNTS.unlocked == 1
    assert not window_nodes.locks_window(req)
    world.decode(req, 6)
    world.end(req)
    world.empties()


def test_retracted_and_prefilled_again(world: World) -> None:
    req = world.prefill(PROMPT)
    world.decode(req, 10)
    assert take(world, req)
    world.end(req, publish=False)
    again = world.prefill(PROMPT + answer(req))
    world.decode(again, 10)
    take(world, again)
    world.end(again)
    world.empties()


def test_a_name_space_of_its_own(world: World) -> None:
    others = world.prefill(PROMPT)
    req = world.prefill(PROMPT[:12], extra_key="adapter")
    world.decode(req, WINDOW)
    assert take(world, req)
    world.decode(req, 1)
    world.end(req)
    assert world.hit(PROMPT[:12], answer(req), extra_key="adapter") >= 12
    world.end(others)
    world.empties()


def test_a_window_that_has_passed_the_prompt_is_no_longer_locked(world: World) -> None:
    req = world.prefill(PROMPT)
    batch = world.batch()
    world.decode(req, WINDOW + req.kv.cache_protected_len - req.seqlen)
    window_pressure.unlock_after_step(None, batch)
    assert window_nodes.locks_window(req), "one token of the prompt is still read"
    hit, held = world.hit(PROMPT), world.taken()
    world.decode(req, 1 + 2 * world.page)
    before = own_window.COUNTS.unlocked
    window_pressure.unlock_after_step(None, batch)
    world.sums()
    assert own_window.COUNTS.unlocked == before + 1
    assert world.taken() <= held - WINDOW + 3 * world.page
    assert world.hit(PROMPT) == hit > 0, "it stays cached while nobody needs its place"
    window_pressure.unlock_after_step(None, batch)
    assert own_window.COUNTS.unlocked == before + 1, "once"
    assert world.allocator.swa_available_size() < world.sliding - world.taken()
    taken = world.allocator.alloc(world.allocator.swa_available_size()) if world.page == 1 else None
    if taken is not None:
        assert world.allocator.check_decode_capacity(num_tokens=WINDOW // 2, tree_cache=world.cache), "and is evicted when somebody does"
        assert world.hit(PROMPT) == 0
        world.allocator.free(taken)
    assert world.reads(req)
    world.end(req)
    assert world.hit(PROMPT, answer(req)) >= len(PROMPT) + WINDOW
    world.empties()


CHANGES: dict[str, Callable[[Any], object]] = {
    "its prefill is in flight": lambda req: vars(req).update(decode_batch_idx=0, prefix_len=20, extend_end=40),
    "no lock": lambda req: setattr(req, "lock", None),
    "SGLang released the window": lambda req: setattr(req.lock, "swa_released", True),
    "a lock without a window": lambda req: setattr(req.lock.receipt, "skipped_lock_components", (SWA,)),
    "nothing of it is in the tree": lambda req: setattr(req.kv, "cache_protected_len", 0),
    "a beam": lambda req: setattr(req, "beam_group", object()),
    "an eviction floor": lambda req: setattr(req.kv, "swa_evict_floor", 4),
    "no row": lambda req: setattr(req.kv, "req_pool_idx", None),
}


@pytest.mark.parametrize("case", list(CHANGES))
def test_requests_that_are_never_asked(case: str) -> None:
    world = World()
    req = world.prefill(PROMPT)
    world.decode(req, 10)
    assert window_nodes.locks_window(req)
    CHANGES[case](req)
    assert not window_nodes.locks_window(req)


def test_a_prefill_whose_result_was_processed_can_be_taken_before_the_first_decode_step() -> None:
    """Prompts are prefilled one after the other before any is decoded; this one's first node reaches 20 tokens back behind its window."""
    world = World()
    req = world.prefill(PROMPT, 36, 4)
    assert req.decode_batch_idx == 0
    assert window_nodes.locks_window(req)
    assert take(world, req) == 20
    assert world.taken() == WINDOW
    world.decode(req, 4)
    world.end(req)
    assert world.hit(PROMPT, answer(req)) >= len(PROMPT)
    world.empties()


def test_a_prompt_that_will_not_be_put_back_stays() -> None:
    world = World()
    req = world.prefill(PROMPT)
    world.decode(req, 10)
    req.skip_radix_cache_insert = True
    assert take(world, req) == 0
    req.skip_radix_cache_insert = False
    assert take(world, req) == WINDOW


def test_a_window_whose_copies_do_not_go_on_from_the_root_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first node would be deleted and leave the second one's copy on the host without a parent."""
    world = World()
    req = world.prefill(PROMPT, 36, 4)
    last = world.cache.tree_core.collect_path_info([req.lock.node])[0][-1].node_id
    monkeypatch.setattr(world.cache.tree_core, "is_backuped", lambda node: node == last)
    assert take(world, req) == 0
    monkeypatch.setattr(world.cache.tree_core, "is_backuped", lambda node: False)
    world.cache.enable_storage = True
    assert take(world, req) == 0, "a storage backend was attached while serving"
    world.cache.enable_storage = False
    assert take(world, req) == 20
