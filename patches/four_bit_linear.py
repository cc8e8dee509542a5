"""If asked for, 4-bit dense weights stay as loaded: our kernel reads them for few rows, cuBLAS multiplies many, no Marlin."""

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch

OURS = "sglang_gemma4.models.layers.four_bit_layers"
SCHEME = "sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_wNa16.CompressedTensorsWNA16"

PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="Marlin is one launch a product with the activation in another, waits for the whole launch before it, and takes nvcc four minutes "
    "in a first start; its matrix instructions are those before Hopper.",
    evidence="runs/2026-11-25-26b-h100-int4 (a verify step of one request takes 7.06 ms in 4 bits, 6.76 in bfloat16) · "
    "compressed_tensors_wNa16.py:200-275 · not measured: python -m tests.gpu.quant_stages FOLDER quant-tests linear-int4 int4-dense",
    remove_when="SGLang reads 4-bit weights of few rows at the card's copy speed, and many on wgmma.",
    uses=(uses.quantised, uses.four_bit_rows, uses.kernels),
    hooks=(
        Hook(f"{SCHEME}.create_weights", "after", f"{OURS}:keep", "819dc23b38c6"),
        Hook(f"{SCHEME}.process_weights_after_loading", "around", f"{OURS}:finish", "092982519302"),
        Hook(f"{SCHEME}.apply_weights", "around", f"{OURS}:multiply", "acddd22a9ab7"),
    ),
)
