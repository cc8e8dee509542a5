"""On a card the experts compute gelu by tanh, as the config says; stock by erf."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, uses


def take_tanh(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name."""
    from sglang_gemma4.models.layers.expert_activation import use_tanh_gelu

    problem = use_tanh_gelu(moe.experts, config.hidden_activation)
    if problem is not None:
        decline("expert_gelu", f"the experts keep SGLang's gelu: {problem}")


PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="Stock names the experts' activation gelu, which its CUDA kernels compute by erf; the config and transformers say tanh.",
    evidence="srt/models/gemma4_causal.py:236 · srt/layers/moe/moe_runner/triton_utils/fused_moe.py:836-858 (gelu_tanh is there) · its "
    "kernels were compared under an interpreter; `crash_repro/expert_gelu.py` has not run on a card yet",
    remove_when="Gemma4MoE passes its config's activation on.",
    uses=(uses.moe, uses.kernels),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4MoE.__init__", "after", take_tanh, "a63fb2abba48"),),
)
