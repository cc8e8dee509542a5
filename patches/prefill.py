"""Prompts: their chunks, their graphs, and mixed batches."""

from sglang_gemma4.models.schedule import prefill_capture
from sglang_gemma4.patching import Part, Seam, resolution_step, uses
from sglang_gemma4.speculative import prompts

RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
GRAPHS = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
UNIFIED = "sglang.srt.mem_cache.allocator.unified_hybrid_swa.UnifiedSWAAllocatorBase"
MODEL = "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration"
CUDA_GRAPH_SETUP = "sglang.srt.model_executor.model_runner_components.cuda_graph_setup"

PARTS = (
    Part(
        name="one_chunk",
        does="A prompt that is cut into chunks is the last of its batch: of two, stock answers one from its first chunk.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="A cut that ends with a page, or where sliding tokens end, leaves budget, with which another prompt may be cut in the "
        "same batch.",
        evidence="srt/managers/schedule_policy.py:1353-1371, 1661, 1693 · srt/managers/scheduler.py:4327 · crash_repro/two_chunks.py",
        remove_when="PrefillAdder cuts no second prompt of a batch.",
    ),
    Part(
        name="host_hits",
        does="A prompt whose prefix comes back from the host is admitted only where its window and its new tokens both fit.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="HiCache locks the part of a prompt's window that is on the card as it reads the rest from the host; admission has "
        "counted it as evictable, so the prompt's new tokens find no slot and the server ends with 'Out of memory'.",
        evidence="srt/managers/schedule_policy.py:1430-1440 · mem_cache/prefill_budget.py:230 · mem_cache/unified_radix_cache.py:1832 "
        "· crash_repro/host_hits.py",
        remove_when="PrefillAdder.add_one_req locks best_match_node while it selects an admission.",
        uses=(uses.host_cache,),
    ),
    Part(
        name="prefill_graph",
        does="Prefills replay CUDA graphs of the language model, images included, up to sizes for each model.",
        switch="SGLANG_GEMMA4_PREFILL_GRAPH",
        why="Stock launches Gemma 4's prefills kernel by kernel: it excludes multimodal models, raises on layers that share KV and "
        "replays without per-layer embeddings.",
        evidence="srt/arg_groups/cuda_graph_hook.py:230, 480 (58 sizes) · model_runner_components/cuda_graph_setup.py:156 · "
        "gemma4_causal.py:1003 (ids and embeddings at once are refused) · prefill_cuda_graph_runner.py:2100 (replay copies embeddings "
        "alone) · H200, TTFT of a lone prompt of 1,000 tokens with graphs, without, stock: 26B-A4B 30, 68, 77 ms, "
        "runs/2026-11-23-26b-prefill; E2B without yoco_graph 42, 71, 61, but 65, 91, 62 at 128 tokens, runs/2026-11-23-e2b-images-ttft "
        "· capture takes 16 to 73 s with nothing compiled, and 0.4 to 0.6 GiB · up to 4,096 tokens on E2B and E4B, 2,048 on 26B-A4B, "
        "1,024 on 12B, 512 on 31B, or --cuda-graph-bs-prefill",
        remove_when="Gemma4ForConditionalGeneration is in SGLang's multimodal_breakable_cuda_graph_supported_model_archs.",
        uses=(uses.kernels, uses.prefill_graphs_wanted),
    ),
    Part(
        name="yoco_graph",
        does="The shared layers' part of a prefill is replayed from CUDA graphs of up to 32 requests.",
        switch="SGLANG_GEMMA4_YOCO",
        why="20 of E2B's 35 layers and 18 of E4B's 42 see one row of a prompt, and Python launches their kernels one by one: a lone "
        "prompt of 1,000 tokens waits 42 ms for E2B's first token, 30 for that of 26B-A4B, which has no such layers.",
        evidence="H200, E2B, median TTFT of a lone prompt with it, without, stock: 13, 39, 48 ms at 128 tokens (three passes), 14, "
        "44, 57 at 1,000 (two, two and three), runs/2026-11-23-e2b-first-token · 26B-A4B: runs/2026-11-23-26b-prefill · six graphs "
        "took 12.6 s, the decode graphs after them 11.7 s less; their memory was not measured",
        remove_when="SGLang captures prefills of models that share KV as one graph.",
        uses=(uses.shared_kv, uses.prefill_graphs, uses.any_batch),
    ),
    Part(
        name="flash_in_graphs",
        does="In CUDA graphs of joined forwards FlashAttention-4 computes the prompts' full layers, where it was measured faster.",
        switch="SGLANG_GEMMA4_FLASH_PREFILL",
        why="Long prompts beside running requests are bound by the full layers' attention, which our kernel computes at about 160 "
        "TFLOP/s; FlashAttention-4 needs nothing of the host but shapes, so a graph can hold it.",
        evidence="H200, 26B-A4B, prompts of 8,000 tokens: a joined forward of 2,048 rows takes 49 to 62 ms, by calculation 10 of them "
        "in its five full layers · kernels/ops/attention/flash_attn/cute/tile_scheduler.py:945 (the grid), :962 (lengths are read on "
        "the device), interface.py:1284 (what is compiled) · tests/engine/test_whole_graphs.py · 80 summaries of 8,000 tokens, with "
        "balanced_parts: 3,201 tokens/s for 3,017 without both (runs/2026-11-26-26b-h200-gap)",
        remove_when="our kernel is as fast at 512 dimensions.",
        uses=(uses.joined_steps, uses.triton_prefill, uses.hopper, uses.any_batch),
    ),
    Part(
        name="prefill_beside",
        does="Prompts are prefilled in the same forward as the decode or verify rows of the running requests.",
        switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
        why="Stock runs a prefill or the running batch: while a queue is admitted, decode falls to a third. It refuses mixed chunks "
        "under MTP, and elsewhere sends decode rows through the prefill kernel.",
        evidence="srt/managers/scheduler.py:3992-4003 · srt/arg_groups/speculative_hook.py:1002 · srt/managers/schedule_batch.py:3267 "
        "· tests/engine/test_prefill_beside.py, test_whole_graphs.py, test_unified_memory.py, test_beside_host_cache.py · H100, "
        "26B-A4B with MTP, three passes: mixed lengths 3,168 tokens/s for 2,588 in turn and p99 between tokens 57 ms for 203, 64 x "
        "1000/500 3,708 for 3,445, 32 x 1000/200 2,614 for 2,788 (runs/2026-11-25-26b-h100-beside); before its bounds were mended it "
        "lost 13 % on an H200 (runs/2026-11-25-26b-whole-graphs); H200 beside vLLM: runs/2026-11-26-26b-h200-gap · off on E4B: p99 "
        "between tokens of a mix 61 ms for 203, 5 % fewer tokens/s, runs/2026-11-26-e4b-h200-peer",
        remove_when="SGLang verifies drafts and prefills in one forward.",
        uses=(uses.joined_steps, uses.any_batch),
    ),
    Part(
        name="card_clock",
        does="Steps by whose times prompts go beside running requests are timed by the card, not as the host reads results.",
        switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
        why="The host reads a step late while it launches a long eager prefill, and the step after seems short: chunks are then "
        "chosen by times that cannot be.",
        evidence="8,192 tokens of 26B-A4B took an H200 146 ms in 4 bits and 120 in bfloat16, by the host's clock 51 "
        "(runs/2026-11-29-26b-h200-int4-gaps, -gaps); with the gaps that right times allow 30 long prompts have 1.17 times the "
        "tokens/s in bfloat16, a burst of 32 1.06, a mix 1.01 times (runs/2026-11-29-26b-h200-auto)",
        remove_when="prefill_beside is removed.",
        uses=(uses.joined_steps,),
    ),
    Part(
        name="prefill_turns",
        does="On E2B and E4B running requests get a decode step between two prefills: SGLang's --prefill-decode-interval is 1.",
        switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
        why="Where prompts do not go in one forward with running requests, SGLang prefills as long as prompts wait, and streams stop.",
        evidence="srt/managers/scheduler.py:1400 (it goes on prefilling), :1425 (the interval) · H200, E4B with MTP, mix, three passes: "
        "p99 between tokens 94 ms and 181 without, longest pause 96 and 673 ms, p99 first token 962 and 839 ms, 6,982 and 7,502 tokens/s; "
        "vLLM beside it 142 and 196 ms, 1,353 ms, 5,527 tokens/s (runs/2026-12-01-e4b-h200-turns) · E2B, 12B and 31B were not run "
        "· tests/engine/test_turns_of_prefills.py",
        remove_when="SGLang bounds by itself how long running requests wait for prefills.",
        uses=(uses.prefill_turns,),
    ),
)

