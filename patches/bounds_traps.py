"""Every index that attention is about to follow is checked; a bad one ends in a named error and a dump."""

from functools import partial
from typing import Any

from sglang_gemma4.patching import Hook, Patch

NAME = "bounds_traps"
ALLOCATOR = "sglang.srt.mem_cache.allocator.swa.SWATokenToKVPoolAllocator"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
DRAFT = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"
BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"


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


STAGES = {
    "alloc": "717c98efc315",
    "alloc_extend": "9b98128ee852",
    "alloc_extend_swa_tail": "036ae2a7fb67",
    "alloc_decode": "84b55cc5f017",
}

PATCH = Patch(
    switch="SGLANG_GEMMA4_DEBUG",
    why="An index outside its KV pool is read silently on a GPU, or ends in an illegal access somewhere else, later.",
    evidence="kernels/ops/attention/trtllm_mha_page_table.py (never clamps to the table's width) · "
    "srt/layers/attention/flashattention_backend.py:212 (full table followed into the sliding pool)",
    remove_when="SGLang checks page tables and sliding mappings itself.",
    hooks=(
        Hook(f"{RUNNER}.init_attention_backends", "after", trap_runner, "866ae4389361"),
        Hook(f"{DRAFT}.init_attention_backends", "after", trap_draft, "b383002ae0b1"),
        Hook(f"{RUNNER}._get_attention_backend", "after", trap_state, "726932e8a5eb"),
        Hook(f"{BATCH}.init_new", "after", remember_batch, "a8507017588b"),
        *(Hook(f"{ALLOCATOR}.{stage}", "after", partial(check_alloc, stage), source) for stage, source in STAGES.items()),
    ),
)
