"""A running request holds one sliding window: its prompt's goes when memory is short, or when its own has passed it."""

from sglang_gemma4.patching import Hook, Patch, uses

BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
OURS = "sglang_gemma4.memory.window_pressure"

PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="The radix tree keeps a prompt's last window locked until its request ends, beside the window of the request's own tokens: twice "
    "the sliding pool, then retractions. SGLANG_OPT_RELEASE_PREFILL_SWA counts steps, not tokens, and helps no answer below a window.",
    evidence="srt/managers/schedule_batch.py:994, 4103 · mem_cache/unified_radix_cache.py:1300 · H100 80 GB, 26B-A4B with MTP, "
    "64 x 1000/500: 15 retractions · tests/engine/test_one_window.py",
    remove_when="SGLang releases the part of a prompt's window that its request has passed.",
    uses=(uses.radix_cache,),
    hooks=(
        Hook(f"{BATCH}.check_decode_mem", "around", f"{OURS}:make_decode_fit", "e708e4c0db8f"),
        Hook(f"{BATCH}.maybe_evict_swa", "after", f"{OURS}:unlock_after_step", "7e8a3752672b"),
        Hook("sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw", "before", f"{OURS}:make_room", "66a87afb5990"),
    ),
)
