"""Penalties and cuts in DFlash's verify step, which has functions of its own where MTP and EAGLE share ``eagle_sample``.

Stock's DFlash counts no token for penalties and applies none: its step looks for a sum of penalties under a name that SGLang no longer
fills. It does not know min-p, and its top-p judges what top-k left.
"""

from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.speculative import verify_cuts
from sglang_gemma4.speculative.verify_penalties import COUNTED, ROWS, Runs, penalise_nodes, runs_of


def count_before_step(_draft_input: Any, batch: Any) -> None:
    """Before ``DFlashDraftInputV2.prepare_for_decode``: count as EAGLE's preparation does."""
    if batch.sampling_info.penalizer_orchestrator.is_required:
        batch.cumulate_penalty_output_tokens()


def needs_no_logits(original: Callable[..., bool], worker: Any, batch: Any, sampling_info: Any) -> bool:
    """Around ``DFlashWorkerV2._can_skip_verify_logits``, which does not know what :func:`verify` reads."""
    return getattr(sampling_info, COUNTED, None) is None and original(worker, batch, sampling_info)


def verify(
    original: Callable[..., Any],
    worker: Any,
    *,
    candidates: torch.Tensor,
    next_token_logits: torch.Tensor,
    sampling_info: Any,
    prefix_lens: torch.Tensor,
    **named: Any,
) -> Any:
    """Around ``DFlashWorkerV2._accept_block``: judge penalised logits; under overlap, keep the accepted tokens for the next step.

    Args:
        candidates: ``[requests, block]``, the last token of each answer and its drafts.
        next_token_logits: ``[requests · block, vocabulary]``.
        prefix_lens: ``[requests]``, committed tokens without the last.
    """
    counts = getattr(sampling_info, COUNTED, None)
    given = {"candidates": candidates, "next_token_logits": next_token_logits, "sampling_info": sampling_info, "prefix_lens": prefix_lens}
    if counts is None:
        return original(worker, **given, **named)
    rows = getattr(sampling_info, ROWS, None)
    runs = None if rows is None else Runs(runs_of(worker.model_runner.req_to_token_pool), rows)
    penalise_nodes(next_token_logits, candidates, prefix_lens, counts, runs)
    found = original(worker, **given, **named)
    if runs is not None:
        _, accepted, _, tokens, _ = found
        runs.keep(tokens, accepted)
    return found


def target_probs(
    original: Callable[..., torch.Tensor],
    *,
    next_token_logits: torch.Tensor,
    sampling_info: Any,
    draft_token_num: int,
    bs: int,
    **named: Any,
) -> torch.Tensor:
    """Around ``build_speculative_verify_target_probs``, ``[bs, draft_token_num, vocabulary]``: cut as plain sampling cuts."""
    if not verify_cuts.differ_from_stock(sampling_info):
        return original(
            next_token_logits=next_token_logits, sampling_info=sampling_info, draft_token_num=draft_token_num, bs=bs, **named
        )  # fmt: skip
    from sglang.srt.runtime_context import get_exec
    from sglang.srt.speculative import dflash_utils

    probs = torch.softmax(next_token_logits / sampling_info.temperatures.repeat_interleave(draft_token_num, dim=0), dim=-1)
    cuts = verify_cuts.of(sampling_info, get_exec().kernel.sampling_backend)
    cut = verify_cuts.cut(probs, cuts, dflash_utils._dflash_top_k_renorm_prob, dflash_utils._dflash_top_p_renorm_prob)
    return cut.view(bs, draft_token_num, -1).contiguous()
