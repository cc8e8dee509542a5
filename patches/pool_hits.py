"""Hit rates of both KV pools, evicted windows and windows taken back on /metrics."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

OURS = "sglang_gemma4.diagnostics.pool_hits"
COLLECTOR = "sglang.srt.observability.metrics_collector.SchedulerMetricsCollector"


def add_counters(_result: object, collector: Any, *_args: object, **_kwargs: object) -> None:
    """After a scheduler's collector is ready, which SGLang makes only under --enable-metrics."""
    from sglang_gemma4.diagnostics.pool_hits import publish

    publish(collector.labels, collector._counter_cls)


PATCH = Patch(
    switch="SGLANG_GEMMA4_REPORT",
    why="A cached prompt is of use only where its last sliding window is there too; stock's metrics do not tell a prompt that was never "
    "there from one whose window alone was evicted, and count evicted full-attention tokens only.",
    evidence="srt/mem_cache/unified_cache/components/swa.py:358 (a hit ends where a window is) · unified_radix_cache.py:832 · "
    "mem_cache/base_prefix_cache.py:315 · tests/engine/test_pool_hits.py",
    remove_when="SGLang exports hits and evictions of each KV pool.",
    uses=(uses.metrics,),
    hooks=(
        Hook("sglang.srt.mem_cache.common.match_kv_cache", "after", f"{OURS}:matched", "1f3b0e2c895c"),
        Hook("sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend", "after", f"{OURS}:admitted", "fa20f429824a"),
        Hook("sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache._evict", "after", f"{OURS}:evicted", "b6c665124d79"),
        Hook(f"{COLLECTOR}.emit_constants", "after", add_counters, "661df3d1a661"),
        Hook(f"{COLLECTOR}.log_stats", "after", f"{OURS}:logged", "716da99a48aa"),
    ),
)
