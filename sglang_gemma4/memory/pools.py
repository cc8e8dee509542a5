"""Hooks for the KV pools: sizes, refused and retracted requests, and checks at the start."""

import logging
from collections.abc import Callable
from typing import Any

from sglang_gemma4.memory import bound
from sglang_gemma4.patching import decline, idle, switches, tell

NAME = "feature_memory"


def give_back(found: int, kvc: Any, pre_model_load_memory: float) -> int:
    """After ``_profile_available_bytes``, which returns KV's bytes: add what features give back.

    ``pre_model_load_memory`` is in GiB.
    """
    if kvc.is_draft_worker or not type(kvc.model).__name__.startswith("Gemma4"):
        return found
    from sglang_gemma4.memory import feature_memory

    if not feature_memory.features_on_card(kvc):
        idle(NAME, "image features take none of the GPU's memory")
        return found
    problem = feature_memory.reason_against(kvc.server_args)
    if problem is not None:
        decline(NAME, problem)
        return found
    added, said = feature_memory.of_server(kvc, pre_model_load_memory * 2**30)
    tell(NAME, said)
    return int(found + added)


logger = logging.getLogger(__name__)


def prefer_ratio(server_args: Any, hf_config: Any) -> dict[str, Any]:
    """A provider for SGLang's model-override registry; returns the fields to set: ``swa_full_tokens_ratio`` or none."""
    from sglang.srt.arg_groups.model_override_base import resolving_view

    from sglang_gemma4.memory import swa_ratio

    given = resolving_view(server_args)
    text = getattr(hf_config, "text_config", hf_config)
    choice = swa_ratio.choose(text, given.swa_full_tokens_ratio, given.max_total_tokens, given.page_size, given.chunked_prefill_size)
    by_window = switches.part_is_on("swa_sizing", "SGLANG_GEMMA4_POOL_SIZES") and given.swa_full_tokens_ratio is None
    logger.info("sglang-gemma4: %s%s", choice.why, "; where swa_sizing does not size the pools" if by_window else "")
    return {} if choice.ratio is None else {"swa_full_tokens_ratio": choice.ratio}


def with_ours(architecture: str) -> list[Any]:
    """SGLang's providers for this architecture, with ours."""
    from sglang.srt.arg_groups.overrides import _MODEL_OVERRIDE_FNS

    return [*_MODEL_OVERRIDE_FNS.get(architecture, ()), prefer_ratio]


def size_by_window(original: Callable[[Any], Any], kvc: Any) -> Any:
    """Our configurator for a hybrid Gemma 4 target, SGLang's for every other model."""
    made = original(kvc)
    if kvc.is_draft_worker or type(made).__name__ != "HybridSWAPoolConfigurator" or not type(kvc.model).__name__.startswith("Gemma4"):
        return made
    from sglang_gemma4.memory import pool_configurator

    reason = pool_configurator.reason_against(kvc)
    if reason:
        decline("swa_sizing", reason)
        return made
    idle("swa_ratio", "swa_sizing sizes the pools")
    return pool_configurator.WindowAwarePoolConfigurator(kvc)


def note_refusal(result: Any, adder: Any, req: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``PrefillAdder.add_one_req``: if tokens are missing, record in which pool."""
    if result.name != "NO_TOKEN":
        return
    budget = adder.memory_budget
    if type(budget).__name__ != "SWAPrefillBudget":
        return
    from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS

    admitted = bool(adder.can_run_list) and adder.can_run_list[-1] is req
    needed = 1 if admitted else len(req.full_untruncated_fill_ids) - req.prefix_len
    needed += 0 if admitted else min(max(0, req.sampling_params.max_new_tokens - len(req.output_ids)), CLIP_MAX_NEW_TOKENS)
    short_of_full = needed >= min(budget.remaining_total, budget.remaining_current)
    if not short_of_full and admitted and budget.remaining_swa > 0:
        return  # a chunk was full, not a pool
    bound.refused("full" if short_of_full else "sliding")


def note_retraction(batch: Any) -> None:
    """Before ``ScheduleBatch.retract_decode``: record the pool with the fewest free and evictable tokens."""
    allocator, tree = batch.token_to_kv_pool_allocator, batch.tree_cache
    if hasattr(allocator, "swa_available_size") and not _one_pool():
        full = allocator.full_available_size() + tree.full_evictable_size()
        sliding = allocator.swa_available_size() + tree.swa_evictable_size()
        bound.retracted("full" if full < sliding else "sliding")


def _one_pool() -> bool:
    """Whether full and sliding layers share one memory. If so, no other split would hold more requests."""
    from sglang.srt.runtime_context import get_memory

    return bool(get_memory().enable_unified_memory)


def look(_result: object, reporter: Any, *_args: Any, **_kwargs: Any) -> None:
    """After SGLang has reported a step: sample the queue."""
    if reporter.scheduler.is_hybrid_swa and not _one_pool():
        bound.sample(reporter.scheduler)


pool_checks_logger = logging.getLogger(__name__)


def check_pool(config: Any, kvc: Any, _pre_model_load_memory: Any) -> None:
    """After the pools were sized and before they are allocated: check that they hold the requests that are accepted."""
    if kvc.is_draft_worker or not type(kvc.model).__name__.startswith("Gemma4"):
        return
    from sglang_gemma4.memory import pool_checks

    if config.swa_max_total_num_tokens:
        # SWARequestCapPoolConfigurator does not round --max-total-tokens to pages. The idle server would then count the
        # rest of a page as lost, and end.
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
        pool_checks_logger.warning("sglang-gemma4: %s", found)
