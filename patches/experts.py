"""Experts of a mixture-of-experts layer."""

from sglang_gemma4.models import experts
from sglang_gemma4.patching import Part, Seam, uses

COMPRESSED = "sglang.srt.layers.quantization.compressed_tensors"
TRITON = f"{COMPRESSED}.schemes.compressed_tensors_wNa16_moe.CompressedTensorsWNA16TritonMoE"

PARTS = (
    Part(
        name="quantised_experts",
        does="Experts of 4-bit checkpoints compute Gemma 4's gelu, through SGLang's Triton kernel.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="Stock takes Marlin for 4-bit experts, which has silu only, and its Triton scheme asserts silu before a runner that knows "
        "gelu: the first batch ends the server. It leaves out zero points, which its kernel takes.",
        evidence="compressed_tensors_wNa16_moe.py:454, 558 · moe_runner/marlin.py:143 · moe_runner/triton_utils/fused_moe.py:836 · "
        "crash_repro/quantised_experts.py, quantised_zero_points.py",
        remove_when="CompressedTensorsWNA16MoE and its Triton form take gelu_tanh.",
        uses=(uses.quantised, uses.moe),
    ),
    Part(
        name="expert_gelu",
        does="On a card the experts compute gelu by tanh, as the config says; stock by erf.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="Stock names the experts' activation gelu, which its CUDA kernels compute by erf; the config and transformers say tanh.",
        evidence="srt/models/gemma4_causal.py:236 · srt/layers/moe/moe_runner/triton_utils/fused_moe.py:836-858 (gelu_tanh is there) "
        "· its kernels were compared under an interpreter; `crash_repro/expert_gelu.py` has not run on a card yet",
        remove_when="Gemma4MoE passes its config's activation on.",
        uses=(uses.moe, uses.kernels),
    ),
    Part(
        name="moe_tiles",
        does="The experts' products take tiles measured on this card for prefill chunks; SGLANG_MOE_CONFIG_DIR stands.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="SGLang's tiles for this shape end at 1,024 tokens: a prefill chunk of 8,192 takes twice its floor, 240 of 620 ms for 32k "
        "tokens.",
        evidence="srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0 · runs/2026-11-21-26b-stock-steps (prefill, batch 32) · "
        "H200, 26B-A4B, prefill of 8 to 64 requests: 6 to 9 % shorter than with SGLang's tiles in this package, two repetitions, stock "
        "not measured, runs/2026-11-22-26b-experts · `sglang-gemma4 tune-moe` makes tiles for another card",
        remove_when="SGLang ships tiles for E=128, N=704 measured beyond 1,024 tokens on this card.",
        uses=(uses.moe, uses.kernels, uses.any_batch),
    ),
    Part(
        name="grouped_experts",
        does="The experts at 32 to 320 tokens in four launches, the activation in the first product.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="Stock takes six launches and writes gate and up to memory and reads them back; a verify step of 80 requests has 320 tokens.",
        evidence="srt/layers/moe/moe_runner/triton_utils/fused_moe.py:520-970 · runs/2026-11-21-26b-stock-steps (decode) · the "
        "kernels alone 2 to 5 % faster, runs/2026-11-22-kernel-times · H200, MTP steps against the package without it: 2.6 and 3.4 % "
        "shorter at batch 8 and 32, 1.5 % at 64 (ranges of three repetitions overlap), runs/2026-11-23-26b-pieces",
        remove_when="SGLang's fused MoE applies gelu in its first GEMM's epilogue, as SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED does silu.",
        uses=(uses.moe, uses.kernels, uses.any_batch),
    ),
    Part(
        name="few_token_experts",
        does="Routing and experts at 1 to 16 tokens in three launches, where SGLang takes six.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="Stock takes six launches from the router's logits on: 36 µs a layer at batch 1; reading the weights takes 22.",
        evidence="runs/2026-11-21-26b-stock-steps (decode, batch 1: align, activation, sum) · the kernels alone 5 to 7 % faster on an "
        "H200, runs/2026-11-23-few-token-experts · 26B-A4B's MTP steps 1.5 % shorter at batch 1, three passes beside stock, "
        "runs/2026-11-23-26b-few-tokens",
        remove_when="SGLang's fused MoE reaches the floor at one token.",
        uses=(uses.moe, uses.kernels, uses.any_batch),
    ),
    Part(
        name="prefill_experts",
        does="On Hopper, the experts of a prefill chunk in three launches after the rows are aligned; 4-bit ones written out first.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="Stock writes gate and up to memory and reads them back, gathers the second product's rows, and pads each expert's last block.",
        evidence="srt/layers/moe/moe_runner/triton_utils/fused_moe.py:520-970 · runs/2026-11-23-prefill-expert-tiles · H200, 26B-A4B, "
        "against the package without it: with slower tiles than today's a prompt of 8,000 tokens takes 6.5 % less time, eight 5.0 % "
        "(five repetitions), runs/2026-11-23-26b-prefill-experts; with today's, 30 prompts of 7,000 are at least 4 % faster, "
        "runs/2026-11-23-26b-prefill · 4-bit experts: 30 prompts of 7,000 tokens take 7.1 s on an H200, 30.9 with stock's kernel, "
        "runs/2026-11-26-26b-h200-int4-serve",
        remove_when="SGLang's fused MoE applies gelu in its first GEMM's epilogue and loads 16-bit rows through descriptors in its second.",
        uses=(uses.moe, uses.hopper, uses.any_batch),
    ),
    Part(
        name="chunk_experts",
        does="4-bit experts of a prefill chunk go from memory into the registers of Hopper's matrix instruction.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="An expert has tens to hundreds of rows of a chunk. Kernels of few rows convert its words for every 32 of them, and "
        "writing them out first takes half a millisecond a layer of 26B-A4B.",
        evidence="H200: a layer of 26B-A4B at 1,024, 2,048 and 4,096 tokens 428, 678 and 1,233 µs for 552, 1,020 and 1,373 "
        "(runs/2026-11-29-26b-h200-int4-gaps); a server of 4 bits with dense_copies beside it and in other blocks: a mix 1.10 times "
        "the tokens/s, long prompts 1.23 times (runs/2026-11-29-26b-h200-int4-chunks)",
        remove_when="SGLang multiplies 4-bit experts with gelu by wgmma.",
        uses=(uses.moe, uses.four_bits, uses.hopper, uses.any_batch),
    ),
)

