"""What operators see of the package, and traps for illegal reads."""

from typing import Any, Literal


def add_samples(process: Literal["scheduler", "frontend"], _result: object, collector: Any, *_args: object, **_kwargs: object) -> None:
    """After what a metrics collector of a process calls once, when it is ready."""
    from sglang_gemma4.diagnostics.patch_metrics import publish

    publish(process, collector.labels, collector._gauge_cls, collector._counter_cls)


NAME = "bounds_traps"


def trap_runner(_result: None, runner: Any) -> None:
    """After ``ModelRunner.init_attention_backends``: its backends, before anything was prepared or captured."""
    for backend in (runner.attn_backend, runner.decode_attn_backend, *(runner.decode_attn_backend_group or ())):
        if backend is not None:
            trap_state(backend, runner)


def trap_state(backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ModelRunner._get_attention_backend``: the backends of other draft lengths (adaptive_draft), made after the first."""
    from sglang_gemma4.diagnostics import traps

    draft = bool(runner.is_draft_worker) and runner.spec_algorithm.is_frozen_kv_mtp()
    traps.arm(backend, NAME, runner.sliding_window_size, draft)


def trap_draft(_result: None, worker: Any) -> None:
    """After ``FrozenKVMTPDraftWorker.init_attention_backends``: with topk > 1 the draft has a backend that its runner does not."""
    from sglang_gemma4.diagnostics import traps

    traps.arm(worker.draft_attn_backend, NAME, worker.draft_model_runner.sliding_window_size, True)


def remember_batch(batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ForwardBatch.init_new``: the names of its requests, for a violation's report."""
    from sglang_gemma4.diagnostics import traps

    traps.remember(batch)


def check_alloc(stage: str, result: Any, allocator: Any, *args: Any, **kwargs: Any) -> None:
    """After ``alloc`` (pages of one slot), ``alloc_extend`` (the slots of a prefill) or ``alloc_decode`` (one for each request), and
    ``alloc_extend_swa_tail``: a prompt that arrives from a prefill server has sliding slots for its last tokens only."""
    from sglang_gemma4.diagnostics import traps

    tail = (int(kwargs["swa_tail_len"] if "swa_tail_len" in kwargs else args[6]),) if stage == "alloc_extend_swa_tail" else ()
    traps.check_allocation(NAME, allocator, result, stage, *tail)
