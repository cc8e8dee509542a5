"""The experts at 32 to 320 tokens in four launches, the activation in the first product."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def take_groups(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name."""
    from sglang_gemma4.models.layers import expert_layers

    expert_layers.take_groups(moe.experts, config.hidden_activation)


PATCH = Patch(
    switch="SGLANG_GEMMA4_EXPERTS",
    why="Stock takes six launches and writes gate and up to memory and reads them back; a verify step of 80 requests has 320 tokens.",
    evidence="srt/layers/moe/moe_runner/triton_utils/fused_moe.py:520-970 · runs/2026-11-21-26b-stock-steps (decode) · the kernels alone "
    "2 to 5 % faster, runs/2026-11-22-kernel-times · H200, MTP steps against the package without it: 2.6 and 3.4 % shorter at batch 8 and "
    "32, 1.5 % at 64 (ranges of three repetitions overlap), runs/2026-11-23-26b-pieces",
    remove_when="SGLang's fused MoE applies gelu in its first GEMM's epilogue, as SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED does silu.",
    uses=(uses.moe, uses.kernels, uses.any_batch),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4MoE.__init__", "after", take_groups, "a63fb2abba48"),),
)
