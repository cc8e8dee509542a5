"""Hooks that publish the package's metrics and arm the traps for illegal KV accesses."""

from typing import Any, Literal


def add_samples(process: Literal["scheduler", "frontend"], _result: object, collector: Any, *_args: object, **_kwargs: object) -> None:
    """After a method that a process's metrics collector calls once, when it is ready: publish the patch states."""
    from sglang_gemma4.diagnostics.patch_metrics import publish

    publish(process, collector.labels, collector._gauge_cls, collector._counter_cls)


NAME = "bounds_traps"


def trap_runner(_result: None, runner: Any) -> None:
    """After ``ModelRunner.init_attention_backends``: arm its backends, before anything is prepared or captured."""
    for backend in (runner.attn_backend, runner.decode_attn_backend, *(runner.decode_attn_backend_group or ())):
        if backend is not None:
            trap_state(backend, runner)


def trap_state(backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ModelRunner._get_attention_backend``: arm a backend of another draft length (adaptive_draft), which is made later."""
    from sglang_gemma4.diagnostics import traps

    draft = bool(runner.is_draft_worker) and runner.spec_algorithm.is_frozen_kv_mtp()
    traps.arm(backend, NAME, runner.sliding_window_size, draft)


def trap_draft(_result: None, worker: Any) -> None:
    """After ``FrozenKVMTPDraftWorker.init_attention_backends``: arm the draft's backend, which with topk > 1 is not its runner's."""
    from sglang_gemma4.diagnostics import traps

    traps.arm(worker.draft_attn_backend, NAME, worker.draft_model_runner.sliding_window_size, True)


def remember_batch(batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ForwardBatch.init_new``: remember the names of its requests, for the report of a violation."""
    from sglang_gemma4.diagnostics import traps

    traps.remember(batch)


def check_alloc(stage: str, result: Any, allocator: Any, *args: Any, **kwargs: Any) -> None:
    """Check the allocated slots, after ``alloc``, ``alloc_extend``, ``alloc_decode`` or ``alloc_extend_swa_tail``.

    ``alloc`` gives pages of one slot, ``alloc_extend`` the slots of a prefill, ``alloc_decode`` one slot per request.
    After ``alloc_extend_swa_tail`` only the last tokens have sliding slots: the prompt came from a prefill server.
    """
    from sglang_gemma4.diagnostics import traps

    tail = (int(kwargs["swa_tail_len"] if "swa_tail_len" in kwargs else args[6]),) if stage == "alloc_extend_swa_tail" else ()
    traps.check_allocation(NAME, allocator, result, stage, *tail)
