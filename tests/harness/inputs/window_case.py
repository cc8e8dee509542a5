"""What tests of a running request's window share: a plain server's settings, prompts, batches and a scheduler that waits."""

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import ScheduleBatch

from sglang_gemma4 import patching
from sglang_gemma4.memory import own_window, window_nodes, window_pressure
from tests.harness.inputs.radix_world import GEMMA, World

PROMPT = list(range(100, 140))
TURN = list(range(300, 308))

PLAIN = {
    "disaggregation_mode": "null", "disable_radix_cache": False, "enable_unified_memory": False, "enable_hierarchical_cache": False,
    "enable_unified_cache_external_linker": False, "enable_lmcache": False, "enable_flexkv": False, "enable_hisparse": False,
    "radix_cache_backend": None, "enable_session_radix_cache": False, "enable_streaming_session": False, "speculative_algorithm": None,
    "hicache_storage_backend": None, "hicache_host_memory_mode": "cache",
    "pp_size": 1, "attn_cp_size": 1, "attn_dcp_size": 1,
}  # fmt: skip


def plain_server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's resolved arguments, those of a plain server; a test may change them."""
    found = SimpleNamespace(**PLAIN)
    for name in ("get_memory", "get_disagg", "get_serving", "get_parallel", "get_spec"):
        monkeypatch.setattr(f"sglang.srt.runtime_context.{name}", lambda: found)
    monkeypatch.setenv("SGLANG_SWA_EVICTION_INTERVAL", "8")
    monkeypatch.setitem(patching.declare._outcomes, own_window.NAME, patching.Outcome(own_window.NAME, "", "", "active"))
    monkeypatch.setattr(own_window, "COUNTS", own_window.Counts())
    monkeypatch.setattr(window_pressure, "COUNTS", own_window.COUNTS)
    return found


def answer(req: Any) -> list[int]:
    """What the tree keeps of it: the last token has no KV."""
    return list(req.output_ids[:-1])


def take(world: World, req: Any) -> int:
    taken = window_nodes.give_back(world.cache, req)
    world.sums()
    assert world.reads(req)
    return taken


def fits(batch: Any) -> bool:
    return window_pressure.make_decode_fit(ScheduleBatch.check_decode_mem, batch)


def crowd(world: World, requests: int = 4) -> Any:
    """Requests with prompts of their own, the last one with most decoded; the batch of them all."""
    for number in range(requests):
        world.decode(world.prefill([900 + number, *PROMPT]), 5 + number)
    return world.batch()


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
