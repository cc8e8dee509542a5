"""Layers of a built model."""

from sglang_gemma4.models import build, forwards
from sglang_gemma4.patching import Part, Seam, uses

MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
SCHEME = "sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_wNa16.CompressedTensorsWNA16"
GEMMA4 = "sglang.srt.models.gemma4_causal"

PARTS = (
    Part(
        name="released_memory",
        does="After memory is released and resumed, tensors that are in no checkpoint are restored too.",
        switch="SGLANG_GEMMA4_WEIGHT_UPDATES",
        why="After a release and a resume, stock has lost two constants of E2B's and E4B's per-layer embeddings. Every buffer of the MTP "
        "assistant that is not loaded again is lost too. With non-zero counters a launch never ends; an invalid token order is read out "
        "of bounds.",
        evidence="srt/models/gemma4_causal.py:920 · srt/managers/scheduler_components/weight_updater.py:371, 400 (the target's "
        "buffers) · crash_repro/released_memory.py",
        remove_when="SGLang also keeps the draft's buffers, and Gemma4TextModel's constants are buffers.",
        uses=(uses.memory_saver,),
    ),
    Part(
        name="shared_query",
        does="Layers that share KV (all of the MTP draft's; E2B: 20 of 35) project queries only.",
        switch="SGLANG_GEMMA4_QKV",
        why="All layers of the MTP draft and 20 of E2B's 35 share KV. They still project keys and values and rotate zeros that nothing "
        "reads.",
        evidence="srt/models/gemma4_causal.py:448, 531 · timed only together with frozen_chain and draft_graph, on 26B-A4B",
        remove_when="Gemma4Attention projects queries only where it shares KV.",
        uses=(uses.shared_kv_or_draft,),
    ),
    Part(
        name="yoco",
        does="Layers that share KV compute only the prompt rows that are read: the last and those of log-probabilities.",
        switch="SGLANG_GEMMA4_YOCO",
        why="20 of E2B's 35 layers and 18 of E4B's 42 write no KV. Of what they compute for a prompt, only the last row is read.",
        evidence="srt/models/gemma4_causal.py:540 · srt/layers/logits_processor.py:668 (a prefill is pruned after the last layer) · "
        "model_executor/runner/prefill_cuda_graph_runner.py:1845 (the batch of a replay) · 30 prompts of 7,000 tokens on an H200, all "
        "defaults: E2B reaches 1.9x stock's throughput, with MTP 2.0x (two passes each), runs/2026-11-22-e2b-yoco; E4B 1.9x (three "
        "passes), runs/2026-11-22-e4b-yoco",
        remove_when="Gemma4TextModel.forward prunes a prefill where the layers that share KV begin.",
        uses=(uses.shared_kv, uses.any_batch),
    ),
    Part(
        name="dspark_draft",
        does="--speculative-algorithm DSPARK accepts a DSpark draft that DeepSpec trained for Gemma 4.",
        switch="SGLANG_GEMMA4_CONFIGS",
        why="SGLang has DSpark's worker and DSpark drafts for other models. DeepSpec's draft for Gemma 4 has a class that SGLang does "
        "not know. SGLang's classes for other models expect another type of head than Gemma 4's.",
        evidence="srt/models/dspark.py:131 (reads the head's quant_method, which an embedding lacks), :995 (the classes) · "
        "github.com/deepseek-ai/DeepSpec, deepspec/modeling/dspark/gemma4 (the layout) · tests/engine/test_dspark.py",
        remove_when="SGLang has Gemma4DSparkModel.",
        uses=(uses.dspark,),
    ),
    Part(
        name="triple_norm",
        does="The norms between attention and FFN (residual, dense, router and expert input) are one launch.",
        switch="SGLANG_GEMMA4_NORMS",
        why="Between attention and FFN, stock launches four norms in a MoE layer and two in a dense one. Each norm reads its input again.",
        evidence="srt/models/gemma4_causal.py:698-712, 737-751 · runs/2026-11-21-26b-mtp-v2 (121 rmsnorm and 30 fused add launches a "
        "step) · the kernel alone is 2.2 to 3.1 times as fast · H200, 26B-A4B, MTP steps against the package without it: 5.3 % shorter "
        "at batch 1, 3.1 % at 8, 1.3 % at 32, runs/2026-11-23-26b-pieces",
        remove_when="SGLang computes the norms after attention in one launch.",
        uses=(uses.kernels, uses.any_batch),
    ),
    Part(
        name="layer_tail",
        does="The end of a layer and the next layer's input norm are one launch.",
        switch="SGLANG_GEMMA4_NORMS",
        why="In stock each layer's input norm is a launch of its own. It reads back what the layer before has just written.",
        evidence="srt/models/gemma4_causal.py:768-814 · srt/layers/layer_boundary/residual/add_norm.py (NormQuantReadout.read) · the "
        "kernel alone is 1.2 to 1.7 times as fast; MTP steps are 2.9 % shorter at batch 1, 0.7 % at 8, 1.5 % at 32, measured like "
        "triple_norm",
        remove_when="SGLang's fused tail of a layer also computes the next layer's input norm.",
        uses=(uses.kernels, uses.plain_layers, uses.any_batch),
    ),
    Part(
        name="dependent_launch",
        does="On Hopper and later, kernels of a decode step start before the previous kernel has ended.",
        switch="SGLANG_GEMMA4_DEPENDENT_LAUNCH",
        why="A decode step at batch 1 is some 900 kernels. Between two of them the GPU drains, launches and fills again.",
        evidence="runs/2026-11-22-26b-kernels-steps (batch 1: no kernel runs in 0.57 of 6.72 ms) · H200, MTP steps against the package "
        "without it: 4.7 % shorter at batch 1, 1.3 % at 8; 0.7 % at 32 and 0.4 % at 64, where the ranges of three repetitions overlap, "
        "runs/2026-11-23-26b-later-pieces (includes a part of few_row_linear) · with few_row_linear and kv_write the GPU idles for 2 % "
        "of a step at batch 1, without all three for 8.5 %, runs/2026-11-22-26b-mtp-steps · large dense GEMMs let the next launch begin "
        "once they have been read; otherwise 31B's layers would lose 3 %, runs/2026-11-26-dense-layers",
        remove_when="No change in SGLang alone makes this obsolete: these are the package's kernels. SGLang's own experts are launched "
        "this way already.",
        uses=(uses.hopper,),
    ),
    Part(
        name="four_bit_linear",
        does="4-bit dense weights stay as loaded: our kernel multiplies few rows, cuBLAS many rows, without Marlin.",
        switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
        why="Marlin takes one launch per GEMM and another for the activation, and waits for the whole previous launch. Compiling it "
        "takes nvcc four minutes in a first start. It uses the matrix instructions from before Hopper.",
        evidence="compressed_tensors_wNa16.py:200-275 · H200, 26B-A4B, MTP steps take 4.29 ms at batch 1 (Marlin: 4.59 ms), 8.94 at 8 "
        "(9.53), 14.43 at 32 (14.63), 22.11 at 80 (22.20); prefills of 32 and 80 requests take 0.73 of Marlin's time, "
        "runs/2026-11-26-26b-h200-int4",
        remove_when="SGLang reads 4-bit weights at the GPU's copy speed for few rows, and multiplies many rows by wgmma.",
        uses=(uses.four_bits, uses.four_bit_rows, uses.kernels),
    ),
    Part(
        name="register_products",
        does="In small-M GEMMs, dense and experts, fp8 and 4-bit weights load straight into the MMA operand registers.",
        switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
        why="Triton chooses the layout of a tile itself. A quantised weight goes through shared memory and takes some twelve "
        "instructions a pair, where five are enough. Triton requests no weight before the previous kernel has ended.",
        evidence="H200, GEMMs of 26B-A4B, 31B and E2B at 4 rows: 4-bit ones take 0.47 to 0.63 of Triton's time, fp8 ones 0.59 to 0.76; a "
        "layer's 4-bit experts at 4 to 64 tokens take 0.79 to 0.83; MTP steps of 4-bit 26B-A4B take 7.82 ms at batch 8, with Triton 8.50 "
        "ms; no gain at 32 and 80, runs/2026-11-27-26b-h200-registers",
        remove_when="SGLang reads fp8 and 4-bit weights at the GPU's copy speed for few rows.",
        uses=(uses.quantised, uses.kernels, uses.any_batch),
    ),
    Part(
        name="dense_copies",
        does="A MoE's 4-bit dense weights get bfloat16 copies for many rows, if all copies are a small part of the GPU's memory.",
        switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
        why="From 9 requests with MTP on, and in every prefill chunk, a layer's dense weights of 26B-A4B are dequantised to bfloat16 "
        "before cuBLAS multiplies. At 128 rows four GEMMs take 99 µs, without dequantising 57 µs. This is 1.3 ms of a step of 14 to 22 "
        "ms. The copies of all of them take 3.1 GiB.",
        evidence="H200: four GEMMs of a layer take 92 µs at 64 rows, with copies 53 µs (runs/2026-11-29-26b-h200-int4-chunks); a server "
        "that allows pauses of 50 ms: 1.06x the throughput on a burst of 32, 1.05x on a mix (runs/2026-11-29-26b-h200-int4-gaps); copies "
        "together with the automatic limit on pauses, compared with neither: 1.11x on a burst of 8, 1.24x on 32, 1.14x on 80, 1.08x on a "
        "mix (runs/2026-11-29-26b-h200-int4-auto); with the shorter pauses of before, copies alone lost: 0.85x on a burst of 32",
        remove_when="SGLang multiplies 4-bit weights by wgmma.",
        uses=(uses.moe, uses.four_bits, uses.four_bit_rows, uses.kernels),
    ),
    Part(
        name="few_row_linear",
        does="Dense GEMMs of up to 16 rows read the weight once, in one launch that includes the FFN's activation.",
        switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
        why="At a few rows cuBLAS takes 1.6 to 2 times as long as reading the weights. It also needs a second launch to add up its split "
        "sums.",
        evidence="runs/2026-11-22-26b-kernels-steps (batch 1: 2.2 ms of GEMMs, 117 splitKreduce launches) · a single layer on an H200, "
        "cuBLAS in brackets: of 26B-A4B 86 µs (93) at one token, about 148 (156) at 4 (Triton 3.6), runs/2026-11-23-26b-layer-chain · of "
        "E4B 84 (94) at 4 rows, 95 (103) at 32, of E2B 58 (69), of 31B 262 (267), runs/2026-11-26-dense-layers · no engine without "
        "few_row_linear has been timed after these runs",
        remove_when="SGLang's GEMMs of 1 to 16 rows reach the bandwidth of the GPU.",
        uses=(uses.kernels, uses.any_batch),
    ),
    Part(
        name="router_choice",
        does="At 1 to 16 tokens one launch computes the router's GEMM and chooses the experts.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="The router's GEMM is 0.2 µs of reading. Its launch and the launch that chooses experts from its logits run one after the "
        "other.",
        evidence="a single layer of 26B-A4B on an H200 takes 80 µs at one token (without it 85), 145.5 at 4 (146.3), no change at 16 "
        "(Triton 3.6), runs/2026-11-23-26b-layer-chain",
        remove_when="SGLang's router chooses the experts in the launch of its GEMM.",
        uses=(uses.moe, uses.kernels, uses.any_batch),
    ),
    Part(
        name="dense_beside_experts",
        does="In decode graphs a MoE layer's dense FFN runs concurrently with its router and experts.",
        switch="SGLANG_GEMMA4_DENSE_OVERLAP",
        why="Stock runs a MoE layer's dense FFN first, then router and experts, though neither reads the other's result. This costs 10 "
        "µs a layer at batch 1.",
        evidence="srt/models/gemma4_causal.py:744-758 · H200, MTP steps against the package without it: 4.7 % shorter at batch 1, 2.1 % "
        "at 8, 1.8 % at 32, 1.1 % at 64, runs/2026-11-22-26b-step-switches; in a second run 5.5 % at batch 1, 2.3 % at 8, 1.6 % at 32, "
        "0.8 % at 64, runs/2026-11-23-26b-later-pieces (ranges overlap at 32; the drafts' kernels differed slightly) · three repetitions "
        "each, stock not measured",
        remove_when="Gemma4DecoderLayer runs its two branches on two streams.",
        uses=(uses.moe, uses.decode_graphs),
    ),
    Part(
        name="ple_tail",
        does="The end of a layer with per-layer embeddings (E2B, E4B) takes three launches instead of seven.",
        switch="SGLANG_GEMMA4_NORMS",
        why="With per-layer embeddings, stock ends each layer in seven element-wise launches: norm, add, gelu, multiply, norm, add, scale.",
        evidence="srt/models/gemma4_causal.py:815-834 · 2.7 to 3.2 times as fast by itself on an H200, runs/2026-11-22-kernel-times; in "
        "a server it was measured together with few_row_linear",
        remove_when="SGLang fuses the tail of layers with per-layer embeddings.",
        uses=(uses.layer_embeddings, uses.kernels, uses.any_batch),
    ),
    Part(
        name="qkv_rope",
        does="One launch computes the norms of queries, keys and values and rotates them.",
        switch="SGLANG_GEMMA4_QKV",
        why="Stock norms q, k and v in one launch and rotates in another. For verify and prefill two more launches copy k and v to be "
        "contiguous. In layers that share KV, stock rotates a zero key.",
        evidence="srt/models/gemma4_causal.py:448-531 · runs/2026-11-21-26b-mtp-v2 (qkv_rmsnorm 42, rope 42 and 60 strided copies a "
        "step) · the kernel alone is 1.8 to 4.6 times as fast · with kv_write, 26B-A4B's MTP steps are 6.0 % shorter at batch 1, 2.2 % "
        "at 8, 1.8 % at 32, 2.8 % at 64, runs/2026-11-23-26b-pieces",
        remove_when="SGLang's Gemma4Attention norms and rotates in one launch.",
        uses=(uses.kernels, uses.any_batch),
    ),
    Part(
        name="kv_write",
        does="On triton the launch of norms and rotation also writes keys and values to the KV pool.",
        switch="SGLANG_GEMMA4_QKV",
        why="In stock, a layer's rotated keys and values are read and written again, in a separate launch, to get into the KV pool.",
        evidence="runs/2026-11-22-26b-kernels-steps (store_kvcache_kernel: 30 launches, 31.8 µs a step at batch 1) · "
        "srt/models/gemma4_causal.py:513-525 (SGLang's own version, switched off; the module says how it differs) · measured only "
        "together with dependent_launch",
        remove_when="SGLang's Gemma4Attention writes keys and values in the launch that rotates them, in sliding layers too.",
        uses=(uses.triton_decode, uses.kernels),
    ),
    Part(
        name="fresh_kv",
        does="In verify steps, layers that share KV take the step's keys and values from the layer that computed them.",
        switch="SGLANG_GEMMA4_QKV",
        why="18 of E4B's layers and 20 of E2B's share KV. In a verify step each of them gathers the step's own keys and values from the "
        "pool, always the same rows.",
        evidence="srt/layers/attention/triton_backend.py:1700-1711 · E4B on an H200: saves most of the gathers' time in a step, which is "
        "58 µs at batch 1, 173 at 32, 295 at 80, runs/2026-11-26-e4b-h200-steps · together with other changes steps are 8 % shorter at "
        "batch 1, 5 % at 8, 6 % at 32, 2 % at 80, runs/2026-11-26-e4b-h200-steps-again",
        remove_when="SGLang's triton backend reads each owner's rows back once per step, or takes them from the owner layer.",
        uses=(uses.shared_kv, uses.speculation, uses.triton_decode, uses.kernels),
    ),
    Part(
        name="attention_groups",
        does="Attention runs data parallel: each group of ranks attends to its own requests (--attn-dp-size).",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="Stock splits heads over all ranks but KV pools over the ranks of one group. It also adds one group's residual to the rows "
        "of all groups.",
        evidence="srt/models/gemma4_causal.py:323, 744-834 · srt/layers/layer_boundary/prepare.py (_reduce_update_read_dp_gather) · "
        "tests/engine/test_parallel_forms.py",
        remove_when="Gemma4Attention splits by attn_tp_size, and Gemma4DecoderLayer gathers the rows to which its FFN adds.",
        uses=(uses.data_parallel_attention,),
    ),
)

