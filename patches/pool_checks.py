"""A pool too small for the --context-length or --swa-full-tokens-ratio asked for is refused; pools are whole pages."""

import logging
from typing import Any

from sglang_gemma4.patching import Hook, Patch

CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
logger = logging.getLogger(__name__)


def check_pool(config: Any, kvc: Any, _pre_model_load_memory: Any) -> None:
    """After the pools were sized and before they are allocated."""
    if kvc.is_draft_worker or not type(kvc.model).__name__.startswith("Gemma4"):
        return
    from sglang_gemma4.memory import pool_checks

    if config.swa_max_total_num_tokens:
        # SWARequestCapPoolConfigurator takes --max-total-tokens as it is; the idle server then misses the rest of a page, and ends.
        config.swa_max_total_num_tokens -= config.swa_max_total_num_tokens % kvc.page_size
    given = kvc.server_args
    tokens = kvc.logical_token_capacity(max_total_num_tokens=config.max_total_num_tokens)
    found = pool_checks.check(tokens, int(kvc.model_config.context_len), given.context_length, given.max_total_tokens)
    if config.swa_max_total_num_tokens and config.full_max_total_num_tokens and kvc.sliding_window_size:
        from sglang_gemma4.memory.pool_configurator import demand

        asks = demand(kvc)
        # Without chunks a whole prompt is in the sliding pool at once.
        per_request = asks.per_request if asks.chunk else max(asks.per_request, int(kvc.model_config.context_len))
        sliding = pool_checks.check_sliding(
            config.swa_max_total_num_tokens, config.full_max_total_num_tokens, per_request, given.swa_full_tokens_ratio
        )
        found = "; ".join(filter(None, (found, sliding)))
    if found:
        logger.warning("sglang-gemma4: %s", found)


PATCH = Patch(
    switch="SGLANG_GEMMA4_PREFLIGHT",
    why="Stock starts with a pool smaller than --context-length and refuses requests one by one.",
    evidence="srt/managers/scheduler.py:2731 (refused at admission) · kv_cache_configurator.py:3174 (no check) · "
    "model_executor/pool_configurator.py:1041 (no whole pages)",
    remove_when="SGLang compares its pools with the context length at start-up.",
    hooks=(Hook(f"{CONFIGURATOR}._resolve_memory_pool_config", "after", check_pool, "f54afd8616d9"),),
)
