"""A greedy verify step's acceptance, and what the next step starts from, are one launch."""

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch

OURS = "sglang_gemma4.speculative.chain_acceptance"

PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_CHAIN",
    why="Behind a verify step's graph SGLang launches some ten small kernels, from two fills to the relay of lengths and tokens: 0.45 of "
    "the 3.2 ms that the host needs for a step of 26B-A4B, which bound steps of a few requests where the card is quick.",
    evidence="srt/speculative/eagle_utils.py:631-655, 845 · eagle_worker_common.py:702 · srt/managers/overlap_utils.py:662, 696 · "
    "runs/2026-11-29-26b-h200-int4-host (where the host is)",
    remove_when="SGLang accepts a chain inside the verify graph, as it does for DSpark.",
    uses=(uses.mtp, uses.kernels),
    unmeasured="steps of E2B and of 26B-A4B in 4 bits at batch 1 (tests/gpu/host_stages.py: host-e2b, lone-int4)",
    hooks=(
        Hook("sglang.srt.managers.overlap_utils.FutureMap.__init__", "after", f"{OURS}:relay_of", "d3ba5a033036"),
        Hook("sglang.srt.speculative.eagle_utils.eagle_sample", "around", f"{OURS}:sample", "b497c62acadc"),
        Hook("sglang.kernels.ops.speculative.eagle.prepare_verify_commit_outputs", "around", f"{OURS}:commit", "85acedeb2fe6"),
    ),
)
