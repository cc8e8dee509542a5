"""A greedy verify step reads an int8 copy of the target's head, and itself only where that leaves a token open."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_gemma4.patches.draft_argmax import SHARDED
from sglang_gemma4.patches.narrow_draft_head import UPDATER
from sglang_gemma4.patching import Hook, Patch, decline, note, switches, tell, uses

NAME = "narrow_verify_head"
SWITCH = "SGLANG_GEMMA4_VERIFY_ARGMAX"
WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"


def make_copy(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After the draft's worker is made: the target's weights are loaded, and SGLang has not yet sized its KV pools by what is free."""
    if not switches.part_is_on("verify_argmax", SWITCH):
        decline(NAME, "verify_argmax is left out, and verify steps compute logits")
        return
    from sglang_gemma4.models.layers import narrow_copy, verify_head

    model, sharded = worker.target_worker.model_runner.model, switches.is_on(SHARDED)
    if reason := verify_head.problem_with(model, sharded) or narrow_copy.reason_against(model, sharded):
        decline(NAME, reason)
        return
    copy = narrow_copy.make(model, sharded)
    tokens, width = copy.levels.shape
    tell(NAME, f"the int8 copy of the target's head, {tokens:,} tokens x {width:,}, takes {copy.bytes / 2**20:,.1f} MiB of the card")


def give_copy(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``alloc_memory_pool``, and after verify_argmax's hook there: before anything is captured."""
    from sglang_gemma4.models.layers import narrow_copy, verify_head

    model = worker.target_worker.model_runner.model
    if narrow_copy.COPY in vars(model) and not narrow_copy.give(model, verify_head.VerifyHead, partial(note, NAME)):
        decline(NAME, "verify_argmax gave the target no head of ours (see its own line)")


def renew_copy(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Around each way in which a running server's weights change."""
    from sglang_gemma4.models.layers import narrow_copy, verify_head

    return narrow_copy.renewing(original, verify_head.VerifyHead, updater, *args, **kwargs)


PATCH = Patch(
    switch=SWITCH,
    why="Each verify step reads the target's whole head, of 26B-A4B 262,144 tokens of 2,816 bfloat16 numbers, for four tokens of a lone "
    "request: 1.5 GB, 350 of a step's 4,100 µs on an H200. A byte a number tells which few tokens they may be.",
    evidence="sglang_gemma4/kernels/heads/narrow_head.py (the bound) · runs/2026-11-28-narrow-head (a draft: 94 to 107 µs for 126.5)",
    remove_when="SGLang's verify takes greedy tokens from a fused head of its own.",
    uses=(uses.mtp, uses.kernels, uses.any_batch),
    unmeasured="without narrow_draft_head: 26B-A4B's greedy steps with both are 4 % shorter at batch 1 in bfloat16, 2 % at 4 "
    "(runs/2026-11-29-26b-h200-lone-bf16), for which it takes 0.7 GiB of the card",
    hooks=(
        Hook(f"{WORKER}.__init__", "after", make_copy, "0cf6523adb9d"),
        Hook(f"{WORKER}.alloc_memory_pool", "after", give_copy, "e8840b2af3a4"),
        Hook(f"{UPDATER}.update_weights_from_disk", "around", renew_copy, "d022aee84727"),
        Hook(f"{UPDATER}.update_weights_from_tensor", "around", renew_copy, "7917dc32f144"),
        Hook(f"{UPDATER}.load_weights_from_distributed", "around", renew_copy, "96b5dd21e878"),
        Hook(f"{UPDATER}.update_weights_from_ipc", "around", renew_copy, "ce5eafc3f707"),
    ),
)
