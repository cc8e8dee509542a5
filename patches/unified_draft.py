"""MTP runs on SGLang's unified memory, whose split between full and sliding layers moves with the load."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, resolution_step, switches, uses

CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"
OURS = "sglang_gemma4.speculative.unified_pool"
STEP = "handle_unified_memory_pool"


def accept_draft(server_args: Any, previous: Callable[[Any], None]) -> None:
    """See ``unified_pool.accept_draft``; a command line ends with the message alone."""
    from sglang_gemma4.diagnostics.mtp_limits import CPU_BACKENDS
    from sglang_gemma4.patches.preflight import one_line
    from sglang_gemma4.speculative import unified_pool

    with one_line():
        unified_pool.accept_draft(server_args, previous, CPU_BACKENDS if switches.is_on(switches.CPU_ENGINE) else ())


PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_VIEWS",
    why="Stock refuses FROZEN_KV_MTP with --enable-unified-memory, and would give the draft, which owns no KV, a pool as large as the "
    "virtual space and virtual slots for physical ones.",
    evidence="srt/arg_groups/kv_cache_hook.py:588 · mem_cache/kv_cache_configurator.py:1413 (refused), 701 (its pool) · "
    "mem_cache/kv_index_translator.py:138 · crash_repro/unified_memory.py",
    remove_when="SGLang's unified memory takes FROZEN_KV_MTP.",
    uses=(uses.mtp, uses.unified_memory),
    hooks=(
        resolution_step(STEP, accept_draft),
        Hook(f"{CONFIGURATOR}._fused_draft_decision", "around", f"{OURS}:nothing_fused", "eb756d41c49a"),
        Hook(f"{CONFIGURATOR}._fused_draft_for_swa_factory", "around", f"{OURS}:no_placement", "d52bffb8a775"),
        Hook(f"{CONFIGURATOR}._init_pools", "around", f"{OURS}:own_small_pool", "62699bb38a23"),
        Hook(f"{WORKER}.alloc_memory_pool", "after", f"{OURS}:translate_as_target", "e8840b2af3a4"),
    ),
)
