"""The MTP draft's head is read as an int8 copy, and itself only where that leaves the token open."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_gemma4.patches import draft_argmax, frozen_chain
from sglang_gemma4.patching import Hook, Patch, decline, idle, note, switches, tell, uses

NAME = "narrow_draft_head"
SWITCH = "SGLANG_GEMMA4_FROZEN_CHAIN"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"


def make_copy(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After the draft's worker is made: its weights are loaded, and SGLang has not yet sized the target's KV pools by what is free."""
    model = worker.draft_model_runner.model
    if getattr(model, "use_ordered_embeddings", False):
        idle(NAME, "the assistant scores the tokens of a few centroids, not the whole head")
        return
    if reason := _reason_against(worker):
        decline(NAME, reason)
        return
    from sglang.srt.speculative.spec_utils import draft_tp_context

    from sglang_gemma4.models.layers import narrow_copy

    sharded = switches.is_on(draft_argmax.SHARDED)
    with draft_tp_context(worker.parallel_layout):  # as when it drafts
        if reason := narrow_copy.reason_against(model, sharded):
            decline(NAME, reason)
            return
        copy = narrow_copy.make(model, sharded)
    tokens, width = copy.levels.shape
    tell(NAME, f"the int8 copy of the draft's head, {tokens:,} tokens x {width:,}, takes {copy.bytes / 2**20:,.1f} MiB of the card")


def _reason_against(worker: Any) -> str | None:
    """Why this worker's draft will not take its tokens from a head of ours, or None."""
    for needed in ("draft_argmax", "frozen_chain"):
        if not switches.part_is_on(needed, SWITCH):
            return f"{needed} is off, and the draft computes logits"
    if not frozen_chain.drafts_chains(worker):
        return "drafts are trees, which need logits"
    if worker.server_args.disaggregation_mode == "prefill":
        return "a server that only prefills drafts nothing"
    looks: str | None = draft_argmax.looks_at_logits()
    return looks


def give_copy(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``alloc_memory_pool``, and after draft_argmax's hook there: before anything is captured."""
    from sglang_gemma4.models.layers import draft_head, narrow_copy

    model = worker.draft_model_runner.model
    if narrow_copy.COPY in vars(model) and not narrow_copy.give(model, draft_head.DraftHead, partial(note, NAME)):
        decline(NAME, "draft_argmax gave the draft no head of ours (see its own line)")


def renew_copy(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Around each way in which a running server's weights change."""
    from sglang_gemma4.models.layers import draft_head, narrow_copy

    return narrow_copy.renewing(original, draft_head.DraftHead, updater, *args, **kwargs)


PATCH = Patch(
    switch=SWITCH,
    why="Each draft step reads the assistant's whole head, 262,144 tokens of 1,024 bfloat16 numbers, for one token: 537 MB, three times a "
    "step, 371 of 26B-A4B's 4,100 µs on an H200. A byte a number tells which few tokens it may be.",
    evidence="sglang_gemma4/kernels/heads/narrow_head.py (the bound) · tests/interpreted/test_narrow_head.py (the same tokens where the "
    "bytes alone give others)",
    remove_when="Assistants are quantised themselves, or their heads score a few centroids' tokens.",
    declines=frozen_chain.not_under_v1,
    uses=(uses.mtp, uses.kernels),
    unmeasured="without narrow_verify_head: with it 26B-A4B's steps in bfloat16 take 5.02 ms for 5.22 at batch 1, 8.74 for 8.90 at 4 "
    "(runs/2026-11-29-26b-h200-lone-bf16), in fp8 8.54 for 8.63 at 8 (runs/2026-11-29-26b-h200-narrow-heads), for 1.0 GiB",
    hooks=(
        Hook("sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker.__init__", "after", make_copy, "0cf6523adb9d"),
        Hook("sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker.alloc_memory_pool", "after", give_copy, "e8840b2af3a4"),
        Hook(f"{UPDATER}.update_weights_from_disk", "around", renew_copy, "d022aee84727"),
        Hook(f"{UPDATER}.update_weights_from_tensor", "around", renew_copy, "7917dc32f144"),
        Hook(f"{UPDATER}.load_weights_from_distributed", "around", renew_copy, "96b5dd21e878"),
        Hook(f"{UPDATER}.update_weights_from_ipc", "around", renew_copy, "ce5eafc3f707"),
    ),
)
