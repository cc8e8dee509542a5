"""Layers of a built model."""

from sglang_gemma4.models import build, forwards
from sglang_gemma4.patching import Part, Seam, uses

MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
SCHEME = "sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_wNa16.CompressedTensorsWNA16"
GEMMA4 = "sglang.srt.models.gemma4_causal"

PARTS = (
    Part(
        name="released_memory",
        does="After release and resume of memory nothing is missing that no checkpoint holds.",
        switch="SGLANG_GEMMA4_WEIGHT_UPDATES",
        why="After a release and a resume stock has lost two constants of E2B's and E4B's per-layer embeddings, and every buffer of "
        "the MTP assistant that is not loaded again: counters that are not zero never end a launch, an order that is none reads out of "
        "bounds.",
        evidence="srt/models/gemma4_causal.py:920 · srt/managers/scheduler_components/weight_updater.py:371, 400 (the target's "
        "buffers) · crash_repro/released_memory.py",
        remove_when="SGLang keeps the draft's buffers too, and Gemma4TextModel's constants are buffers.",
        uses=(uses.memory_saver,),
    ),
    Part(
        name="shared_query",
        does="Layers that share KV (the MTP draft's; E2B: 20 of 35) project queries only.",
        switch="SGLANG_GEMMA4_QKV",
        why="Layers that share KV, all of the MTP draft's and 20 of E2B's 35, project keys and values and rotate zeros that nobody reads.",
        evidence="srt/models/gemma4_causal.py:448, 531 · timed only with frozen_chain and draft_graph, on 26B-A4B",
        remove_when="Gemma4Attention projects queries only where it shares KV.",
        uses=(uses.shared_kv_or_draft,),
    ),
    Part(
        name="yoco",
        does="Layers that share KV see only the rows of a prompt that are read, the last one and those of log-probabilities.",
        switch="SGLANG_GEMMA4_YOCO",
        why="20 of E2B's 35 layers, 18 of E4B's 42, write no KV: what they compute for a prompt's rows is read at its last row only.",
        evidence="srt/models/gemma4_causal.py:540 · srt/layers/logits_processor.py:668 (a prefill is pruned after the last layer) · "
        "model_executor/runner/prefill_cuda_graph_runner.py:1845 (what a replay's batch is) · 30 prompts of 7,000 tokens on an H200, "
        "all defaults: E2B 1.9 times stock's throughput, 2.0 times under MTP, two passes each, runs/2026-11-22-e2b-yoco; E4B 1.9 "
        "times, three, runs/2026-11-22-e4b-yoco",
        remove_when="Gemma4TextModel.forward prunes a prefill where its layers begin to share KV.",
        uses=(uses.shared_kv, uses.any_batch),
    ),
    Part(
        name="dspark_draft",
        does="A DSpark draft that DeepSpec trained for Gemma 4 drafts with --speculative-algorithm DSPARK.",
        switch="SGLANG_GEMMA4_CONFIGS",
        why="SGLang has DSpark's worker and drafts of other models; DeepSpec's for Gemma 4 is of a class that it does not know, and its "
        "classes for others multiply by a head of another kind than Gemma 4's.",
        evidence="srt/models/dspark.py:131 (asks the head for its quant_method, which an embedding lacks), :995 (the classes) · "
        "github.com/deepseek-ai/DeepSpec, deepspec/modeling/dspark/gemma4 (the layout) · tests/engine/test_dspark.py",
        remove_when="SGLang has Gemma4DSparkModel.",
        uses=(uses.dspark,),
    ),
    Part(
        name="triple_norm",
        does="The norms between attention and FFN (residual, dense, router and expert input) are one launch.",
        switch="SGLANG_GEMMA4_NORMS",
        why="Between attention and FFN stock launches four norms in an MoE layer and two in a dense one; each reads its input again.",
        evidence="srt/models/gemma4_causal.py:698-712, 737-751 · runs/2026-11-21-26b-mtp-v2 (121 rmsnorm and 30 fused add launches a "
        "step) · the kernel alone 2.2 to 3.1 times as fast · H200, 26B-A4B, MTP steps against the package without it: 5.3, 3.1 and 1.3 "
        "% shorter at batch 1, 8 and 32, runs/2026-11-23-26b-pieces",
        remove_when="SGLang computes the norms after attention in one launch.",
        uses=(uses.kernels, uses.any_batch),
    ),
    Part(
        name="layer_tail",
        does="The end of a layer and the next layer's input norm are one launch.",
        switch="SGLANG_GEMMA4_NORMS",
        why="Each layer's input norm is a launch that reads back what the layer before has just written.",
        evidence="srt/models/gemma4_causal.py:768-814 · srt/layers/layer_boundary/residual/add_norm.py (NormQuantReadout.read) · the "
        "kernel alone 1.2 to 1.7 times as fast; MTP steps 2.9, 0.7 and 1.5 % shorter at batch 1, 8 and 32, measured as triple_norm",
        remove_when="SGLang's fused tail of a layer gives the next layer's input norm too.",
        uses=(uses.kernels, uses.plain_layers, uses.any_batch),
    ),
    Part(
        name="dependent_launch",
        does="On Hopper and later, kernels of a decode step start while the kernel before still ends.",
        switch="SGLANG_GEMMA4_DEPENDENT_LAUNCH",
        why="A decode step at batch 1 is some 900 kernels, between which the card drains, launches and fills again.",
        evidence="runs/2026-11-22-26b-kernels-steps (batch 1: no kernel runs in 0.57 of 6.72 ms) · H200, MTP steps against the "
        "package without it: 4.7 % shorter at batch 1, 1.3 % at 8; 0.7 and 0.4 % at 32 and 64, where the ranges of three repetitions "
        "overlap, runs/2026-11-23-26b-later-pieces (few_row_linear in part) · with few_row_linear and kv_write the card idles 2 % of a "
        "step at batch 1, 8.5 % without the three, runs/2026-11-22-26b-mtp-steps · large dense products let the next launch begin when "
        "they are read, without which 31B's layers would lose 3 %, runs/2026-11-26-dense-layers",
        remove_when="Never by SGLang alone: these are the package's kernels. SGLang's own experts are launched so already.",
        uses=(uses.hopper,),
    ),
    Part(
        name="four_bit_linear",
        does="4-bit dense weights stay as loaded: our kernel reads them for few rows, cuBLAS multiplies many, no Marlin.",
        switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
        why="Marlin is one launch a product with the activation in another, waits for the whole launch before it, and takes nvcc four "
        "minutes in a first start; its matrix instructions are those before Hopper.",
        evidence="compressed_tensors_wNa16.py:200-275 · H200, 26B-A4B, MTP steps at batch 1, 8, 32, 80: 4.29, 8.94, 14.43, 22.11 ms "
        "for Marlin's 4.59, 9.53, 14.63, 22.20, prefills of 32 and 80 requests 0.73 of its time, runs/2026-11-26-26b-h200-int4",
        remove_when="SGLang reads 4-bit weights of few rows at the card's copy speed, and many on wgmma.",
        uses=(uses.four_bits, uses.four_bit_rows, uses.kernels),
    ),
    Part(
        name="register_products",
        does="fp8 and 4-bit weights of few rows go from memory straight into the matrix instruction's registers, dense and experts.",
        switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
        why="Triton lays a tile out by itself: a quantised weight passes through shared memory and takes some twelve instructions a "
        "pair where five do, and none is asked for before the kernel before has ended.",
        evidence="H200, products of 26B-A4B, 31B and E2B at 4 rows: 4 bits in 0.47 to 0.63 of the time by Triton, fp8 in 0.59 to "
        "0.76; a layer's 4-bit experts at 4 to 64 tokens in 0.79 to 0.83; MTP steps of 4-bit 26B-A4B at batch 8 in 7.82 ms for 8.50, "
        "at 32 and 80 none, runs/2026-11-27-26b-h200-registers",
        remove_when="SGLang reads fp8 and 4-bit weights of few rows at the card's copy speed.",
        uses=(uses.quantised, uses.kernels, uses.any_batch),
    ),
    Part(
        name="dense_copies",
        does="Many rows are multiplied by bfloat16 copies of a MoE's 4-bit dense weights, where all are a small part of the card.",
        switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
        why="From 9 requests with MTP on, and in each prefill chunk, a layer's dense weights of 26B-A4B are written out as bfloat16 "
        "before cuBLAS multiplies: four products take 99 µs at 128 rows, 57 without that, 1.3 ms of a step of 14 to 22. All of them "
        "are 3.1 GiB.",
        evidence="H200: four products of a layer 92 µs at 64 rows, 53 with copies (runs/2026-11-29-26b-h200-int4-chunks); a server at "
        "gaps of 50 ms: a burst of 32 1.06 times the tokens/s, a mix 1.05 times (runs/2026-11-29-26b-h200-int4-gaps); by the gaps of "
        "today, beside neither copies nor those: bursts of 8, 32, 80 1.11, 1.24, 1.14 times, a mix 1.08 "
        "(runs/2026-11-29-26b-h200-int4-auto)",
        remove_when="SGLang multiplies 4-bit weights by wgmma.",
        uses=(uses.moe, uses.four_bits, uses.four_bit_rows, uses.kernels),
    ),
    Part(
        name="few_row_linear",
        does="Dense products of up to 16 rows read the weight once, in one launch, with the FFN's activation inside.",
        switch="SGLANG_GEMMA4_FEW_ROW_LINEAR",
        why="At a few rows cuBLAS takes 1.6 to 2 times what reading the weights takes, with a second launch to add up what it split.",
        evidence="runs/2026-11-22-26b-kernels-steps (batch 1: 2.2 ms of products, 117 splitKreduce launches) · a layer of 26B-A4B "
        "alone on an H200 takes 86 µs at one token, 93 with cuBLAS, about 148 for 156 at 4 (Triton 3.6), "
        "runs/2026-11-23-26b-layer-chain · of E4B 84 for 94 at 4 rows, 95 for 103 at 32, of E2B 58 for 69, of 31B 262 for 267, "
        "runs/2026-11-26-dense-layers · no engine without it was timed since",
        remove_when="SGLang's products of 1 to 16 rows reach the bandwidth of the card.",
        uses=(uses.kernels, uses.any_batch),
    ),
    Part(
        name="router_choice",
        does="At 1 to 16 tokens the router's product also chooses the experts, in one launch.",
        switch="SGLANG_GEMMA4_EXPERTS",
        why="The router's product is 0.2 µs of reading; its launch and the one that chooses from its logits wait for each other.",
        evidence="a layer of 26B-A4B alone on an H200 takes 80 µs for 85 at one token, 145.5 for 146.3 at 4, the same at 16 (Triton "
        "3.6), runs/2026-11-23-26b-layer-chain",
        remove_when="SGLang's router chooses in its product's launch.",
        uses=(uses.moe, uses.kernels, uses.any_batch),
    ),
    Part(
        name="dense_beside_experts",
        does="A MoE layer's dense FFN runs beside its router and experts in decode graphs.",
        switch="SGLANG_GEMMA4_DENSE_OVERLAP",
        why="A MoE layer runs its dense FFN, then router and experts, though neither reads the other: 10 µs a layer at batch 1.",
        evidence="srt/models/gemma4_causal.py:744-758 · H200, MTP steps against the package without it: 4.7, 2.1, 1.8 and 1.1 % "
        "shorter at batch 1, 8, 32 and 64, runs/2026-11-22-26b-step-switches; 5.5, 2.3, 1.6 and 0.8 %, "
        "runs/2026-11-23-26b-later-pieces (ranges overlap at 32; kernels of the drafts differed slightly) · three repetitions each, "
        "stock not measured",
        remove_when="Gemma4DecoderLayer runs its two branches on two streams.",
        uses=(uses.moe, uses.decode_graphs),
    ),
    Part(
        name="ple_tail",
        does="The end of a layer with per-layer embeddings (E2B, E4B) is three launches, not seven.",
        switch="SGLANG_GEMMA4_NORMS",
        why="Per-layer embeddings end in seven element-wise launches a layer: norm, add, gelu, product, norm, add, scale.",
        evidence="srt/models/gemma4_causal.py:815-834 · 2.7 to 3.2 times as fast by itself on an H200, runs/2026-11-22-kernel-times; "
        "in a server with few_row_linear",
        remove_when="SGLang fuses the tail of layers with per-layer embeddings.",
        uses=(uses.layer_embeddings, uses.kernels, uses.any_batch),
    ),
    Part(
        name="qkv_rope",
        does="The norms of queries, keys and values and their rotation are one launch.",
        switch="SGLANG_GEMMA4_QKV",
        why="Stock norms q, k and v in one launch, rotates in another, copies k and v to be contiguous in two more (verify, prefill), "
        "and rotates a zero key in layers that share KV.",
        evidence="srt/models/gemma4_causal.py:448-531 · runs/2026-11-21-26b-mtp-v2 (qkv_rmsnorm 42, rope 42 and 60 strided copies a "
        "step) · the kernel alone 1.8 to 4.6 times as fast · with kv_write, 26B-A4B's MTP steps 6.0, 2.2, 1.8 and 2.8 % shorter at "
        "batch 1, 8, 32 and 64, runs/2026-11-23-26b-pieces",
        remove_when="SGLang's Gemma4Attention rotates in the launch that norms.",
        uses=(uses.kernels, uses.any_batch),
    ),
    Part(
        name="kv_write",
        does="The launch of norms and rotation writes keys and values to the KV pool too, on triton.",
        switch="SGLANG_GEMMA4_QKV",
        why="A layer's keys and values go through memory once more, in a launch of its own, to get from the rotation into the KV pool.",
        evidence="runs/2026-11-22-26b-kernels-steps (store_kvcache_kernel: 30 launches, 31.8 µs a step at batch 1) · "
        "srt/models/gemma4_causal.py:513-525 (SGLang's own, switched off; the module says how it differs) · measured together with "
        "dependent_launch only",
        remove_when="SGLang's Gemma4Attention writes keys and values in the launch that rotates them, sliding layers too.",
        uses=(uses.triton_decode, uses.kernels),
    ),
    Part(
        name="fresh_kv",
        does="In verify steps, layers that share KV take the step's keys and values from the layer that computed them.",
        switch="SGLANG_GEMMA4_QKV",
        why="Each of E4B's 18 and E2B's 20 layers that share KV gathers a verify step's own keys and values from the pool, all the "
        "same rows.",
        evidence="srt/layers/attention/triton_backend.py:1700-1711 · E4B on an H200: most of the gathers' 58, 173 and 295 µs of a "
        "step at batch 1, 32 and 80, runs/2026-11-26-e4b-h200-steps · with other changes steps are 8, 5, 6 and 2 % shorter at batch 1, "
        "8, 32 and 80, runs/2026-11-26-e4b-h200-steps-again",
        remove_when="SGLang's triton backend reads each owner's rows back once a step, or takes them from its layer.",
        uses=(uses.shared_kv, uses.speculation, uses.triton_decode, uses.kernels),
    ),
    Part(
        name="attention_groups",
        does="Attention runs data parallel: each group of ranks attends to requests of its own (--attn-dp-size).",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="Stock splits heads over all ranks but KV pools over those of one group, and adds one group's residual to the rows of all.",
        evidence="srt/models/gemma4_causal.py:323, 744-834 · srt/layers/layer_boundary/prepare.py (_reduce_update_read_dp_gather) · "
        "tests/engine/test_parallel_forms.py",
        remove_when="Gemma4Attention splits by attn_tp_size and Gemma4DecoderLayer gathers what its FFN adds to.",
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
