"""The MTP draft's query is rotated to its own token's position, as in transformers."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"


def past_last_key(worker: Any) -> int:
    """What to add to the number of committed keys: the multimodal target numbers its positions from 1."""
    from sglang.srt.models.gemma4_mm import Gemma4ForConditionalGeneration

    return int(isinstance(worker.target_worker.model_runner.model, Gemma4ForConditionalGeneration))


def set_positions(worker: Any, forward_batch: Any) -> None:
    """Replaces ``_set_positions``; with topk > 1 every request has that many rows."""
    positions = (forward_batch.seq_lens + past_last_key(worker)).long()
    given = forward_batch.positions
    if given is not None and worker.topk > 1 and given.numel() == positions.numel() * worker.topk:
        positions = positions.repeat_interleave(worker.topk, dim=0)
    if given is not None and given.shape == positions.shape:
        given.copy_(positions)
    else:
        forward_batch.positions = positions


def position_for_batch(worker: Any, batch: Any) -> Any:
    """Replaces ``_position_for_batch``."""
    return (batch.seq_lens + past_last_key(worker)).long()


PATCH = Patch(
    switch="SGLANG_GEMMA4_DRAFT_PHASE",
    why="Stock turns the draft's query one position short of its own token's (two short, under the multimodal target).",
    evidence="srt/speculative/frozen_kv_mtp_utils.py:90 · srt/models/gemma4_mm.py:663 · transformers' "
    "generation/candidate_generator.py:1339 · tiny pairs: accept length +1.3 to +2.3 % in the model's own turn, -0.8 to +1.9 % on 64 "
    "forced tokens of text, runs/2026-11-22-tiny-accept-length · not measured on released weights or a card",
    remove_when="SGLang's frozen draft takes the position of the token it starts from.",
    uses=(uses.mtp,),
    hooks=(
        Hook(f"{WORKER}._set_positions", "replace", set_positions, "2c14f31644b8"),
        Hook(f"{WORKER}._position_for_batch", "replace", position_for_batch, "9470969d01f6"),
    ),
)
