"""The target's tied LM head under tensor parallelism: each rank scores its range of the vocabulary.

The embedding stays whole on every rank, as SGLang loads it (lookups need no communication), so memory does not change; a rank's part of the
head is a view of it and follows weight updates.
"""

from types import SimpleNamespace
from typing import Any

from sglang.srt.runtime_context import get_parallel


def vocabulary_range(vocabulary: int, rank: int, ranks: int) -> slice:
    """Rows of the head that a rank scores; ``ranks`` divides ``vocabulary``."""
    share = vocabulary // ranks
    return slice(rank * share, (rank + 1) * share)


def is_replicated(lm_head: Any) -> bool:
    """Whether this head is a Gemma embedding that every rank holds whole; a ``ParallelLMHead`` is sharded by SGLang."""
    from sglang.srt.models.gemma3_causal import Gemma3TextScaledWordEmbedding

    return isinstance(lm_head, Gemma3TextScaledWordEmbedding)


def reason_against(processor: Any, lm_head: Any) -> str | None:
    """Why every rank must score the whole head of this logits processor, or None."""
    ranks = get_parallel().tp_size
    if processor.use_attn_tp_group or processor.do_tensor_parallel_all_gather_dp_attn:
        return "DP attention: the head's group is not the tensor-parallel one"
    if lm_head.weight.shape[0] != processor.vocab_size or processor.vocab_size % ranks:
        return f"{lm_head.weight.shape[0]} rows of the head for {processor.vocab_size} tokens do not divide by {ranks} ranks"
    return None


def part_of(lm_head: Any) -> Any:
    """This rank's range of a replicated head, in the form a logits processor takes."""
    parallel = get_parallel()
    mine = vocabulary_range(lm_head.weight.shape[0], parallel.tp_rank, parallel.tp_size)
    return SimpleNamespace(weight=lm_head.weight[mine])
