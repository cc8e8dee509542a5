"""Steps by whose times prompts go beside running requests are timed by the card, not as the host reads results."""

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

PATCH = Patch(
    switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
    why="The host reads a step late while it launches a long eager prefill, and the step after seems short: chunks are then chosen by "
    "times that cannot be.",
    evidence="runs/2026-11-29-26b-h200-int4-chunks (8,192 tokens of 26B-A4B seemed to take an H200 25 ms; their products alone need 64)",
    remove_when="prefill_beside is removed.",
    uses=(uses.joined_steps,),
    unmeasured="a server's mix and bursts of 26B-A4B in bfloat16 and 4 bits (tests/gpu/quant_stages.py: int4-chunks-serve)",
    hooks=(Hook(f"{SCHEDULER}.init_overlap", "after", "sglang_gemma4.speculative.step_clock:use_card", "06f2eebcd7a9"),),
)
