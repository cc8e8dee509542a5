"""A greedy verify step's acceptance, and what the next step starts from, are one launch."""

from sglang_gemma4.patching import Hook, Patch, uses

OURS = "sglang_gemma4.speculative.chain_acceptance"

PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_CHAIN",
    why="Behind a verify step's graph SGLang launches some ten small kernels, from two fills to the relay of lengths and tokens: 0.45 of "
    "the 3.2 ms that the host needs for a step of 26B-A4B, which bound steps of a few requests where the card is quick.",
    evidence="srt/speculative/eagle_utils.py:631-655, 845 · eagle_worker_common.py:702 · srt/managers/overlap_utils.py:662, 696 · "
    "runs/2026-11-29-26b-h200-int4-host (where the host is) · runs/2026-11-29-e2b-h200-lean, runs/2026-11-29-26b-h200-int4-lean (with "
    "slots_ahead; on that card's host one launch takes 76 µs, SGLang's with what makes their inputs 416)",
    remove_when="SGLang accepts a chain inside the verify graph, as it does for DSpark.",
    uses=(uses.mtp, uses.kernels),
    hooks=(
        Hook("sglang.srt.managers.overlap_utils.FutureMap.__init__", "after", f"{OURS}:relay_of", "d3ba5a033036"),
        Hook("sglang.srt.speculative.eagle_utils.eagle_sample", "around", f"{OURS}:sample", "b497c62acadc"),
        Hook("sglang.kernels.ops.speculative.eagle.prepare_verify_commit_outputs", "around", f"{OURS}:commit", "85acedeb2fe6"),
    ),
)
