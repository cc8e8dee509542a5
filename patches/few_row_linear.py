"""Dense products of up to 16 rows read the weight once, in one launch, with the FFN's activation inside."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, takes, uses


def replace_products(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__`` and ``Gemma4AssistantForCausalLM.__init__``."""
    import torch
    from triton import knobs

    if not torch.cuda.is_available() and not knobs.runtime.interpret:
        decline("few_row_linear", "there is no CUDA card")
        return
    from sglang.srt.runtime_context import get_exec

    if get_exec().deterministic.enable_deterministic_inference:  # the mode itself begins after the model is built
        decline("few_row_linear", "--enable-deterministic-inference: a row's product must not depend on how many rows there are")
        return
    from sglang_gemma4.models.layers.few_row_linear import install
    from sglang_gemma4.models.schedule import dense_beside_experts
    from sglang_gemma4.patching import switches

    overlap = switches.part_is_on("dense_beside_experts", "SGLANG_GEMMA4_DENSE_OVERLAP") and dense_beside_experts.problem_here() is None
    for kept in install(model, overlap):
        takes("few_row_linear", f"SGLang's product for {kept}")


PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="At a few rows cuBLAS takes 1.6 to 2 times what reading the weights takes, with a second launch to add up what it split.",
    evidence="runs/2026-11-22-26b-kernels-steps (batch 1: 2.2 ms of products, 117 splitKreduce launches) · a layer of 26B-A4B alone on an "
    "H200 takes 86 µs at one token, 93 with cuBLAS, about 148 for 156 at 4 (Triton 3.6), runs/2026-11-23-26b-layer-chain · of "
    "E4B 84 for 94 at 4 rows, 95 for 103 at 32, of E2B 58 for 69, of 31B 262 for 267, runs/2026-11-26-dense-layers · no engine without it "
    "was timed since",
    remove_when="SGLang's products of 1 to 16 rows reach the bandwidth of the card.",
    uses=(uses.kernels, uses.any_batch),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", replace_products, "b7e9b394300f"),
        Hook("sglang.srt.models.gemma4_mtp.Gemma4AssistantForCausalLM.__init__", "after", replace_products, "d2752d6ad1a9"),
    ),
)
