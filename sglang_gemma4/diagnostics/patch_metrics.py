"""Adds to SGLang's /metrics the state of each patch as a gauge, and a counter of kernels compiled while requests waited."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from sglang_gemma4 import __version__
from sglang_gemma4.diagnostics import status
from sglang_gemma4.start import kernels

COMPILED = "sglang:gemma4_compiled_while_serving"
NAME = "sglang:gemma4_patch_active"
LABELS = ("patch", "state", "process", "version")
Process = Literal["scheduler", "frontend"]


def publish(
    process: Process,
    labels: Mapping[str, Any],
    gauge_class: Callable[..., Any] | None = None,
    counter_class: Callable[..., Any] | None = None,
) -> None:
    """Set one sample for each patch of this process: 1 if it is active, 0 in every other state.

    The samples carry SGLang's own ``labels`` (model, engine, rank) and ours: patch, state, process and version of
    this package. Call it once per process, after SGLang has set ``PROMETHEUS_MULTIPROC_DIR``: prometheus_client
    decides at its import where it keeps values. ``gauge_class`` and ``counter_class`` replace its own classes
    (SGLang's collectors have some for Ray).
    """
    if gauge_class is None:
        from prometheus_client import Gauge

        gauge_class = Gauge
    # Ours win if an operator's --extra-metric-labels has the same name: a duplicate name would end the process.
    gauge = gauge_class(
        name=NAME,
        documentation="Whether a patch of sglang-gemma4 is active (1) or not (0); the label state says which way.",
        labelnames=list(dict.fromkeys([*labels, *LABELS])),
        multiprocess_mode="mostrecent",  # one sample for a set of labels, whatever processes wrote it; "all" would add their pids
    )
    if process == "scheduler" and kernels.is_watching():
        _count_compilations(labels, counter_class)
    for row in status.rows():
        ours = dict(zip(LABELS, (row["name"], row["state"], process, __version__), strict=True))
        gauge.labels(**{**labels, **ours}).set(int(row["state"] == "active"))


def _count_compilations(labels: Mapping[str, Any], counter_class: Callable[..., Any] | None) -> None:
    """Export how many of this scheduler's Triton kernels were compiled after its start; 0 on a healthy server."""
    if counter_class is None:
        from prometheus_client import Counter

        counter_class = Counter
    said = "Triton kernels that were compiled after the start, while requests waited."
    kernels.hear(counter_class(name=COMPILED, documentation=said, labelnames=list(labels)).labels(**labels).inc)
