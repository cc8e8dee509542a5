"""Penalties and cuts in DSpark's verify step, as :mod:`.blocks` does for DFlash's. Stock's step supports neither
penalties nor min-p."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.speculative.verify_penalties import COUNTED, ROWS, Runs, penalise_nodes, runs_of


def accept(
    original: Callable[..., Any],
    executor: Any,
    *,
    folded_accept: bool,
    verify_ids_2d: torch.Tensor,
    target_logits: torch.Tensor,
    sampling_info: Any,
    prefix_lens: torch.Tensor,
    **named: Any,
) -> Any:
    """Around ``TargetVerifyExecutor.accept_and_finalize``: judge penalised logits; what a verify graph has accepted
    already is then not used.

    Args:
        verify_ids_2d: [requests, block + 1], the last token of each answer and its drafts.
        target_logits: [requests · (block + 1), vocabulary].
        prefix_lens: [requests], committed tokens without the last.
    """
    given = {"verify_ids_2d": verify_ids_2d, "target_logits": target_logits, "sampling_info": sampling_info, "prefix_lens": prefix_lens}
    counts = getattr(sampling_info, COUNTED, None)
    if counts is None:
        return original(executor, folded_accept=folded_accept, **given, **named)
    rows = getattr(sampling_info, ROWS, None)
    runs = None if rows is None else Runs(runs_of(executor.model_runner.req_to_token_pool), rows)
    penalise_nodes(target_logits, verify_ids_2d, prefix_lens, counts, runs)
    found = original(executor, folded_accept=False, **given, **named)
    if runs is not None:
        runs.keep(found.out_tokens, found.commit_lens)
    return found


def with_min_p(original: Callable[..., Any], *, sampling_info: Any, **named: Any) -> Any:
    """Around ``_accept_sampling_core``: min-p alone takes the path of top-k and top-p, where
    :func:`.blocks.target_probs` cuts."""
    if sampling_info.need_min_p_sampling:
        sampling_info = copy.copy(sampling_info)
        sampling_info.need_top_k_sampling = True  # of the whole vocabulary, for who has none
    return original(sampling_info=sampling_info, **named)
