"""Verification of draft trees: which drafts the target accepts, and the token it adds.

Both functions walk the trees of all requests together: one step per level and sibling. The tables are those of
``tree.build_tree``; outputs are written in place, as by SGLang's kernels:

* ``predicts`` [requests * width]: at each accepted node, the token that follows it;
* ``accept_index`` [requests, levels]: flat numbers of the accepted nodes, root first; the rest keeps its fill (-1);
* ``accept_token_num`` [requests]: accepted drafts, the root not counted.

Arguments are named as in SGLang's CUDA kernels (``retrive_index``).
"""

from collections.abc import Callable
from typing import Any

import torch

Accepts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(nodes the walk stands on, their drafts in question, their requests) -> which drafts are accepted."""


def verify_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accept the drafts that the target's argmax would have produced.

    Args:
        candidates: [requests, width] draft tokens, the root's token first.
        target_predict: [requests, width] the target's choice after each node.
    """

    def accepts(node: torch.Tensor, draft: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return candidates[rows, draft] == target_predict[rows, node]

    last = _walk(
        predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token,
        retrive_next_sibling, accepts,
    )  # fmt: skip
    rows = torch.arange(len(last))
    predicts[retrive_index[rows, last]] = target_predict[rows, last].to(predicts.dtype)


def verify_sampled(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Sample from the target's distribution along the tree; the torch form of ``tree_speculative_sampling_target_only``.

    At each node one coin decides among its children: child i is accepted if the coin falls into its share of the
    target's probability (the shares of its elder siblings come before it). If none is, the next token is drawn from
    what is left of the distribution. So with both thresholds at 1 every token follows the target's distribution.

    Args:
        candidates: [requests, width]
        uniform_samples: [requests, width] coin of each node, in [0, 1).
        uniform_samples_for_final_sampling: [requests]
        target_probs: [requests, width, vocab] float32, after temperature, top-k and top-p.
        draft_probs: not read; the CUDA kernel uses it as scratch.
        threshold_single: accept a draft outright if its probability is at least this.
        threshold_acc: divide the accumulated probability by this before the coin is compared.
    """
    del draft_probs, deterministic
    requests, width = candidates.shape
    share = torch.zeros(requests)
    refused = torch.zeros(requests, width, dtype=torch.bool)  # draft tokens refused at the node the walk stands on
    scale = max(float(threshold_acc), 1e-9)

    def accepts(node: torch.Tensor, draft: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        probability = target_probs[rows, node, candidates[rows, draft]]
        share[rows] += probability
        wins = (uniform_samples[rows, node] < share[rows] / scale) | (probability >= threshold_single)
        wins &= probability > 0
        refused[rows[~wins], draft[~wins]] = True
        share[rows[wins]] = 0.0
        refused[rows[wins]] = False
        return wins

    last = _walk(
        predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token,
        retrive_next_sibling, accepts,
    )  # fmt: skip
    rows = torch.arange(requests)
    left = target_probs[rows, last].double()  # [requests, vocab]
    request, draft = refused.nonzero(as_tuple=True)
    left[request, candidates[request, draft]] = 0.0
    bonus = inverse_cdf(left, uniform_samples_for_final_sampling)
    predicts[retrive_index[rows, last]] = bonus.to(predicts.dtype)


def decides_greedily(*, is_all_greedy: bool, **_: Any) -> bool:
    """Replaces ``_verify_uses_greedy``: True only if every request is greedy; on a CPU SGLang always says True."""
    return is_all_greedy


def samples_blocks() -> bool:
    """Replaces ``is_dflash_sampling_verify_available``, and sets the flag that DFlash's sampling itself reads."""
    from sglang.srt.speculative import dflash_utils

    dflash_utils._DFLASH_SAMPLING_VERIFY_AVAILABLE = True
    return True


def inverse_cdf(weights: torch.Tensor, coins: torch.Tensor) -> torch.Tensor:
    """Draw from unnormalised ``weights`` [rows, choices] with one coin in [0, 1) each; a zero weight is never drawn.
    If all are zero the last choice comes out, as in SGLang's CUDA kernel."""
    cumulative = weights.cumsum(-1)
    target = coins.double()[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    last_positive = (weights > 0).long().cumsum(-1).argmax(-1)
    none = cumulative[:, -1] == 0
    return torch.where(none, weights.shape[-1] - 1, torch.minimum(drawn, last_positive))


def _walk(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    next_token: torch.Tensor,
    next_sibling: torch.Tensor,
    accepts: Accepts,
) -> torch.Tensor:
    """Go down all trees together; return the last accepted node of each: [requests]."""
    requests, width = candidates.shape
    rows = torch.arange(requests)
    last = torch.zeros(requests, dtype=torch.int64)
    accepted = torch.zeros(requests, dtype=torch.int64)
    accept_index[:, 0] = retrieve_index[:, 0].to(accept_index.dtype)
    active = rows
    for _ in range(1, accept_index.shape[1]):
        draft = next_token[active, last[active]]
        found = []
        for _ in range(width):
            alive = draft >= 0
            active, draft = active[alive], draft[alive]
            if len(active) == 0:
                break
            wins = accepts(last[active], draft, active)
            winners, node = active[wins], draft[wins]
            predicts[retrieve_index[winners, last[winners]]] = candidates[winners, node].to(predicts.dtype)
            accepted[winners] += 1
            accept_index[winners, accepted[winners]] = retrieve_index[winners, node].to(accept_index.dtype)
            last[winners] = node
            found.append(winners)
            active, draft = active[~wins], next_sibling[active[~wins], draft[~wins]]
        if not found:
            break
        active = torch.cat(found)
        if len(active) == 0:
            break
    accept_token_num.copy_(accepted.to(accept_token_num.dtype))
    return last
