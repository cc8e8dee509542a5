"""Exports hit rates of both KV pools, evictions and windows taken back on /metrics."""

from typing import Any


def add_counters(_result: object, collector: Any, *_args: object, **_kwargs: object) -> None:
    """After a scheduler's collector is ready, which SGLang makes only under --enable-metrics: create the counters."""
    from sglang_gemma4.diagnostics.pool_hits import publish

    publish(collector.labels, collector._counter_cls)
