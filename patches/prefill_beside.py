"""Prompts are prefilled in the same forward as the decode or verify rows of the running requests."""

from sglang_gemma4.patching import Hook, Patch, uses

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
GRAPHS = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
PREFILL_GRAPHS = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner"
UNIFIED = "sglang.srt.mem_cache.allocator.unified_hybrid_swa.UnifiedSWAAllocatorBase"
MODEL = "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration"
BESIDE, CHUNKS = "sglang_gemma4.speculative.prefill_beside", "sglang_gemma4.speculative.prompt_chunks"
JOINED, BATCH = "sglang_gemma4.models.schedule.joined_forward", "sglang_gemma4.models.schedule.joined_batch"

PATCH = Patch(
    switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
    why="Stock runs a prefill or the running batch: while a queue is admitted, decode falls to a third. It refuses mixed chunks under MTP, "
    "and elsewhere sends decode rows through the prefill kernel.",
    evidence="srt/managers/scheduler.py:3992-4003 · srt/arg_groups/speculative_hook.py:1002 · srt/managers/schedule_batch.py:3267 · "
    "tests/engine/test_prefill_beside.py, test_whole_graphs.py, test_unified_memory.py, test_beside_host_cache.py · "
    "H100, 26B-A4B with MTP, three passes: mixed lengths 3,168 tokens/s for 2,588 in turn and p99 between tokens 57 ms for 203, "
    "64 x 1000/500 3,708 for 3,445, 32 x 1000/200 2,614 for 2,788 (runs/2026-11-25-26b-h100-beside); before its bounds were mended it "
    "lost 13 % on an H200 (runs/2026-11-25-26b-whole-graphs); H200 beside vLLM: runs/2026-11-26-26b-h200-gap · off on E4B: p99 between "
    "tokens of a mix 61 ms for 203, 5 % fewer tokens/s, runs/2026-11-26-e4b-h200-peer",
    remove_when="SGLang verifies drafts and prefills in one forward.",
    uses=(uses.joined_steps, uses.any_batch),
    hooks=(
        Hook(f"{SCHEDULER}.get_next_batch_to_run", "around", f"{BESIDE}:next_batches", "9c5ef6348963"),
        Hook(f"{SCHEDULER}._should_defer_prefill", "around", f"{CHUNKS}:gather", "ed4f8b727d43"),
        Hook(f"{SCHEDULER}.run_batch", "around", f"{BESIDE}:run", "c314c0d4b02c"),
        Hook(f"{SCHEDULER}.process_batch_result", "around", f"{BESIDE}:process", "a67c683e5347"),
        Hook(f"{SCHEDULER}._advance_pending_grammar", "after", f"{BESIDE}:advance_grammar", "e12dc03ec5c1"),
        Hook(f"{SCHEDULER}._reqs_finishing_inflight", "after", f"{BESIDE}:finishing", "9708f74c69d9"),
        Hook("sglang.srt.model_executor.model_runner.ModelRunner.forward", "around", f"{BESIDE}:one_forward", "26fbd69d3377"),
        Hook(f"{GRAPHS}.can_run_graph", "around", f"{BESIDE}:no_graph", "28a2e06aebae"),
        Hook(f"{PREFILL_GRAPHS}.capture", "after", f"{BESIDE}:capture_whole", "85281b39b2ae"),
        Hook(
            "sglang.srt.layers.attention.triton_backend.update_sliding_window_buffer",
            "around",
            f"{BATCH}:window_buffers",
            "4e495713bb1e",
        ),
        Hook(f"{UNIFIED}.set_inflight_forward", "around", f"{BESIDE}:in_flight", "9223fb4da279"),
        Hook(f"{MODEL}.prepare_attn_masks", "around", f"{JOINED}:masks_of_parts", "5fa09fbdafa9"),
        Hook("sglang.srt.layers.logits_processor.LogitsProcessor.forward", "around", f"{JOINED}:logits_of_each", "1bccba122f1d"),
    ),
)
