"""After release and resume of memory nothing is missing that no checkpoint holds."""

from sglang_gemma4.patching import Hook, Patch, uses

MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
OURS = "sglang_gemma4.memory.released"

PATCH = Patch(
    switch="SGLANG_GEMMA4_WEIGHT_UPDATES",
    why="After a release and a resume stock has lost two constants of E2B's and E4B's per-layer embeddings, and every buffer of the MTP "
    "assistant that is not loaded again: counters that are not zero never end a launch, an order that is none reads out of bounds.",
    evidence="srt/models/gemma4_causal.py:920 · srt/managers/scheduler_components/weight_updater.py:371, 400 (the target's buffers) · "
    "crash_repro/released_memory.py",
    remove_when="SGLang keeps the draft's buffers too, and Gemma4TextModel's constants are buffers.",
    uses=(uses.memory_saver,),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", f"{OURS}:keep_constants", "b7e9b394300f"),
        Hook(f"{MANAGER}.release_memory_occupation", "around", f"{OURS}:release", "ca8fd1908a79"),
        Hook(f"{MANAGER}.resume_memory_occupation", "around", f"{OURS}:resume", "363929aa4d9e"),
    ),
)