SEAMS = (
    Seam(
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req", "after", prompts.be_the_last, "194314fb5aba", parts=("one_chunk",)
    ),
    Seam(
        "sglang.srt.managers.schedule_policy.PrefillAdder._select_prefill_admission",
        "around",
        "sglang_gemma4.memory.host_hits:with_its_window_locked",
        "3833a5a43c97",
        parts=("host_hits",),
    ),
    Seam(
        "sglang.srt.arg_groups.cuda_graph_hook.apply_cuda_graph_compatibility",
        "around",
        prefill_capture.allow,
        "159a81fe0212",
        parts=("prefill_graph",),
    ),
    resolution_step(prefill_capture.STEP, prefill_capture.size_graphs, parts=("prefill_graph",)),
    Seam(
        f"{CUDA_GRAPH_SETUP}.index_attention_layers_by_global_id",
        "around",
        prefill_capture.list_by_layer,
        "691dcbaef73e",
        parts=("prefill_graph",),
    ),
    Seam(
        f"{RUNNER}._input_embeds_hidden_size",
        "before",
        prefill_capture.take_embeddings,
        "0052693a07fb",
        parts=("prefill_graph",),
    ),
    Seam(
        f"{RUNNER}.capture",
        "around",
        prompts.capture,
        "85281b39b2ae",
        parts=("prefill_graph", "yoco_graph", "flash_in_graphs", "prefill_beside"),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4TextModel.forward",
        "around",
        prefill_capture.capture_body,
        "e83830e23e96",
        parts=("prefill_graph",),
    ),
    Seam(f"{RUNNER}._fill_input_embeds_slot", "after", prefill_capture.fill_inputs, "822eba3d8f5a", parts=("prefill_graph",)),
    Seam(
        f"{SCHEDULER}.get_next_batch_to_run",
        "around",
        "sglang_gemma4.speculative.prefill_beside:next_batches",
        "9c5ef6348963",
        parts=("prefill_beside",),
    ),
    Seam(
        f"{SCHEDULER}._should_defer_prefill",
        "around",
        "sglang_gemma4.speculative.prompt_chunks:gather",
        "ed4f8b727d43",
        parts=("prefill_beside",),
    ),
    Seam(f"{SCHEDULER}.run_batch", "around", "sglang_gemma4.speculative.prefill_beside:run", "c314c0d4b02c", parts=("prefill_beside",)),
    Seam(
        f"{SCHEDULER}.process_batch_result",
        "around",
        "sglang_gemma4.speculative.prefill_beside:process",
        "a67c683e5347",
        parts=("prefill_beside",),
    ),
    Seam(
        f"{SCHEDULER}._advance_pending_grammar",
        "after",
        "sglang_gemma4.speculative.prefill_beside:advance_grammar",
        "e12dc03ec5c1",
        parts=("prefill_beside",),
    ),
    Seam(
        f"{SCHEDULER}._reqs_finishing_inflight",
        "after",
        "sglang_gemma4.speculative.prefill_beside:finishing",
        "9708f74c69d9",
        parts=("prefill_beside",),
    ),
    Seam(
        "sglang.srt.model_executor.model_runner.ModelRunner.forward",
        "around",
        "sglang_gemma4.speculative.prefill_beside:one_forward",
        "26fbd69d3377",
        parts=("prefill_beside",),
    ),
    Seam(
        f"{GRAPHS}.can_run_graph", "around", "sglang_gemma4.speculative.prefill_beside:no_graph", "28a2e06aebae", parts=("prefill_beside",)
    ),
    Seam(
        "sglang.srt.layers.attention.triton_backend.update_sliding_window_buffer",
        "around",
        "sglang_gemma4.models.schedule.joined_batch:window_buffers",
        "4e495713bb1e",
        parts=("prefill_beside",),
    ),
    Seam(
        f"{UNIFIED}.set_inflight_forward",
        "around",
        "sglang_gemma4.speculative.prefill_beside:in_flight",
        "9223fb4da279",
        parts=("prefill_beside",),
    ),
    Seam(
        f"{MODEL}.prepare_attn_masks",
        "around",
        "sglang_gemma4.models.schedule.joined_forward:masks_of_parts",
        "5fa09fbdafa9",
        parts=("prefill_beside",),
    ),
    Seam(
        "sglang.srt.layers.logits_processor.LogitsProcessor.forward",
        "around",
        "sglang_gemma4.models.schedule.joined_forward:logits_of_each",
        "1bccba122f1d",
        parts=("prefill_beside",),
    ),
    Seam(f"{SCHEDULER}.init_overlap", "after", "sglang_gemma4.speculative.step_clock:use_card", "06f2eebcd7a9", parts=("card_clock",)),
    Seam(
        "sglang.srt.arg_groups.validation_hook.default_unset_prefill_decode_interval",
        "before",
        "sglang_gemma4.speculative.prefill_turns:set_interval",
        "765d7ce3e63f",
        parts=("prefill_turns",),
    ),
)
