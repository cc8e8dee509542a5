"""4-bit dense weights stay as loaded: our kernel reads them for few rows, cuBLAS multiplies many, no Marlin."""

from sglang_gemma4.patching import Hook, Patch, uses

OURS = "sglang_gemma4.models.layers.four_bit_layers"
SCHEME = "sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_wNa16.CompressedTensorsWNA16"

PATCH = Patch(
    switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
    why="Marlin is one launch a product with the activation in another, waits for the whole launch before it, and takes nvcc four minutes "
    "in a first start; its matrix instructions are those before Hopper.",
    evidence="compressed_tensors_wNa16.py:200-275 · H200, 26B-A4B, MTP steps at batch 1, 8, 32, 80: 4.29, 8.94, 14.43, 22.11 ms for "
    "Marlin's 4.59, 9.53, 14.63, 22.20, prefills of 32 and 80 requests 0.73 of its time, runs/2026-11-26-26b-h200-int4",
    remove_when="SGLang reads 4-bit weights of few rows at the card's copy speed, and many on wgmma.",
    uses=(uses.four_bits, uses.four_bit_rows, uses.kernels),
    hooks=(
        Hook(f"{SCHEME}.create_weights", "after", f"{OURS}:keep", "819dc23b38c6"),
        Hook(f"{SCHEME}.process_weights_after_loading", "around", f"{OURS}:finish", "092982519302"),
        Hook(f"{SCHEME}.apply_weights", "around", f"{OURS}:multiply", "acddd22a9ab7"),
    ),
)
