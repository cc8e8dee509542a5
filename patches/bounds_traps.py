"""Every index that attention is about to follow is checked; a bad one ends in a named error and a dump."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_gemma4.patching import Hook, Patch

NAME = "bounds_traps"
ALLOCATOR = "sglang.srt.mem_cache.allocator.swa.SWATokenToKVPoolAllocator"


def trap_runner(_result: None, runner: Any, *, patch: str = NAME, only: str | None = None) -> None:
    """After ``ModelRunner.init_attention_backends``: its backends, before anything was prepared or captured."""
    from sglang_gemma4.diagnostics import traps

    draft = bool(runner.is_draft_worker) and runner.spec_algorithm.is_frozen_kv_mtp()
    for backend in (runner.attn_backend, runner.decode_attn_backend, *(runner.decode_attn_backend_group or ())):
        if backend is not None:
            traps.arm(backend, patch, runner.sliding_window_size, draft, only)


def trap_draft(_result: None, worker: Any, *, patch: str = NAME, only: str | None = None) -> None:
    """After ``FrozenKVMTPDraftWorker.init_attention_backends``: with topk > 1 the draft has a backend that its runner does not."""
    from sglang_gemma4.diagnostics import traps

    traps.arm(worker.draft_attn_backend, patch, worker.draft_model_runner.sliding_window_size, True, only)


def trap_state(backend: Any, runner: Any, *_args: Any, patch: str = NAME, only: str | None = None, **_kwargs: Any) -> None:
    """After ``ModelRunner._get_attention_backend``: the backends of other draft lengths (adaptive_draft), made after the first."""
    from sglang_gemma4.diagnostics import traps

    draft = bool(runner.is_draft_worker) and runner.spec_algorithm.is_frozen_kv_mtp()
    traps.arm(backend, patch, runner.sliding_window_size, draft, only)


def remember_batch(batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ForwardBatch.init_new``: the names of its requests, for a violation's report."""
    from sglang_gemma4.diagnostics import traps

    traps.remember(batch)


def check_alloc(result: Any, allocator: Any, *_args: Any, stage: str, patch: str = NAME, **_kwargs: Any) -> None:
    """After ``alloc`` (pages of one slot), ``alloc_extend`` (the slots of a prefill) or ``alloc_decode`` (one for each request)."""
    from sglang_gemma4.diagnostics import traps

    traps.check_allocation(patch, allocator, result, stage)


def check_alloc_tail(result: Any, allocator: Any, *args: Any, patch: str = NAME, **kwargs: Any) -> None:
    """After ``alloc_extend_swa_tail``: a prompt that arrives from a prefill server has sliding slots for its last tokens only."""
    from sglang_gemma4.diagnostics import traps

    tail = kwargs["swa_tail_len"] if "swa_tail_len" in kwargs else args[6]
    traps.check_allocation(patch, allocator, result, "alloc_extend_swa_tail", int(tail))


# (target, hook, fingerprint), shared with trtllm_mha_traps.
ALLOCATIONS: tuple[tuple[str, Callable[..., None], str], ...] = (
    (f"{ALLOCATOR}.alloc", partial(check_alloc, stage="alloc"), "717c98efc315"),
    (f"{ALLOCATOR}.alloc_extend", partial(check_alloc, stage="alloc_extend"), "9b98128ee852"),
    (f"{ALLOCATOR}.alloc_extend_swa_tail", check_alloc_tail, "036ae2a7fb67"),
    (f"{ALLOCATOR}.alloc_decode", partial(check_alloc, stage="alloc_decode"), "84b55cc5f017"),
)
BATCH = ("sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new", "a8507017588b")
RUNNER = ("sglang.srt.model_executor.model_runner.ModelRunner.init_attention_backends", "866ae4389361")
STATE = ("sglang.srt.model_executor.model_runner.ModelRunner._get_attention_backend", "726932e8a5eb")
DRAFT = ("sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker.init_attention_backends", "b383002ae0b1")

PATCH = Patch(
    switch="SGLANG_GEMMA4_DEBUG",
    why="An index outside its KV pool is read silently on a GPU, or ends in an illegal access somewhere else, later.",
    evidence="kernels/ops/attention/trtllm_mha_page_table.py (never clamps to the table's width) · "
    "srt/layers/attention/flashattention_backend.py:212 (full table followed into the sliding pool)",
    remove_when="SGLang checks page tables and sliding mappings itself.",
    hooks=(
        Hook(RUNNER[0], "after", trap_runner, RUNNER[1]),
        Hook(DRAFT[0], "after", trap_draft, DRAFT[1]),
        Hook(STATE[0], "after", trap_state, STATE[1]),
        Hook(BATCH[0], "after", remember_batch, BATCH[1]),
        *(Hook(target, "after", function, fingerprint) for target, function, fingerprint in ALLOCATIONS),
    ),
)
