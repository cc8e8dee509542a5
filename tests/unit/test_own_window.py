"""A running request's window and the radix tree: SGLang's own tree (both cores) and allocator, sums of slots after every change."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_gemma4 import patching
from sglang_gemma4.memory import own_window, window_nodes, window_pressure
from tests.unit.radix_world import GEMMA, SWA, WINDOW, World

PROMPT = list(range(100, 140))
TURN = list(range(300, 308))


PLAIN = {
    "disaggregation_mode": "null", "disable_radix_cache": False, "enable_unified_memory": False, "enable_hierarchical_cache": False,
    "enable_unified_cache_external_linker": False, "enable_lmcache": False, "enable_flexkv": False, "enable_hisparse": False,
    "radix_cache_backend": None, "enable_session_radix_cache": False, "enable_streaming_session": False, "speculative_algorithm": None,
    "hicache_storage_backend": None, "hicache_host_memory_mode": "cache",
    "pp_size": 1, "attn_cp_size": 1, "attn_dcp_size": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's resolved arguments, those of a plain server; a test may change them."""
    found = SimpleNamespace(**PLAIN)
    for name in ("get_memory", "get_disagg", "get_serving", "get_parallel", "get_spec"):
        monkeypatch.setattr(f"sglang.srt.runtime_context.{name}", lambda: found)
    monkeypatch.setenv("SGLANG_SWA_EVICTION_INTERVAL", "8")
    monkeypatch.setitem(patching._outcomes, own_window.NAME, patching.Outcome(own_window.NAME, "", "", "active"))
    monkeypatch.setattr(own_window, "COUNTS", own_window.Counts())
    monkeypatch.setattr(window_pressure, "COUNTS", own_window.COUNTS)
    return found


@pytest.fixture(params=[(core, page, bigrams) for core in ("rust", "python") for page in (1, 4) for bigrams in (False, True)], ids=str)
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


def answer(req: Any) -> list[int]:
    """What the tree keeps of it: the last token has no KV."""
    return list(req.output_ids[:-1])


def take(world: World, req: Any) -> int:
    taken = window_nodes.give_back(world.cache, req)
    world.sums()
    assert world.reads(req)
    return taken


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


def fits(batch: Any) -> bool:
    return window_pressure.make_decode_fit(ScheduleBatch.check_decode_mem, batch)


def crowd(world: World, requests: int = 4) -> Any:
    """Requests with prompts of their own, the last one with most decoded; the batch of them all."""
    for number in range(requests):
        world.decode(world.prefill([900 + number, *PROMPT]), 5 + number)
    return world.batch()


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


def scheduler(world: World, waiting: list[Any], rows: int = 8, chunk: int | None = 64, cut: Any = None, ratio: float = 1.0) -> Any:
    return SimpleNamespace(
        tree_cache=world.cache,
        model_config=GEMMA,
        token_to_kv_pool_allocator=world.allocator,
        waiting_queue=waiting,
        chunked_req=cut,
        chunked_prefill_size=chunk,
        new_token_ratio_tracker=SimpleNamespace(current=ratio),
        get_num_allocatable_reqs=lambda running, running_batch: rows - running,
    )


def waiting(tokens: int) -> list[Any]:
    return [SimpleNamespace(origin_input_ids=[0] * tokens)]


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


def state() -> str:
    return patching._outcomes[own_window.NAME].state


def test_other_models_and_caches_are_left_alone(settings: Any) -> None:
    world = World()
    assert own_window.window_of(World().cache, SimpleNamespace(hf_config=SimpleNamespace(architectures=["Llama4ForCausalLM"]))) is None
    assert state() == "active", "nothing is said of other models"
    window = own_window.window_of(world.cache, GEMMA)
    assert window is not None
    assert (window.kept, window.interval, window.page) == (WINDOW, 8, 1)

    other = World()
    other.cache.disable = True
    assert own_window.window_of(other.cache, GEMMA) is None
    assert state() == "idle"


DECLINES: dict[str, tuple[dict[str, Any], str]] = {
    "pd": ({"disaggregation_mode": "prefill"}, "on servers of their own"),
    "storage": ({"enable_hierarchical_cache": True, "hicache_storage_backend": "file"}, "--hicache-storage-backend"),
    "buffer": ({"enable_hierarchical_cache": True, "hicache_host_memory_mode": "buffer_only"}, "--hicache-host-memory-mode buffer_only"),
    "unified": ({"enable_hierarchical_cache": True, "enable_unified_memory": True}, "--enable-unified-memory with"),
    "linker": ({"enable_unified_cache_external_linker": True}, "--enable-unified-cache-external-linker"),
    "lmcache": ({"enable_lmcache": True}, "--enable-lmcache"),
    "flexkv": ({"enable_flexkv": True}, "--enable-flexkv"),
    "hisparse": ({"enable_hisparse": True}, "--enable-hisparse"),
    "backend": ({"radix_cache_backend": "mine"}, "--radix-cache-backend mine"),
    "sessions": ({"enable_session_radix_cache": True}, "--enable-session-radix-cache"),
    "streaming": ({"enable_streaming_session": True}, "--enable-streaming-session"),
    "pipeline": ({"pp_size": 2}, "pipeline parallel over 2 ranks"),
    "context": ({"attn_cp_size": 2}, "context parallel over 2 ranks"),
    "decode context": ({"attn_dcp_size": 4}, "decode context parallel over 4 ranks"),
}


@pytest.mark.parametrize("case", list(DECLINES))
def test_servers_that_keep_two_windows(case: str, settings: Any) -> None:
    settings.enable_hierarchical_cache = True
    assert own_window.one_window_reason_against() is None, "HiCache alone is no reason"
    changes, says = DECLINES[case]
    vars(settings).update(changes)
    reason = own_window.one_window_reason_against()
    assert reason is not None
    assert says in reason
    world = World()
    batch = crowd(world)
    assert own_window.window_of(world.cache, GEMMA) is None
    assert patching._outcomes["own_window"].state == "declined"
    assert patching._outcomes["own_window"].reason == reason
    assert own_window.one_window_reason_against() == f"own_window is declined ({reason})"
    world.occupy()
    assert not fits(batch)
    window_pressure.make_room(scheduler(world, waiting(40)), None, batch)
    window_pressure.unlock_after_step(None, batch)
    assert own_window.Counts() == own_window.COUNTS


def test_one_window_without_the_radix_cache_or_the_patch(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(patching._outcomes, "own_window")
    assert own_window.one_window_reason_against() == "own_window is not in this process"
    settings.disable_radix_cache = True
    assert own_window.one_window_reason_against() is None, "there is no tree that could hold the other"


def test_trees_that_are_not_sglang_s_two_pools() -> None:
    assert own_window.cache_problem(World().cache) is None
    tiered, ring, other = (World() for _ in range(3))
    tiered.cache.cache_controller = object()
    assert own_window.cache_problem(tiered.cache) is None, "HiCache"
    tiered.cache.enable_storage = True
    assert own_window.cache_problem(tiered.cache) == "the tree has a tier beside the device and the host"
    ring.allocator._swa_req_ring = True
    assert "not from a full and a sliding pool" in str(own_window.cache_problem(ring.cache))
    other.cache.components = {**other.cache.components, ComponentType.MAMBA: None}
    assert own_window.cache_problem(other.cache) == "the tree holds FULL, MAMBA, SWA, not full and sliding tokens"
    other.cache.__class__ = type("LMCacheUnifiedRadixCache", (UnifiedRadixCache,), {})
    assert own_window.cache_problem(other.cache) == "the prefix cache is a LMCacheUnifiedRadixCache"
