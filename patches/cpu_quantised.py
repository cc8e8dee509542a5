"""Quantised checkpoints are served in float32 on a CPU too."""

from sglang_gemma4.patching import Hook, Patch

COMPRESSED = "sglang.srt.layers.quantization.compressed_tensors.compressed_tensors"
FP8 = "sglang.srt.layers.quantization.fp8"
OURS = "sglang_gemma4.cpu.quantised"

PATCH = Patch(
    switch="SGLANG_GEMMA4_CPU",
    why="SGLang's quantised products are kernels of a card (or of AMX); the CPU reference engine has none of them.",
    evidence="srt/layers/quantization/compressed_tensors/compressed_tensors.py:421 (asks CUDA for its capability) · fp8.py, "
    "process_weights_after_loading",
    remove_when="SGLang serves fp8 and 4-bit checkpoints on a CPU without AMX.",
    hooks=(
        Hook(f"{COMPRESSED}.CompressedTensorsConfig.get_supported_act_dtypes", "around", f"{OURS}:every_dtype", "02264000d645"),
        Hook(f"{FP8}.Fp8Config.get_supported_act_dtypes", "around", f"{OURS}:every_dtype", "df0cbd92d79f"),
        Hook(f"{COMPRESSED}.CompressedTensorsConfig._check_scheme_supported", "around", f"{OURS}:no_card_needed", "ccfe3006a1fb"),
        Hook(
            f"{COMPRESSED}.CompressedTensorsLinearMethod.process_weights_after_loading",
            "around",
            f"{OURS}:linear_of_checkpoint",
            "754a8cf0a7f1",
        ),
        Hook(
            f"{COMPRESSED}.CompressedTensorsFusedMoEMethod.process_weights_after_loading",
            "around",
            f"{OURS}:experts_of_checkpoint",
            "754a8cf0a7f1",
        ),
        Hook(f"{FP8}.Fp8LinearMethod.process_weights_after_loading", "around", f"{OURS}:linear_at_load", "563f9d4c091e"),
        Hook(f"{FP8}.Fp8MoEMethod.process_weights_after_loading", "around", f"{OURS}:experts_at_load", "a8dff95e2ddc"),
    ),
    cpu_engine=True,
)
