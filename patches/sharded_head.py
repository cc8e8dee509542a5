"""Under tensor parallelism each rank scores its range of the vocabulary."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, uses


def score_my_range(
    original: Callable[..., Any], processor: Any, hidden_states: Any, lm_head: Any, embedding_bias: Any = None, *, out: Any = None
) -> Any:
    """Around ``_compute_lm_head``: where the ranks' logits are put side by side afterwards, but every rank holds the whole head."""
    if processor.do_tensor_parallel_all_gather:
        from sglang_gemma4.models.layers import sharded_head

        if sharded_head.is_replicated(lm_head):
            reason = sharded_head.reason_against(processor, lm_head)
            if reason:
                decline("sharded_head", reason)
            else:
                lm_head = sharded_head.part_of(lm_head)
    return original(processor, hidden_states, lm_head, embedding_bias, out=out)


PATCH = Patch(
    switch="SGLANG_GEMMA4_SHARDED_HEAD",
    why="Under tensor parallelism every rank scores all 262,144 tokens, and as many copies of the logits as there are ranks are gathered.",
    evidence="srt/models/gemma3_causal.py:532 · srt/layers/logits_processor.py:484, 1024, 1258 (cuts off the copies) · two H200, "
    "26B-A4B with MTP: a verify step of 32 requests takes 10.64 ms for 11.21, of one no less (5.04 and 5.10), runs/2026-11-26-26b-tp2",
    remove_when="SGLang ties Gemma 4's LM head through a VocabParallelEmbedding.",
    uses=(uses.several_ranks,),
    hooks=(Hook("sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head", "around", score_my_range, "edee85644b6e"),),
)
