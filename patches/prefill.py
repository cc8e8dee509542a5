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
        does="A prompt that is cut into chunks is the last of its batch; with two, stock answers one from its first chunk.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="If a cut falls on a page boundary or where sliding tokens run out, some token budget is left. Stock then may cut another "
        "prompt in the same batch.",
        evidence="srt/managers/schedule_policy.py:1353-1371, 1661, 1693 · srt/managers/scheduler.py:4327 · crash_repro/two_chunks.py",
        remove_when="PrefillAdder does not cut a second prompt of a batch.",
    ),
    Part(
        name="host_hits",
        does="A prompt whose prefix is read back from the host is admitted only if its window and its new tokens both fit.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="HiCache locks the part of a prompt's window that is on the GPU while it reads the rest from the host. Admission has counted "
        "that part as evictable. The prompt's new tokens then find no slot, and the server ends with 'Out of memory'.",
        evidence="srt/managers/schedule_policy.py:1430-1440 · mem_cache/prefill_budget.py:230 · mem_cache/unified_radix_cache.py:1832 "
        "· crash_repro/host_hits.py",
        remove_when="PrefillAdder.add_one_req locks best_match_node while it selects an admission.",
        uses=(uses.host_cache,),
    ),
    Part(
        name="prefill_graph",
        does="Prefills, also those with images, replay CUDA graphs of the language model, up to a size per model.",
        switch="SGLANG_GEMMA4_PREFILL_GRAPH",
        why="Stock launches Gemma 4's prefills kernel by kernel. It excludes multimodal models, raises on layers that share KV, and "
        "replays without per-layer embeddings.",
        evidence="srt/arg_groups/cuda_graph_hook.py:230, 480 (58 sizes) · model_runner_components/cuda_graph_setup.py:156 · "
        "gemma4_causal.py:1003 (it refuses ids together with embeddings) · prefill_cuda_graph_runner.py:2100 (a replay copies only "
        "embeddings) · H200, TTFT of a single prompt of 1,000 tokens: 26B-A4B 30 ms with graphs, 68 without, 77 in stock, "
        "runs/2026-11-23-26b-prefill; E2B without yoco_graph 42 ms with graphs, 71 without, 61 in stock, but at 128 tokens 65 with "
        "graphs, 91 without, 62 in stock, runs/2026-11-23-e2b-images-ttft · capture takes 16 to 73 s if nothing is compiled yet, and 0.4 "
        "to 0.6 GiB · sizes reach 4,096 tokens on E2B and E4B, 2,048 on 26B-A4B, 1,024 on 12B, 512 on 31B, or what "
        "--cuda-graph-bs-prefill says",
        remove_when="Gemma4ForConditionalGeneration is in SGLang's multimodal_breakable_cuda_graph_supported_model_archs.",
        uses=(uses.kernels, uses.prefill_graphs_wanted),
    ),
    Part(
        name="yoco_graph",
        does="CUDA graphs of up to 32 requests replay the part of a prefill in the layers that share KV.",
        switch="SGLANG_GEMMA4_YOCO",
        why="20 of E2B's 35 layers and 18 of E4B's 42 compute one row of a prompt, and Python launches their kernels one by one. A "
        "single prompt of 1,000 tokens waits 42 ms for E2B's first token. 26B-A4B, which has no such layers, needs 30 ms.",
        evidence="H200, E2B, median TTFT of a single prompt: at 128 tokens 13 ms with it, 39 without, 48 in stock (three passes each); "
        "at 1,000 tokens 14 ms with it (two passes), 44 without (two), 57 in stock (three), runs/2026-11-23-e2b-first-token · 26B-A4B: "
        "runs/2026-11-23-26b-prefill · capture of six graphs took 12.6 s, and the decode graphs after them took 11.7 s less; the graphs' "
        "memory was not measured",
        remove_when="SGLang captures prefills of models that share KV as one graph.",
        uses=(uses.shared_kv, uses.prefill_graphs, uses.any_batch),
    ),
    Part(
        name="flash_in_graphs",
        does="In graphs of mixed batches FlashAttention-4 computes prompts' full-attention layers, where measured faster.",
        switch="SGLANG_GEMMA4_FLASH_PREFILL",
        why="Full layers' attention limits long prompts in a mixed batch (prefill chunk and decode or verify rows in one forward). Our "
        "kernel computes it at about 160 TFLOP/s. FlashAttention-4 needs only shapes from the host, so a CUDA graph can hold it.",
        evidence="H200, 26B-A4B, prompts of 8,000 tokens: a mixed batch of 2,048 rows takes 49 to 62 ms, of which by calculation 10 ms "
        "in its five full layers · kernels/ops/attention/flash_attn/cute/tile_scheduler.py:945 (the grid), :962 (the device reads the "
        "lengths), interface.py:1284 (what is compiled) · tests/engine/test_whole_graphs.py · 80 summaries of 8,000 tokens, with "
        "balanced_parts: 3,201 tokens/s, without both 3,017 (runs/2026-11-26-26b-h200-gap)",
        remove_when="Our kernel is as fast as FlashAttention-4 at 512 dimensions.",
        uses=(uses.joined_steps, uses.triton_prefill, uses.hopper, uses.any_batch),
    ),
    Part(
        name="prefill_beside",
        does="Prompts are prefilled in a mixed batch: in one forward with the decode or verify rows of running requests.",
        switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
        why="Stock runs either a prefill or the running batch. While it admits a queue, decode throughput falls to a third. Stock "
        "refuses mixed chunks under MTP, and otherwise sends decode rows through the prefill kernel.",
        evidence="srt/managers/scheduler.py:3992-4003 · srt/arg_groups/speculative_hook.py:1002 · srt/managers/schedule_batch.py:3267 · "
        "tests/engine/test_prefill_beside.py, test_whole_graphs.py, test_unified_memory.py, test_beside_host_cache.py · H100, 26B-A4B "
        "with MTP, three passes: mixed lengths 3,168 tokens/s (alternating: 2,588) and p99 inter-token latency 57 ms (alternating: 203 "
        "ms), 64 x 1000/500 3,708 tokens/s (3,445), 32 x 1000/200 2,614 tokens/s (2,788) (runs/2026-11-25-26b-h100-beside); before its "
        "bounds were fixed it lost 13 % on an H200 (runs/2026-11-25-26b-whole-graphs); H200, compared with vLLM: "
        "runs/2026-11-26-26b-h200-gap · off by default on E4B: on a mix, p99 inter-token latency was 61 ms with it (203 ms without) at 5 "
        "% less throughput, runs/2026-11-26-e4b-h200-peer",
        remove_when="SGLang verifies drafts and prefills in one forward.",
        uses=(uses.joined_steps, uses.any_batch),
    ),
    Part(
        name="card_clock",
        does="The step times that set prompt chunk sizes are measured by the GPU, not when the host reads results.",
        switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
        why="The host reads a step late while it launches a long eager prefill, and the next step then seems short. Chunk sizes are then "
        "chosen from impossible times.",
        evidence="8,192 tokens of 26B-A4B took an H200 146 ms in 4 bits and 120 ms in bfloat16; the host's clock said 51 ms "
        "(runs/2026-11-29-26b-h200-int4-gaps, -gaps); with the pauses that correct times allow, throughput in bfloat16 is 1.17x on 30 "
        "long prompts, 1.06x on a burst of 32, 1.01x on a mix (runs/2026-11-29-26b-h200-auto)",
        remove_when="prefill_beside is removed.",
        uses=(uses.joined_steps,),
    ),
    Part(
        name="prefill_turns",
        does="On E2B and E4B running requests get a decode step between two prefills (--prefill-decode-interval is 1).",
        switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
        why="Without mixed batches SGLang keeps prefilling as long as prompts wait, and the streams of running requests stop.",
        evidence="srt/managers/scheduler.py:1400 (it keeps prefilling), :1425 (the interval) · H200, E4B with MTP, mix, three passes: "
        "p99 inter-token latency 94 ms (without it 181), longest pause 96 ms (673), p99 TTFT 962 ms (839), 6,982 tokens/s (7,502); vLLM "
        "in the same run, two passes: p99 inter-token latency 142 and 196 ms, p99 TTFT from 1,353 ms, 5,527 tokens/s "
        "(runs/2026-12-01-e4b-h200-turns) · E2B, 12B and 31B have not been run · tests/engine/test_turns_of_prefills.py",
        remove_when="SGLang itself limits how long running requests wait for prefills.",
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
