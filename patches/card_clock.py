"""Steps by whose times prompts go beside running requests are timed by the card, not as the host reads results."""

from sglang_gemma4.patching import Hook, Patch, uses

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

PATCH = Patch(
    switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
    why="The host reads a step late while it launches a long eager prefill, and the step after seems short: chunks are then chosen by "
    "times that cannot be.",
    evidence="8,192 tokens of 26B-A4B took an H200 146 ms in 4 bits and 120 in bfloat16, by the host's clock 51 "
    "(runs/2026-11-29-26b-h200-int4-gaps, -gaps); with the gaps that right times allow 30 long prompts have 1.17 times the tokens/s in "
    "bfloat16, a burst of 32 1.06, a mix 1.01 times (runs/2026-11-29-26b-h200-auto)",
    remove_when="prefill_beside is removed.",
    uses=(uses.joined_steps,),
    hooks=(Hook(f"{SCHEDULER}.init_overlap", "after", "sglang_gemma4.speculative.step_clock:use_card", "06f2eebcd7a9"),),
)
