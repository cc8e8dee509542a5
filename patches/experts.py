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
        why="Stock runs 4-bit experts with Marlin, which has silu only. Its Triton scheme asserts silu in front of a runner that "
        "supports gelu. The first batch ends the server. The Triton scheme also leaves out zero points, which its kernel accepts.",
        evidence="compressed_tensors_wNa16_moe.py:454, 558 · moe_runner/marlin.py:143 · moe_runner/triton_utils/fused_moe.py:836 · "
        "crash_repro/quantised_experts.py, quantised_zero_points.py",
        remove_when="CompressedTensorsWNA16MoE and its Triton form accept gelu_tanh.",
        uses=(uses.quantised, uses.moe),
    ),
    Part(
        name="expert_gelu",
        does="On a GPU the experts compute gelu by tanh, as the config says; stock computes it by erf.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="Stock names the experts' activation gelu, which its CUDA kernels compute by erf. The config and transformers say tanh.",
        evidence="srt/models/gemma4_causal.py:236 · srt/layers/moe/moe_runner/triton_utils/fused_moe.py:836-858 (gelu_tanh exists there) "
        "· SGLang's kernels were compared under an interpreter; `crash_repro/expert_gelu.py` has not been run on a GPU",
        remove_when="Gemma4MoE passes its config's activation on.",
        uses=(uses.moe, uses.kernels),
    ),
    Part(
        name="moe_tiles",
        does="The experts' GEMMs use tiles measured on this GPU for prefill chunks, unless SGLANG_MOE_CONFIG_DIR is set.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="SGLang's tiles for this shape end at 1,024 tokens. The experts of an 8,192-token prefill chunk take twice their floor: 240 "
        "of 620 ms for 32k tokens.",
        evidence="srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0 · runs/2026-11-21-26b-stock-steps (prefill, batch 32) · "
        "H200, 26B-A4B, prefill of 8 to 64 requests: 6 to 9 % shorter than this package with SGLang's tiles, two repetitions, stock not "
        "measured, runs/2026-11-22-26b-experts · `sglang-gemma4 tune-moe` makes tiles for another GPU",
        remove_when="SGLang ships tiles for E=128, N=704 that are measured beyond 1,024 tokens on this GPU.",
        uses=(uses.moe, uses.kernels, uses.any_batch),
    ),
    Part(
        name="grouped_experts",
        does="The experts at 32 to 320 tokens run in four launches, with the activation in the first GEMM.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="Stock takes six launches: it writes gate and up to memory and reads them back. A verify step of 80 requests has 320 tokens.",
        evidence="srt/layers/moe/moe_runner/triton_utils/fused_moe.py:520-970 · runs/2026-11-21-26b-stock-steps (decode) · the kernels "
        "alone are 2 to 5 % faster, runs/2026-11-22-kernel-times · H200, MTP steps against the package without it: 2.6 % shorter at "
        "batch 8, 3.4 % at 32, 1.5 % at 64 (ranges of three repetitions overlap), runs/2026-11-23-26b-pieces",
        remove_when="SGLang's fused MoE applies gelu in its first GEMM's epilogue, as SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED does silu.",
        uses=(uses.moe, uses.kernels, uses.any_batch),
    ),
    Part(
        name="few_token_experts",
        does="Routing and experts at 1 to 16 tokens take three launches, where SGLang takes six.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="From the router's logits on, stock takes six launches: 36 µs a layer at batch 1. Reading the weights takes 22 µs.",
        evidence="runs/2026-11-21-26b-stock-steps (decode, batch 1: align, activation, sum) · the kernels alone are 5 to 7 % faster on "
        "an H200, runs/2026-11-23-few-token-experts · 26B-A4B's MTP steps are 1.5 % shorter at batch 1, three passes, measured alongside "
        "stock, runs/2026-11-23-26b-few-tokens",
        remove_when="SGLang's fused MoE reaches the memory floor at one token.",
        uses=(uses.moe, uses.kernels, uses.any_batch),
    ),
    Part(
        name="prefill_experts",
        does="On Hopper a prefill chunk's experts take three launches after row alignment; 4-bit ones are dequantised first.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="Stock writes gate and up to memory and reads them back. It also gathers the second GEMM's rows and pads each expert's last "
        "block.",
        evidence="srt/layers/moe/moe_runner/triton_utils/fused_moe.py:520-970 · runs/2026-11-23-prefill-expert-tiles · H200, 26B-A4B, "
        "against the package without it: with older, slower tiles one prompt of 8,000 tokens takes 6.5 % less time, eight prompts 5.0 % "
        "less (five repetitions), runs/2026-11-23-26b-prefill-experts; with the present tiles 30 prompts of 7,000 are at least 4 % "
        "faster, runs/2026-11-23-26b-prefill · 4-bit experts: 30 prompts of 7,000 tokens take 7.1 s on an H200, with stock's kernel 30.9 "
        "s, runs/2026-11-26-26b-h200-int4-serve",
        remove_when="SGLang's fused MoE applies gelu in its first GEMM's epilogue and loads 16-bit rows through descriptors in its second.",
        uses=(uses.moe, uses.hopper, uses.any_batch),
    ),
    Part(
        name="chunk_experts",
        does="4-bit experts of a prefill chunk go from memory straight into the registers of Hopper's matrix instruction.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="Each expert gets tens to hundreds of a chunk's rows. Small-M kernels convert an expert's weights again for every 32 of "
        "them. Dequantising the weights first takes half a millisecond per layer of 26B-A4B.",
        evidence="H200: a layer of 26B-A4B takes 428 µs at 1,024 tokens (without it 552), 678 at 2,048 (1,020), 1,233 at 4,096 (1,373) "
        "(runs/2026-11-29-26b-h200-int4-gaps); a 4-bit server, together with dense_copies and with other block sizes: 1.10x the "
        "throughput on mixed traffic, 1.23x on long prompts (runs/2026-11-29-26b-h200-int4-chunks)",
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
