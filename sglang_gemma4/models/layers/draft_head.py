"""The MTP draft's head where only the token is needed: one pass over the weight instead of logits and a reduction.

Under tensor parallelism every rank of the draft holds the whole head. Sharded, each rank scores its range of the
vocabulary, and one pair (score, token) per row and rank is gathered.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.runtime_context import get_parallel

from sglang_gemma4.kernels.card import reason_against_device
from sglang_gemma4.kernels.heads import centroid_argmax, head_argmax
from sglang_gemma4.models.layers.sharded_head import vocabulary_range

Say = Callable[[str], None]
CENTROID_ROWS = 8
"""Most rows for which the centroids' kernel is faster than the chain's gathered GEMM (runs/2026-11-22-kernel-times)."""


class DraftHead(LogitsProcessor):  # type: ignore[misc]
    """SGLang's logits processor that returns int64 tokens ``[rows, 1]`` as ``next_token_logits``.

    Rows that the kernel does not take get logits as in SGLang; ``say`` is called with the reason.
    """

    def __init__(self, config: Any, say: Say, sharded: bool) -> None:
        super().__init__(config, skip_all_gather=True)
        self.say, self.sharded = say, sharded

    def _get_logits(self, hidden_states: torch.Tensor, lm_head: Any, logits_metadata: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        reason = reason_against(self, hidden_states, lm_head, self.sharded)
        if reason:
            self.say(reason)
            return super()._get_logits(hidden_states, lm_head, logits_metadata, *args, **kwargs)
        return tokens(self, hidden_states, lm_head.weight, self.sharded).view(-1, 1)


def reason_against(processor: LogitsProcessor, hidden_states: torch.Tensor, lm_head: Any, sharded: bool) -> str | None:
    """Why these rows need logits, or None."""
    return reason_against_head(processor, lm_head, sharded) or reason_against_rows(hidden_states, lm_head)


def reason_against_head(processor: LogitsProcessor, lm_head: Any, sharded: bool) -> str | None:
    """Why all rows of this head need logits, or None."""
    if hasattr(lm_head, "apply_lora") or getattr(lm_head, "quant_method", None) is not None or not hasattr(lm_head, "weight"):
        return f"the head is a {type(lm_head).__name__}, not a plain weight"
    if processor.logit_scale is not None or processor.rl_on_policy_target is not None:
        return "logits are scaled, or computed for on-policy training"
    if min(processor.vocab_size, lm_head.weight.shape[0]) % ranks(sharded):
        return f"{processor.vocab_size} tokens do not divide by {ranks(sharded)} ranks"
    return None


def reason_against_rows(hidden_states: torch.Tensor, lm_head: Any) -> str | None:
    """Why the kernel does not take these rows of hidden states, or None."""
    return reason_against_device(hidden_states.device) or head_argmax.reason_against(hidden_states, lm_head.weight)


def ranks(sharded: bool) -> int:
    """Number of ranks that share the vocabulary."""
    return int(get_parallel().tp_group.world_size) if sharded else 1


def tokens(processor: LogitsProcessor, hidden_states: torch.Tensor, weight: torch.Tensor, sharded: bool) -> torch.Tensor:
    """``[rows]`` int64, each row's token; the same on every rank."""
    rounded = not (processor.use_fp32_lm_head or processor.use_fp32_lm_head_output)
    vocabulary = min(processor.vocab_size, weight.shape[0])
    if ranks(sharded) == 1:
        return head_argmax.head_argmax(hidden_states, weight, vocabulary=vocabulary, rounded=rounded)[0]
    group, mine = get_parallel().tp_group, my_range(vocabulary, sharded)
    _, best = head_argmax.head_argmax(hidden_states, weight[mine], first_token=mine.start, rounded=rounded)
    gathered = torch.empty((group.world_size, *best.shape), dtype=best.dtype, device=best.device)
    group.all_gather_into_tensor(gathered.view(-1, best.shape[1]), best)
    return head_argmax.join_pairs(gathered)[0]


def my_range(vocabulary: int, sharded: bool) -> slice:
    """The tokens that this rank scores."""
    if ranks(sharded) == 1:
        return slice(0, vocabulary)
    group = get_parallel().tp_group
    return vocabulary_range(vocabulary, group.rank_in_group, group.world_size)


def centroid_token(model: Any, say: Say, hidden_states: torch.Tensor) -> torch.Tensor:
    """Replaces ``_apply_centroid_masking``: int64 tokens ``[rows, 1]`` for ``hidden_states`` ``[rows, width]``."""
    if hidden_states.shape[0] > CENTROID_ROWS:
        found: torch.Tensor = type(model)._apply_centroid_masking(model, hidden_states)
        return found
    weight, active = model.lm_head.weight, model.centroid_intermediate_top_k
    scores = model.centroids(hidden_states)
    against = centroid_argmax.reason_against
    reason = reason_against_device(hidden_states.device) or against(hidden_states, scores, weight, model.token_ordering, active)
    if reason:
        say(reason)
        return type(model)._apply_centroid_masking(model, hidden_states)  # type: ignore[no-any-return]
    return centroid_argmax.centroid_argmax(hidden_states, scores, weight, model.token_ordering, active).view(-1, 1)


def install(model: Any, say: Say, sharded: bool) -> None:
    """Give an assistant whose worker only needs tokens the head for its type of embeddings."""
    if model.use_ordered_embeddings:
        model._apply_centroid_masking = partial(centroid_token, model, say)
    else:
        model.logits_processor = DraftHead(model.config, say, sharded)
