"""The gate of a layer's per-layer embedding is one launch with the norm before it, for a few rows."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch, decline


def add_gates(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``."""
    import torch
    from triton import knobs

    if not torch.cuda.is_available() and not knobs.runtime.interpret:
        decline("ple_gate", "there is no CUDA card")
        return
    from sglang_gemma4 import switches

    if not switches.part_is_on("ple_tail", PATCH.switch):
        decline("ple_gate", "ple_tail, of which it is a part, is off")
        return
    from sglang_gemma4.models.layers.embedding_gate import install

    install(model)


PATCH = Patch(
    switch="SGLANG_GEMMA4_NORMS",
    why="A gate of 256 outputs, the norm before it and the product behind it are three launches in each of 35 or 42 layers.",
    evidence="srt/models/gemma4_causal.py:815-834 · E4B on an H200: nothing, 4.73 and 12.32 ms a step for 4.69 and 12.22 at batch 1 and "
    "80, runs/2026-11-26-e4b-h200-steps · E2B: the kernel alone 5.3 µs for three launches' 6.7 at 4 rows, no step timed",
    remove_when="SGLang fuses norm, gate and per-layer embedding.",
    uses=(uses.layer_embeddings, uses.kernels),
    unmeasured="E2B's step with and without (tests/gpu/curve_stages.py, steps-e2b); on E4B it buys nothing",
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", add_gates, "b7e9b394300f"),),
)
