"""KV gets back what image features on the card take of it, out of the memory that is kept beside weights and KV."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, idle, tell, uses

NAME = "feature_memory"
CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"


def give_back(found: int, kvc: Any, pre_model_load_memory: float) -> int:
    """After ``_profile_available_bytes``, which says how many bytes KV may have; ``pre_model_load_memory`` is in GiB."""
    if kvc.is_draft_worker or not type(kvc.model).__name__.startswith("Gemma4"):
        return found
    from sglang_gemma4.memory import feature_memory

    if not feature_memory.features_on_card(kvc):
        idle(NAME, "image features take none of the card's memory")
        return found
    problem = feature_memory.reason_against(kvc.server_args)
    if problem is not None:
        decline(NAME, problem)
        return found
    added, said = feature_memory.of_server(kvc, pre_model_load_memory * 2**30)
    tell(NAME, said)
    return int(found + added)


PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="With image features on the card KV had 2.3 GiB fewer than stock's at the same --mem-fraction-static (14.5 for 16.8 on an H100 at "
    "0.85): their pool and its process' context are there before the weights, and SGLang keeps the pool's bytes out of KV once more.",
    evidence="srt/mem_cache/kv_cache_configurator.py:202, 3007-3038 · entrypoints/engine.py:1339 · runs/2026-11-28-26b-h100-cells: 62,004 "
    "sliding tokens ran 100 requests of 500 + 300 at once, stock's 72,108 ran 112 · what stays is more than the 7.7 GiB with which "
    "runs/2026-11-26-26b-h100-peer passed at 0.9",
    remove_when="SGLang counts memory that another of its processes holds as taken.",
    uses=(uses.images, uses.kernels),
    hooks=(
        Hook("sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._profile_available_bytes", "after", give_back, "9dee439ccf67"),
    ),
)
