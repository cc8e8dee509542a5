"""Which servers keep one window for a request, and what they say that do not."""

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_gemma4 import patching
from sglang_gemma4.memory import own_window, window_pressure
from tests.harness.inputs.radix_world import GEMMA, WINDOW, World
from tests.harness.inputs.window_case import crowd, fits, plain_server, scheduler, waiting


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    return plain_server(monkeypatch)


def state() -> str:
    return patching.declare._outcomes[own_window.NAME].state


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
    assert patching.declare._outcomes["own_window"].state == "declined"
    assert patching.declare._outcomes["own_window"].reason == reason
    assert own_window.one_window_reason_against() == f"own_window is declined ({reason})"
    world.occupy()
    assert not fits(batch)
    window_pressure.make_room(scheduler(world, waiting(40)), None, batch)
    window_pressure.unlock_after_step(None, batch)
    assert own_window.Counts() == own_window.COUNTS


def test_one_window_without_the_radix_cache_or_the_patch(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(patching.declare._outcomes, "own_window")
    assert own_window.one_window_reason_against() == "own_window is not in this process"
    settings.disable_radix_cache = True
    assert own_window.one_window_reason_against() is None, "there is no tree that could hold the other"


def test_trees_that_are_not_sglang_s_two_pools() -> None:
    assert own_window.reason_against_cache(World().cache) is None
    tiered, ring, other = (World() for _ in range(3))
    tiered.cache.cache_controller = object()
    assert own_window.reason_against_cache(tiered.cache) is None, "HiCache"
    tiered.cache.enable_storage = True
    assert own_window.reason_against_cache(tiered.cache) == "the tree has a tier beside the device and the host"
    ring.allocator._swa_req_ring = True
    assert "not from a full and a sliding pool" in str(own_window.reason_against_cache(ring.cache))
    other.cache.components = {**other.cache.components, ComponentType.MAMBA: None}
    assert own_window.reason_against_cache(other.cache) == "the tree holds FULL, MAMBA, SWA, not full and sliding tokens"
    other.cache.__class__ = type("LMCacheUnifiedRadixCache", (UnifiedRadixCache,), {})
    assert own_window.reason_against_cache(other.cache) == "the prefix cache is a LMCacheUnifiedRadixCache"
