"""Under speculation an answer ends at the earliest stop; stock returns text past it."""

from sglang_gemma4.patching import Hook, Patch, uses

REQUEST = "sglang.srt.managers.schedule_batch.Req"

PATCH = Patch(
    switch="SGLANG_GEMMA4_VERIFY_RULES",
    why="In an accepted run stock asks stop strings before stop tokens, each in the order given: text past an earlier stop is returned.",
    evidence="srt/managers/schedule_batch.py:2023-2036, 1920 · tests/engine/test_mtp_lifecycle.py",
    remove_when="SGLang ends an accepted run at the earliest stop in it.",
    uses=(uses.speculation,),
    hooks=(Hook(f"{REQUEST}.update_finish_state", "around", "sglang_gemma4.speculative.stops:token_by_token", "4a560c4925da"),),
)
