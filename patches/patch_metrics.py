"""The patches on /metrics, where the server has --enable-metrics."""

from functools import partial
from typing import Any, Literal

from sglang_gemma4.patching import Hook, Patch, uses

FRONTEND = "sglang.srt.observability.metrics_collector.TokenizerMetricsCollector"
SCHEDULER = "sglang.srt.observability.metrics_collector.SchedulerMetricsCollector"


def add_samples(process: Literal["scheduler", "frontend"], _result: object, collector: Any, *_args: object, **_kwargs: object) -> None:
    """After what a metrics collector of a process calls once, when it is ready."""
    from sglang_gemma4.diagnostics.patch_metrics import publish

    publish(process, collector.labels, collector._gauge_cls)


PATCH = Patch(
    switch="SGLANG_GEMMA4_REPORT",
    why="A dashboard or an alert over many servers reads /metrics, which says nothing of what a plugin changed. "
    "SGLang makes the hooked collectors only under --enable-metrics; without it this costs nothing.",
    evidence="srt/observability/metrics_collector.py:1769, 2074 · srt/managers/scheduler.py:631 · srt/entrypoints/engine.py:1352",
    remove_when="SGLang exports applied hooks and failed plugins as metrics.",
    uses=(uses.metrics,),
    hooks=(
        Hook(f"{SCHEDULER}.emit_constants", "after", partial(add_samples, "scheduler"), "661df3d1a661"),
        Hook(f"{FRONTEND}.emit_startup_time", "after", partial(add_samples, "frontend"), "8728dae85d4c"),
    ),
)
