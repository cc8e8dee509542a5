"""Experts of 4-bit checkpoints compute Gemma 4's gelu, through SGLang's Triton kernel."""

from sglang_gemma4.patching import Hook, Patch, uses

OURS = "sglang_gemma4.models.layers.expert_activation"
COMPRESSED = "sglang.srt.layers.quantization.compressed_tensors"
TRITON = f"{COMPRESSED}.schemes.compressed_tensors_wNa16_moe.CompressedTensorsWNA16TritonMoE"

PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="Stock takes Marlin for 4-bit experts, which has silu only, and its Triton scheme asserts silu before a runner that knows gelu: "
    "the first batch ends the server. It leaves out zero points, which its kernel takes.",
    evidence="compressed_tensors_wNa16_moe.py:454, 558 · moe_runner/marlin.py:143 · moe_runner/triton_utils/fused_moe.py:836 · "
    "crash_repro/quantised_experts.py, quantised_zero_points.py",
    remove_when="CompressedTensorsWNA16MoE and its Triton form take gelu_tanh.",
    uses=(uses.quantised, uses.moe),
    hooks=(
        Hook(f"{COMPRESSED}.compressed_tensors.CompressedTensorsConfig.get_moe_scheme", "after", f"{OURS}:for_gelu", "26902f87c61d"),
        Hook(f"{TRITON}.apply_weights", "around", f"{OURS}:run_gelu", "227e3eb5aead"),
        Hook(f"{TRITON}.process_weights_after_loading", "after", f"{OURS}:finish_zeros", "5ba1ee0a28bc"),
        Hook(f"{TRITON}.get_triton_quant_info", "after", f"{OURS}:with_zeros", "c45a2bd36a17"),
    ),
)
