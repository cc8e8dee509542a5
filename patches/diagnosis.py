"""What operators see of the package, and traps for illegal reads."""

from functools import partial

from sglang_gemma4.diagnostics import arming, server_report
from sglang_gemma4.patching import Part, Seam, uses
from sglang_gemma4.start import start_times

FRONTEND_METRICS = "sglang.srt.observability.metrics_collector.TokenizerMetricsCollector"
SCHEDULER_METRICS = "sglang.srt.observability.metrics_collector.SchedulerMetricsCollector"
ALLOCATOR = "sglang.srt.mem_cache.allocator.swa.SWATokenToKVPoolAllocator"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
DRAFT = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"
BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"
STAGES = {
    "alloc": "717c98efc315",
    "alloc_extend": "9b98128ee852",
    "alloc_extend_swa_tail": "036ae2a7fb67",
    "alloc_decode": "84b55cc5f017",
}
FRONTEND = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
SCHEDULER_STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
GRAPHS = "sglang.srt.model_executor.model_runner_components.cuda_graph_setup"

PARTS = (
    Part(
        name="report",
        does="The server prints a banner when it is ready and lists the patches in /server_info.",
        switch="SGLANG_GEMMA4_REPORT",
        why="SGLang swallows plugin errors and does not report what a plugin changed. An operator must be able to see both.",
        evidence="srt/plugins/__init__.py:136 · srt/entrypoints/http_server.py:857",
        remove_when="SGLang lists applied hooks and failed plugins in /server_info.",
    ),
    Part(
        name="patch_metrics",
        does="/metrics lists the patches if the server runs with --enable-metrics.",
        switch="SGLANG_GEMMA4_REPORT",
        why="Dashboards and alerts over many servers read /metrics, which does not report what a plugin changed. SGLang creates the "
        "hooked collectors only under --enable-metrics; without that flag this patch costs nothing.",
        evidence="srt/observability/metrics_collector.py:1769, 2074 · srt/managers/scheduler.py:631 · srt/entrypoints/engine.py:1352",
        remove_when="SGLang exports applied hooks and failed plugins as metrics.",
        uses=(uses.metrics,),
    ),
    Part(
        name="start_times",
        does="The log and /server_info show how many seconds each part of the start took.",
        switch="SGLANG_GEMMA4_REPORT",
        why="SGLang reports the seconds for weights, pools and graphs, which are half of a start. Stock does not show what the rest is, "
        "or what a package adds.",
        evidence="srt/observability/startup_time.py:11 · runs/2026-11-23-e2b-first-token (159.6 s stock, 172.7 package)",
        remove_when="SGLang's startup_time adds up to the whole start.",
    ),
    Part(
        name="bounds_traps",
        does="Every index is checked before attention follows it; a bad one ends in a named error and a dump.",
        switch="SGLANG_GEMMA4_DEBUG",
        why="On a GPU an index outside its KV pool is read silently, or causes an illegal access later and somewhere else.",
        evidence="kernels/ops/attention/trtllm_mha_page_table.py (never clamps to the table's width) · "
        "srt/layers/attention/flashattention_backend.py:212 (the full table is followed into the sliding pool)",
        remove_when="SGLang checks page tables and sliding mappings itself.",
    ),
)

SEAMS = (
    Seam(
        "sglang.srt.utils.common.configure_logger", "after", server_report.say_opening, "cfaa2684596f", parts=("report",), pins="signature"
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.get_init_info",
        "after",
        server_report.send_rows,
        "1bfe7c8f9650",
        parts=("report",),
        pins="signature",
    ),
    Seam("sglang.srt.entrypoints.engine._wait_for_scheduler_ready", "after", server_report.say_banner, "dcb661fedfda", parts=("report",)),
    Seam(f"{SCHEDULER_STATE}.get_internal_state", "after", server_report.add_scheduler_list, "19ec0b438910", parts=("report",)),
    Seam(f"{FRONTEND}.get_internal_state", "around", server_report.add_frontend_list, "c4a7cbb66e34", parts=("report",)),
    Seam(
        f"{SCHEDULER_METRICS}.emit_constants",
        "after",
        partial(arming.add_samples, "scheduler"),
        "adeb97ac459e",
        parts=("patch_metrics",),
        pins="signature",
    ),
    Seam(
        f"{FRONTEND_METRICS}.emit_startup_time",
        "after",
        partial(arming.add_samples, "frontend"),
        "a6060a264a11",
        parts=("patch_metrics",),
        pins="signature",
    ),
    Seam(
        "sglang.srt.server_args.ServerArgs.resolve_once",
        "around",
        start_times.resolve,
        "3a4ff746ee95",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        f"{SCHEDULER}.init_startup_timing_begin",
        "before",
        start_times.begin_scheduler,
        "be5e5485f47b",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        "sglang.srt.distributed.bootstrap.init_parallel_runtime",
        "around",
        start_times.timed("distributed groups"),
        "9ab73c8253ad",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        f"{SCHEDULER}.init_tokenizer",
        "around",
        start_times.timed("scheduler's tokenizer"),
        "e25af4e3a68c",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        f"{RUNNER}.load_model",
        "around",
        start_times.timed_by_role("target's weights", "draft's weights"),
        "112dc5570247",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        f"{SCHEDULER}.init_memory_pools", "around", start_times.timed("KV pools"), "f893be1b8838", parts=("start_times",), pins="signature"
    ),
    Seam(
        f"{SCHEDULER}.init_all_attention_backends",
        "around",
        start_times.timed("attention backends"),
        "24d56f35c84a",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        f"{SCHEDULER}.init_all_cuda_graphs",
        "around",
        start_times.timed("draft's CUDA graphs"),
        "6b42136d843c",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        f"{RUNNER}.init_cuda_graphs",
        "around",
        start_times.timed_by_role("decode and verify CUDA graphs", "draft's CUDA graphs"),
        "0806ea42775b",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        f"{GRAPHS}.capture_prefill_graph",
        "around",
        start_times.timed_by_role("prefill CUDA graphs", "draft's CUDA graphs"),
        "f21a195cda06",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(f"{SCHEDULER}.get_init_info", "after", start_times.hand_over, "1bfe7c8f9650", parts=("start_times",), pins="signature"),
    Seam(
        "sglang.srt.entrypoints.engine.Engine._set_startup_time",
        "before",
        start_times.take_over,
        "855f29b2e5ee",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(
        "sglang.srt.entrypoints.http_server._freeze_gc_after_server_warmup",
        "before",
        start_times.say,
        "6a6d61e5327a",
        parts=("start_times",),
        pins="signature",
    ),
    Seam(f"{RUNNER}.init_attention_backends", "after", arming.trap_runner, "866ae4389361", parts=("bounds_traps",)),
    Seam(f"{DRAFT}.init_attention_backends", "after", arming.trap_draft, "b383002ae0b1", parts=("bounds_traps",)),
    Seam(f"{RUNNER}._get_attention_backend", "after", arming.trap_state, "726932e8a5eb", parts=("bounds_traps",)),
    Seam(f"{BATCH}.init_new", "after", arming.remember_batch, "a8507017588b", parts=("bounds_traps",)),
    *(
        Seam(f"{ALLOCATOR}.{stage}", "after", partial(arming.check_alloc, stage), source, parts=("bounds_traps",))
        for stage, source in STAGES.items()
    ),
)