SEAMS = (
    Seam(
        f"{COMPRESSED}.compressed_tensors.CompressedTensorsConfig.get_moe_scheme",
        "after",
        "sglang_gemma4.models.layers.expert_activation:for_gelu",
        "26902f87c61d",
        parts=("quantised_experts",),
    ),
    Seam(
        f"{TRITON}.apply_weights",
        "around",
        "sglang_gemma4.models.layers.expert_activation:run_gelu",
        "227e3eb5aead",
        parts=("quantised_experts",),
    ),
    Seam(
        f"{TRITON}.process_weights_after_loading",
        "after",
        "sglang_gemma4.models.layers.expert_activation:finish_zeros",
        "5ba1ee0a28bc",
        parts=("quantised_experts",),
    ),
    Seam(
        f"{TRITON}.get_triton_quant_info",
        "after",
        "sglang_gemma4.models.layers.expert_activation:with_zeros",
        "c45a2bd36a17",
        parts=("quantised_experts",),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4MoE.__init__",
        "after",
        experts.prepare,
        "a63fb2abba48",
        parts=("expert_gelu", "moe_tiles", "grouped_experts", "few_token_experts", "prefill_experts", "chunk_experts"),
    ),
    Seam(
        "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config.get_moe_configs",
        "around",
        experts.find_tiles,
        "2fb82c3e8fa9",
        parts=("moe_tiles",),
    ),
)
