"""A prompt whose prefix comes back from the host is admitted only where its window and its new tokens both fit."""

from sglang_gemma4.patching import Hook, Patch, uses

PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="HiCache locks the part of a prompt's window that is on the card as it reads the rest from the host; admission has counted it as "
    "evictable, so the prompt's new tokens find no slot and the server ends with 'Out of memory'.",
    evidence="srt/managers/schedule_policy.py:1430-1440 · mem_cache/prefill_budget.py:230 · mem_cache/unified_radix_cache.py:1832 · "
    "crash_repro/host_hits.py",
    remove_when="PrefillAdder.add_one_req locks best_match_node while it selects an admission.",
    uses=(uses.host_cache,),
    hooks=(
        Hook(
            "sglang.srt.managers.schedule_policy.PrefillAdder._select_prefill_admission",
            "around",
            "sglang_gemma4.memory.host_hits:with_its_window_locked",
            "3833a5a43c97",
        ),
    ),
)
