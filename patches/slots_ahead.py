"""MTP allocates KV slots some steps ahead, so that most steps launch nothing for them."""

from sglang_gemma4.patching import Hook, Patch, uses

OURS = "sglang_gemma4.memory.slots_ahead"

PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_CHAIN",
    why="Before each MTP step SGLang allocates the two or three slots that the step before used up: two copies and some ten "
    "launches, while at batch 1 the card waits for the host.",
    evidence="srt/speculative/eagle_utils.py:857-921 · srt/mem_cache/allocation.py:780-848 · mem_cache/allocator/swa.py:273 · "
    "runs/2026-11-29-26b-h200-lone-int4 (no difference to steps of 26B-A4B in 4 bits at batch 1 and 4) · "
    "runs/2026-11-29-e2b-h200-lean (with chain_acceptance: what each does is not told apart)",
    remove_when="SGLang allocates slots for more than one step at a time.",
    uses=(uses.mtp,),
    unmeasured="E2B's steps, which the host bounds, beside chain_acceptance alone (tests/gpu/host_stages.py: host-e2b, lone-e2b)",
    hooks=(
        Hook("sglang.srt.speculative.eagle_utils.eagle_prepare_for_decode", "around", f"{OURS}:prepare", "a7054af5ba19"),
        Hook("sglang.srt.mem_cache.allocation_sizing.page_aligned_decode_alloc_lens", "around", f"{OURS}:lengths", "a55c85e84d75"),
    ),
)
