"""A request that the KV pools can never hold is a 400 that says why; what they can hold is served to its end."""

from sglang_gemma4.patching import Hook, Patch

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
ALLOCATOR = "sglang.srt.mem_cache.allocator"
LIMIT = "sglang_gemma4.memory.request_limit"
END = "sglang_gemma4.memory.pool_end"

PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="With pages of more than one token stock never says that a prompt cannot fit: it answers with nothing, or lets it wait for ever "
    "and all others behind it. MTP's slots ahead are not counted: at the end of a pool its answers are lost with status 500.",
    evidence="srt/mem_cache/allocator/base.py:88-105 (never None) · managers/schedule_policy.py:951 (a page more) · "
    "managers/schedule_batch.py:3509 (the last request is aborted) · crash_repro/page_pool.py, mtp_pool_end.py · "
    "tests/engine/test_pool_limits.py",
    remove_when="SGLang refuses what its PrefillAdder can never admit, and counts what a speculative step allocates.",
    hooks=(
        Hook(
            f"{ALLOCATOR}.base.BaseTokenToKVPoolAllocator.max_new_tokens_for_memory", "around", f"{LIMIT}:most_new_tokens", "091d67254dd5"
        ),
        Hook(
            f"{ALLOCATOR}.unified_hybrid_swa.UnifiedSWATokenToKVPoolAllocator.max_new_tokens_for_memory",
            "around",
            f"{LIMIT}:most_new_tokens_of_both",
            "2560d021710a",
        ),
        Hook(f"{SCHEDULER}.get_init_info", "after", f"{LIMIT}:publish", "e9e7f8ba9a31"),
        Hook(f"{SCHEDULER}.init_req_max_new_tokens", "around", f"{LIMIT}:size_answer", "1abc60c57428"),
        Hook(f"{SCHEDULER}._add_request_to_queue", "around", f"{LIMIT}:turn_away", "7c44d6152a95"),
        Hook("sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request", "after", f"{LIMIT}:judge", "2ad77394d482"),
        Hook(f"{SCHEDULER}.update_running_batch", "around", f"{END}:decode", "423efd2207bc"),
        Hook("sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode", "around", f"{END}:retract", "02ab71312420"),
        Hook("sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req", "after", f"{END}:note_refused", "194314fb5aba"),
        Hook("sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req_ignore_eos", "around", f"{END}:admit_by_tokens", "e05a8317738b"),
        Hook("sglang.srt.mem_cache.prefill_budget.SWAPrefillBudget.swa_never_fits", "around", f"{END}:never_fits", "0b09aa306a50"),
        Hook("sglang.srt.mem_cache.prefill_budget.SWAPrefillBudget.check_prefill", "around", f"{END}:admit_whole", "7953568a2e48"),
        Hook(f"{SCHEDULER}._get_new_batch_prefill_raw", "after", f"{END}:end_a_standstill", "66a87afb5990"),
    ),
)
