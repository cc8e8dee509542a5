"""The target's tokens of a greedy verify step of up to 128 rows in one pass over its head."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_gemma4.patches.draft_argmax import SHARDED
from sglang_gemma4.patching import Entry, Hook, Patch, note, switches, tell, uses

EAGLE, OURS = "sglang.srt.speculative.eagle_utils", "sglang_gemma4.speculative.verify_tokens"


def give_head(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``alloc_memory_pool`` of the draft's worker: before anything is captured."""
    from sglang_gemma4.models.layers import verify_head

    say, say_so = (partial(each, "verify_argmax") for each in (note, tell))
    verify_head.install(worker.target_worker.model_runner.model, say, say_so, sharded=switches.is_on(SHARDED))


def walk() -> Callable[..., Any]:
    """The walk down the tree of drafts, under the name by which ``eagle_sample`` calls it."""
    from sglang.srt.speculative import eagle_utils

    from sglang_gemma4.speculative import verify_tokens

    return verify_tokens.with_tokens(eagle_utils.verify_tree_greedy_func)


PATCH = Patch(
    switch="SGLANG_GEMMA4_VERIFY_ARGMAX",
    why="A greedy verify step needs a token a row: stock writes bf16 logits, their soft-capped float32 copy, and reads that for a maximum.",
    evidence="runs/2026-11-23-26b-steps-and-floor (batch 32: of a step's 17,080 µs, soft-cap and maximum take 112, writing logits 50 of "
    "the head's 395) · off until measured on a card",
    remove_when="SGLang's verify takes greedy tokens from a fused head.",
    uses=(uses.mtp, uses.kernels, uses.any_batch),
    hooks=(
        Hook("sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker.alloc_memory_pool", "after", give_head, "e8840b2af3a4"),
        Hook(f"{EAGLE}.eagle_sample", "around", f"{OURS}:sample", "b497c62acadc"),
        Entry(f"{EAGLE}.__dict__", "verify_tree_greedy_func", walk, "dae05d6e8dcf"),
        Hook("sglang.srt.speculative.spec_utils.generate_simulated_accept_index", "around", f"{OURS}:simulate", "14bc536b1931"),
    ),
)
