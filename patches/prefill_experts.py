"""On Hopper, the experts of a prefill chunk in three launches after the rows are aligned; 4-bit ones written out first."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def take_many(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name."""
    from sglang_gemma4.models.layers import expert_layers

    expert_layers.take_many(moe.experts, config.hidden_activation)


PATCH = Patch(
    switch="SGLANG_GEMMA4_EXPERTS",
    why="Stock writes gate and up to memory and reads them back, gathers the second product's rows, and pads each expert's last block.",
    evidence="srt/layers/moe/moe_runner/triton_utils/fused_moe.py:520-970 · runs/2026-11-23-prefill-expert-tiles · H200, 26B-A4B, against "
    "the package without it: with slower tiles than today's a prompt of 8,000 tokens takes 6.5 % less time, eight 5.0 % (five "
    "repetitions), runs/2026-11-23-26b-prefill-experts; with today's, 30 prompts of 7,000 are at least 4 % faster, "
    "runs/2026-11-23-26b-prefill · 4-bit experts: 30 prompts of 7,000 tokens take 7.1 s on an H200, 30.9 with stock's kernel, "
    "runs/2026-11-26-26b-h200-int4-serve",
    remove_when="SGLang's fused MoE applies gelu in its first GEMM's epilogue and loads 16-bit rows through descriptors in its second.",
    uses=(uses.moe, uses.hopper, uses.any_batch),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4MoE.__init__", "after", take_many, "a63fb2abba48"),),
)
