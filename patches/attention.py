"""SGLang's attention backends, and what they keep."""

from sglang_gemma4.diagnostics import kv_format_flags
from sglang_gemma4.models import attention_backends, triton_metadata
from sglang_gemma4.patching import Entry, Part, Seam, uses
from sglang_gemma4.serving.media import bidirectional_images

ATTENTION_REGISTRY = "sglang.srt.layers.attention.attention_registry"
TRTLLM = "sglang.srt.layers.attention.trtllm_mha_backend.TRTLLMHAAttnBackend"
CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
BACKEND = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend"
RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
MODEL = "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration"
SETUP = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"

PARTS = (
    Part(
        name="triton_window",
        does="Triton decode attends to the whole sliding window, not one key less.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="Stock's decode clips the sequence to window - 1 keys; prefill and transformers use window keys. Tokens differ once a "
        "sequence is longer than the window.",
        evidence="srt/layers/attention/triton_backend.py:2869 (called from :921 and :573) · srt/models/gemma4_causal.py:84",
        remove_when="SGLang's Triton decode clips to sliding_window_size + 1 keys.",
        uses=(uses.triton_decode,),
    ),
    Part(
        name="kv_formats",
        does="--kv-cache-dtype offers int8_per_token_head and fp8_per_token_head; fp8 works on triton where layers share KV.",
        switch="SGLANG_GEMMA4_ATTENTION",
        why="SGLang's fp8 cache has one scale for all tokens and three bits of mantissa. Its verify and decode steps see different keys, "
        "and layers that share KV crash. SGLang has no int8 cache.",
        evidence="tests/unit/test_kv_format_error.py (error of int8 1.3 %, of fp8 4.8 %) · crash_repro/fp8_shared_kv.py · "
        "srt/layers/attention/triton_backend.py:1706, 1863 (a step's own keys unquantised) · runs/2026-11-25-26b-h100-int8 (steps within "
        "2 %, 1.97 times as many tokens, decode attention 1.37 times as fast at 64k keys)",
        remove_when="SGLang stores a scale per token and head for hybrid pools on triton.",
        uses=(uses.kv_format, uses.any_batch),
    ),
    Part(
        name="verify_attention",
        does="MTP's verify attention on triton puts all queries of a KV head into one tile and splits its keys over programs.",
        switch="SGLANG_GEMMA4_ATTENTION",
        why="Stock verifies with its prefill kernel: one program per request and query head walks all keys. At batch 32 this is half of "
        "an MTP step.",
        evidence="runs/2026-11-21-26b-stock-steps (_fwd_kernel: 16.5 of 34 ms) · srt/layers/attention/triton_backend.py:238 (gfx95 only) "
        "· the kernel alone is 5 to 28 times as fast · H200, 26B-A4B, with decode_attention and prefill_attention: steps take 7.1 ms at "
        "batch 1 (stock: 12.1 ms), 19.5 at 32 (35.3), 23.9 at 64 (55.6), runs/2026-11-22-26b-kernels-steps · without it a step of the "
        "package after 300 tokens loses 24 % at batch 1, 11 % at 8, 28 % at 32, 41 % at 64, runs/2026-11-23-26b-pieces · its tile and "
        "its split of keys: runs/2026-11-26-attention-parts",
        remove_when="SGLang's verify_splitkv supports sliding windows and runs on CUDA.",
        uses=(uses.speculation, uses.triton_decode, uses.kernels, uses.any_batch),
    ),
    Part(
        name="decode_attention",
        does="Decode and draft steps on triton use the attention kernel of the verify step.",
        switch="SGLANG_GEMMA4_ATTENTION",
        why="Stock's decode kernel takes 12 times as long as reading the keys at batch 1, and 1.5 times as long at batch 32.",
        evidence="runs/2026-11-21-26b-stock-steps · kernels/ops/attention/decode_attention.py:1191 · the kernel alone is 1.1 to 6 times "
        "as fast; in a server it was measured only together with verify_attention",
        remove_when="SGLang's Triton decode splits each request by its length and the GPU's size.",
        uses=(uses.triton_decode, uses.kernels),
    ),
    Part(
        name="balanced_parts",
        does="Decode and verify attention splits long requests of a batch into more parts, of about as many keys each.",
        switch="SGLANG_GEMMA4_ATTENTION",
        why="Without it, every request of a step is split into equally many parts. In a step of 62 requests with 61,000 keys, two "
        "programs per KV head read the longest one's 5,658 keys.",
        evidence="tests/interpreted/test_few_query_attention.py (parts of such a step: 472 keys with the patch, 2,829 without; requests "
        "of equal length are split as before) · H200, verify step of 60 requests of 50 to 6,000 keys: a full layer takes 192 µs, without "
        "it 327 µs; a sliding one 105 µs, without it 118 µs; steps of 8 requests, whose split is fine already, were 4 and 16 % slower, "
        "so they keep the even split (runs/2026-11-26-26b-h200-gap)",
        remove_when="The same condition as for decode_attention holds.",
        uses=(uses.triton_decode, uses.kernels, uses.any_batch),
    ),
    Part(
        name="prefill_attention",
        does="Prefill on triton uses a kernel with tiles for head_dim 256 and 512.",
        switch="SGLANG_GEMMA4_ATTENTION",
        why="Stock's extend kernel does not prefetch, walks keys outside the window, and reads K and V once per query head. Attention is "
        "a quarter of a prefill, and takes 14 times its floor.",
        evidence="runs/2026-11-21-26b-stock-steps · kernels/ops/attention/extend_attention.py:111, 147, 542 · 32 prompts of 1,000 tokens "
        "on an H200: attention takes 51 ms, stock's 141 ms, runs/2026-11-22-26b-kernels-steps",
        remove_when="SGLang's extend kernel pipelines on Hopper and starts at the window.",
        uses=(uses.triton_prefill, uses.kernels, uses.any_batch),
    ),
    Part(
        name="step_metadata",
        does="One launch inside its CUDA graph derives a triton decode or verify step's metadata; chains need no mask.",
        switch="SGLANG_GEMMA4_ATTENTION",
        why="Before each replay SGLang derives a step's metadata in some twenty launches. It also fills and copies a mask that a chain "
        "does not need: one byte per draft token and key of the largest batch. Its table of slots has room for the keys of every draft "
        "token, though a request's draft tokens share them. Table and mask are 0.9 GiB too large for 128 requests of 4 tokens in a "
        "context of 262,144.",
        evidence="srt/layers/attention/triton_backend.py:515-653 · verify_mask.py:57-80 · "
        "model_executor/runner/decode_cuda_graph_runner.py:1784-1812 · tests/interpreted/test_step_metadata.py (the tables equal "
        "SGLang's), tests/engine/test_recorded_metadata.py · H200, MTP, step time with it and, in brackets, without it: 26B-A4B in fp8 "
        "4.12 ms (5.48) at batch 1, 8.61 (8.71) at 8, 12.04 (12.14) at 32, no change at 80; E2B 3.51 ms (3.89) at batch 1, 3.79 (5.17) "
        "at 8, no change at 32 and 80: runs/2026-11-27-26b-h200-step-metadata, -e2b-h200-step-metadata",
        remove_when="SGLang's triton backend prepares decode and verify metadata in init_forward_metadata_in_graph, and needs no mask "
        "for chains.",
        uses=(uses.triton_decode, uses.kernels, uses.decode_graphs),
    ),
    Part(
        name="flash_prefill",
        does="On Hopper, prefills of 1,024 tokens and more use FlashAttention-4 in the layers where it is measured faster.",
        switch="SGLANG_GEMMA4_FLASH_PREFILL",
        why="Prefills of 8,000 tokens spend much of their time in attention, where FlashAttention-4 can be the faster kernel on Hopper. "
        "The server measures each attention type at its start and takes the faster kernel. SGLang's own backend for FlashAttention-4 "
        "reads keys page by page without bulk copies, and needs a second backend for decode.",
        evidence="runs/2026-11-22-26b-kernels-serve (summaries: more than half of the time is prefill) · "
        "kernels/ops/attention/flash_attn/cute/flash_fwd_sm90.py:75 · H200, 26B-A4B, against the package without it: one prompt of 8,000 "
        "tokens takes 13 % less time, eight prompts 11 % less (five repetitions), runs/2026-11-23-26b-prefill-flash; 30 prompts of 7,000 "
        "tokens are 10 % faster, runs/2026-11-23-26b-prefill · compiling and measuring took 7 to 19 s of a start",
        remove_when="--prefill-attention-backend fa4 is measured to be as fast.",
        uses=(uses.triton_prefill, uses.hopper, uses.any_batch),
    ),
    Part(
        name="image_masks",
        does="Images attend both ways where the config says so, whole in every prefill chunk, or the backend is refused.",
        switch="SGLANG_GEMMA4_MEDIA_FIXES",
        why="On stock triton, images attend both ways on every layer of every model, but only up to the end of a kernel's tile. An image "
        "that a prefill chunk cuts does not attend both ways. fa4 lets them attend both ways on every layer, but not in videos. "
        "trtllm_mha and others never do, and log a warning.",
        evidence="srt/models/gemma4_mm.py:325-465, 689 (a batch of videos alone has no image inputs) · "
        "kernels/ops/attention/extend_attention.py:720 (a causal tile ends at its own row) · managers/schedule_policy.py:1140 · "
        "transformers modeling_gemma4.py create_masks_for_vision_model",
        remove_when="SGLang's masks equal transformers' and its prefill chunks end between images.",
        uses=(uses.two_way_images,),
    ),
    Part(
        name="page_table_rows",
        does="No page-table row runs into the next one when draft tokens pass the end of the context.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="A row of the table holds the context alone. If the context ends on a page boundary, a request near its end needs one more "
        "page for its draft tokens. The eager builder writes that page into the next row or past the table. Attention reads it there, in "
        "CUDA graphs too.",
        evidence="kernels/ops/attention/trtllm_mha_page_table.py:70, 87 (no bound; trtllm_mha_graph_metadata.py:86 has one) · "
        "srt/layers/attention/trtllm_mha_backend.py:351 (width), :1291 (lengths) · srt/layers/attention/flashattention_backend.py:196, "
        "2432",
        remove_when="build_trtllm_mha_page_table stops at the table's width and that width counts draft tokens.",
        uses=(uses.speculation,),
    ),
)

