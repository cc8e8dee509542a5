"""The log says which KV pool holds requests back, and which sizes would have held more of them."""

from typing import Any

from sglang_gemma4.memory import bound
from sglang_gemma4.patching import Hook, Patch, uses

REPORTER = "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"


def note_refusal(result: Any, adder: Any, req: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``PrefillAdder.add_one_req``: if tokens are missing, those of which pool."""
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
    """Before ``ScheduleBatch.retract_decode``: the pool with the fewest tokens that can still be had."""
    allocator, tree = batch.token_to_kv_pool_allocator, batch.tree_cache
    if hasattr(allocator, "swa_available_size") and not _one_pool():
        full = allocator.full_available_size() + tree.full_evictable_size()
        sliding = allocator.swa_available_size() + tree.swa_evictable_size()
        bound.retracted("full" if full < sliding else "sliding")


def _one_pool() -> bool:
    """Whether both kinds of layers draw on the same memory: then no other split would hold more requests."""
    from sglang.srt.runtime_context import get_memory

    return bool(get_memory().enable_unified_memory)


def look(_result: object, reporter: Any, *_args: Any, **_kwargs: Any) -> None:
    """After SGLang has reported a step."""
    if reporter.scheduler.is_hybrid_swa and not _one_pool():
        bound.sample(reporter.scheduler)


PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="The split of the two pools is fixed at the start. SGLang's log and metrics tell how full each is, but not which one requests wait "
    "for, nor what other split would hold more of them.",
    evidence="srt/managers/schedule_policy.py:823 (a refusal names no pool) · schedule_batch.py:3451 · tests/engine/test_pool_bound.py",
    remove_when="SGLang's pools follow the load, or its log says which pool holds requests back.",
    uses=(uses.two_pools,),
    hooks=(
        Hook("sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req", "after", note_refusal, "194314fb5aba"),
        Hook("sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode", "before", note_retraction, "02ab71312420"),
        Hook(f"{REPORTER}.report_decode_stats", "after", look, "f8abd2780e7e"),
        Hook(f"{REPORTER}.report_prefill_stats", "after", look, "102fe5dea9cf"),
    ),
)