SEAMS = (
    Seam(
        "sglang.srt.model_loader.utils.get_model_architecture",
        "before",
        "sglang_gemma4.models.draft_classes:register",
        "773c444c2459",
        parts=("dspark_draft",),
        pins="signature",
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__",
        "after",
        "sglang_gemma4.memory.released:keep_constants",
        "b7e9b394300f",
        parts=("released_memory",),
    ),
    Seam(
        f"{MANAGER}.release_memory_occupation",
        "around",
        "sglang_gemma4.memory.released:release",
        "ca8fd1908a79",
        parts=("released_memory",),
    ),
    Seam(
        f"{MANAGER}.resume_memory_occupation", "around", "sglang_gemma4.memory.released:resume", "363929aa4d9e", parts=("released_memory",)
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4Attention.forward", "around", forwards.queries_only, "35891e1c7d9e", parts=("shared_query",)
    ),
    Seam("sglang.srt.models.gemma4_causal.Gemma4TextModel.forward", "around", forwards.fast_prefill, "e83830e23e96", parts=("yoco",)),
    Seam(
        "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.load_batch",
        "after",
        forwards.plan_replay,
        "f587ddb3656b",
        parts=("yoco",),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4DecoderLayer.__init__", "after", build.prepare_layer, "5c0f55f26423", parts=("triple_norm",)
    ),
    Seam(
        "sglang.srt.layers.layer_boundary.boundary._TransformedRead.update_and_read",
        "around",
        forwards.read_after_attention,
        "48a7f0ef9e18",
        parts=("triple_norm",),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__",
        "after",
        build.prepare,
        "b7e9b394300f",
        parts=(
            "layer_tail",
            "dependent_launch",
            "register_products",
            "dense_copies",
            "few_row_linear",
            "router_choice",
            "dense_beside_experts",
            "kv_write",
            "fresh_kv",
        ),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4DecoderLayer._next_stream",
        "around",
        forwards.next_stream,
        "1c1c4b6f8ca3",
        parts=("layer_tail",),
    ),
    Seam(
        "sglang.srt.models.gemma4_mtp.Gemma4AssistantForCausalLM.__init__",
        "after",
        build.prepare_assistant,
        "d2752d6ad1a9",
        parts=("dependent_launch", "few_row_linear"),
    ),
    Seam(
        f"{SCHEME}.create_weights", "after", "sglang_gemma4.models.layers.four_bit_layers:keep", "819dc23b38c6", parts=("four_bit_linear",)
    ),
    Seam(
        f"{SCHEME}.process_weights_after_loading",
        "around",
        "sglang_gemma4.models.layers.four_bit_layers:finish",
        "092982519302",
        parts=("four_bit_linear",),
    ),
    Seam(
        f"{SCHEME}.apply_weights",
        "around",
        "sglang_gemma4.models.layers.four_bit_layers:multiply",
        "acddd22a9ab7",
        parts=("four_bit_linear",),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4DecoderLayer._next_stream",
        "around",
        forwards.ple_tail_next_stream,
        "1c1c4b6f8ca3",
        parts=("ple_tail",),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4Attention.forward",
        "around",
        forwards.normed_and_rotated,
        "35891e1c7d9e",
        parts=("qkv_rope",),
    ),
    Seam(
        f"{GEMMA4}.Gemma4Attention.__init__",
        "around",
        "sglang_gemma4.models.attention_groups:build_attention",
        "10dd9517605c",
        parts=("attention_groups",),
    ),
    Seam(
        f"{GEMMA4}.Gemma4Attention.forward",
        "around",
        "sglang_gemma4.models.attention_groups:attend",
        "35891e1c7d9e",
        parts=("attention_groups",),
    ),
    Seam(
        "sglang.srt.models.gemma4_vision.Gemma4VisionEncoder.__init__",
        "around",
        "sglang_gemma4.models.attention_groups:build_tower",
        "e5ff87d79ee5",
        parts=("attention_groups",),
    ),
    Seam(
        "sglang.srt.models.gemma4_audio.Gemma4AudioEncoder.__init__",
        "around",
        "sglang_gemma4.models.attention_groups:build_tower",
        "469e1c4dd179",
        parts=("attention_groups",),
    ),
    Seam(
        f"{GEMMA4}.Gemma4DecoderLayer._next_stream",
        "around",
        "sglang_gemma4.models.attention_groups:next_stream",
        "1c1c4b6f8ca3",
        parts=("attention_groups",),
    ),
)
