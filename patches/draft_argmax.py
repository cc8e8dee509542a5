"""The draft's head and the maximum over it are one kernel, without logits in memory."""

from functools import partial
from typing import Any

from sglang_gemma4.patches import frozen_chain
from sglang_gemma4.patching import Hook, Patch, decline, note, switches, uses

SHARDED = "SGLANG_GEMMA4_SHARDED_HEAD"


def give_head(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``alloc_memory_pool``, and after frozen_chain's hook there: before anything is captured."""
    model = worker.draft_model_runner.model
    if not getattr(model, frozen_chain.TOKENS_ONLY, False):
        decline("draft_argmax", "the draft needs logits: frozen_chain is off, or drafts are trees")
        return
    if reason := looks_at_logits():
        decline("draft_argmax", reason)
        return
    from sglang_gemma4.models.layers import draft_head

    draft_head.install(model, partial(note, "draft_argmax"), sharded=switches.is_on(SHARDED))


def looks_at_logits() -> str | None:
    """Why SGLang needs the draft's logits whatever they are for, or None."""
    from sglang.srt.environ import envs

    if envs.SGLANG_ENABLE_NAN_LOGITS_CHECK.get() or envs.SGLANG_ENABLE_ASYNC_ASSERT.get():
        return "SGLang is asked to look for NaN in the draft's logits"
    return None


PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_CHAIN",
    why="A draft step needs one token: stock writes bf16 logits, their float32 copy and, for E2B and E4B, copies of the chosen rows.",
    evidence="srt/models/gemma4_mtp.py:293-326 · srt/layers/logits_processor.py:1039 · runs/2026-11-21-26b-mtp-v2 (logits: 22 to 140 µs) "
    "· the kernel alone 1.1 to 1.7 times as fast as the chain, centroid head too · H200, 26B-A4B, MTP steps against the package without "
    "it: 0.5 % shorter at batch 1 and 8, 0.8 % at 32 and 64 (three repetitions, ranges overlap at 32), runs/2026-11-23-26b-later-pieces",
    remove_when="SGLang's frozen draft takes its token from a fused head.",
    declines=frozen_chain.not_under_v1,
    uses=(uses.mtp, uses.kernels),
    hooks=(
        Hook("sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker.alloc_memory_pool", "after", give_head, "e8840b2af3a4"),
    ),
)