SEAMS = (
    Entry(
        f"{ATTENTION_REGISTRY}.ATTENTION_BACKENDS",
        "triton",
        lambda: attention_backends.create_triton_backend,
        "9e40f19fbf98",
        parts=("triton_window",),
    ),
    Seam(
        "sglang.srt.arg_groups.arg_utils.add_cli_args_from_dataclass",
        "after",
        "sglang_gemma4.memory.kv_formats:offer",
        "1316b7a3624c",
        parts=("kv_formats",),
    ),
    Seam(
        "sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments",
        "after",
        kv_format_flags.check,
        "1c321ef6fec8",
        parts=("kv_formats",),
    ),
    Seam(
        "sglang.srt.mem_cache.kv_cache_dtype.configure_kv_cache_dtype",
        "around",
        "sglang_gemma4.memory.kv_formats:resolve",
        "8e930fd38237",
        parts=("kv_formats",),
    ),
    Seam(
        f"{CONFIGURATOR}._resolve_kv_pool_class",
        "around",
        "sglang_gemma4.memory.kv_formats:pool_class",
        "b8a77a9894ad",
        parts=("kv_formats",),
    ),
    Seam(
        "sglang.srt.model_executor.pool_configurator.HybridSWAPoolConfigurator.__init__",
        "after",
        "sglang_gemma4.memory.kv_formats:count_scales",
        "7ddc98e34cb7",
        parts=("kv_formats",),
    ),
    Seam(
        f"{MANAGER}.resume_memory_occupation",
        "after",
        "sglang_gemma4.memory.kv_formats:zero_scales",
        "363929aa4d9e",
        parts=("kv_formats",),
    ),
    Seam(
        "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__",
        "after",
        attention_backends.prepare_triton,
        "e7fa3a24cfc9",
        parts=(
            "kv_formats",
            "verify_attention",
            "decode_attention",
            "balanced_parts",
            "prefill_attention",
            "step_metadata",
            "flash_prefill",
        ),
    ),
    Seam(f"{BACKEND}.init_cuda_graph_state", "around", triton_metadata.allocate, "37887eb25efe", parts=("step_metadata",)),
    Seam(
        f"{BACKEND}._build_cuda_graph_forward_metadata",
        "after",
        triton_metadata.unmask,
        "de605bbc334a",
        parts=("step_metadata",),
    ),
    Seam(f"{BACKEND}.init_forward_metadata", "after", triton_metadata.unmask_eager, "34c1528c81ae", parts=("step_metadata",)),
    Seam(
        f"{BACKEND}._update_decode_kv_buffers",
        "around",
        triton_metadata.decode_tables,
        "d57321ec51cd",
        parts=("step_metadata",),
    ),
    Seam(
        f"{BACKEND}._update_target_verify_buffers",
        "around",
        triton_metadata.verify_tables,
        "e86fdbb9eed1",
        parts=("step_metadata",),
    ),
    Seam(f"{RUNNER}._run_in_graph_metadata_prep", "around", triton_metadata.record, "fda92661082d", parts=("step_metadata",)),
    Seam(f"{RUNNER}._init_replay_attn_metadata", "around", triton_metadata.replay, "97bee5dcc92d", parts=("step_metadata",)),
    Seam(f"{BACKEND}.__init__", "after", bidirectional_images.mask_triton, "e7fa3a24cfc9", parts=("image_masks",)),
    Seam(
        f"{BACKEND}.init_forward_metadata",
        "after",
        bidirectional_images.begin_triton,
        "34c1528c81ae",
        parts=("image_masks",),
    ),
    Seam(
        f"{SETUP}._build_resolved_backend",
        "after",
        bidirectional_images.mask_flash,
        "c2aaffa39352",
        parts=("image_masks",),
    ),
    Seam(f"{MODEL}.__init__", "after", bidirectional_images.keep_images_whole, "952b085243ca", parts=("image_masks",)),
    Seam(
        f"{MODEL}.prepare_attn_masks",
        "around",
        bidirectional_images.masks_of_the_model,
        "5fa09fbdafa9",
        parts=("image_masks",),
    ),
    Seam(
        f"{ADDER}.add_chunked_req",
        "around",
        "sglang_gemma4.serving.image_chunks:continue_beside_images",
        "59878bb13f91",
        parts=("image_masks",),
    ),
    Seam(
        f"{ADDER}.add_one_req",
        "around",
        "sglang_gemma4.serving.image_chunks:admit_beside_images",
        "194314fb5aba",
        parts=("image_masks",),
    ),
    Seam(
        f"{ADDER}._select_prefill_admission",
        "around",
        "sglang_gemma4.serving.image_chunks:fit_beside_images",
        "3833a5a43c97",
        parts=("image_masks",),
    ),
    Seam(
        f"{SCHEDULER}._get_new_batch_prefill_raw",
        "around",
        "sglang_gemma4.serving.image_chunks:refuse_what_never_fits",
        "66a87afb5990",
        parts=("image_masks",),
    ),
    Seam(
        "sglang.srt.arg_groups.model_override_base._invoke_provider",
        "after",
        bidirectional_images.prefill_by_triton,
        "41db240adf41",
        parts=("image_masks",),
    ),
    Seam(
        "sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments",
        "after",
        bidirectional_images.refuse_blind_backends,
        "1c321ef6fec8",
        parts=("image_masks",),
    ),
    Seam(
        "sglang.kernels.ops.attention.trtllm_mha_page_table.build_trtllm_mha_page_table",
        "replace",
        "sglang_gemma4.kernels.attention.page_rows:page_rows",
        "d9dc698b1936",
        parts=("page_table_rows",),
    ),
    Seam(f"{TRTLLM}.__init__", "after", attention_backends.make_room_for_draft_tokens, "f348dbe404c7", parts=("page_table_rows",)),
    Entry(
        "sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS",
        "fa4",
        lambda: attention_backends.create_flash_attention,
        "68fea9d1891f",
        parts=("page_table_rows",),
    ),
)
