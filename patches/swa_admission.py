"""A prefill is admitted only into sliding-pool tokens that running requests will not take."""

from sglang_gemma4.patching import Hook, Patch

OURS = "sglang_gemma4.memory.swa_admission"
BUDGET = "sglang.srt.mem_cache.prefill_budget.SWAPrefillBudget"

PATCH = Patch(
    switch="SGLANG_GEMMA4_SWA_ADMISSION",
    why="Stock reserves nothing of the sliding pool for running requests and charges a new one its window alone: it admits too many, then "
    "retracts and prefills them again.",
    evidence="srt/managers/schedule_policy.py:673 (total_offset only) · mem_cache/prefill_budget.py:102 (swa_offset = 0), :52 · off: "
    "waiting takes 10 to 13 % more decode steps than retracting and prefilling again (runs/2026-11-27-admission-loads)",
    remove_when="PrefillAdder offsets swa_offset by what running requests will take.",
    hooks=(
        Hook("sglang.srt.managers.schedule_policy.PrefillAdder.__init__", "after", f"{OURS}:reserve_growth", "901ca00e6d44"),
        Hook(f"{BUDGET}.swa_tokens", "after", f"{OURS}:charge_whole", "eb3e7672cf8e"),
    ),
)
