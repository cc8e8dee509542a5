"""Gemma 4's experts at 1,024 tokens and more: the activation in the first product, both products through tensor descriptors."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch


def take_many(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name."""
    from sglang_gemma4.models.layers import expert_layers

    expert_layers.take_many(moe.experts, config.hidden_activation)


PATCH = Patch(
    name="prefill_experts",
    switch="SGLANG_GEMMA4_PREFILL_EXPERTS",
    why="Stock writes gate and up to memory and reads them back, gathers the second product's rows, and pads each expert's last block.",
    evidence="srt/layers/moe/moe_runner/triton_utils/fused_moe.py:520-970 · runs/2026-11-23-prefill-expert-tiles",
    remove_when="SGLang's fused MoE applies gelu in its first GEMM's epilogue and loads 16-bit rows through descriptors in its second.",
    uses=(uses.moe, uses.hopper),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4MoE.__init__", "after", take_many, "a63fb2abba48"),),
)
