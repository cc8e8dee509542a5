"""Argmax of a centroid head (the MTP draft of E2B and E4B), without gathered centroid rows or logits in memory.

The head orders the vocabulary by centroid: row ``c · per + j`` of its weight is token ``ordering[c · per + j]``. For
each hidden state only the tokens of its best centroids are scored, in three kernels. The first selects the centroids
(by counting, without a sort), the second finds the largest score in their rows, and the third is the join of
:mod:`head_argmax`. As there, scores are rounded to the weight's dtype, and of equal scores the lower token wins.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.heads.head_argmax import MOST_TOKENS, join_pairs
from sglang_gemma4.kernels.matrices import reason_against_rows

MOST_CENTROIDS = 8192


def centroid_argmax_reference(
    hidden: torch.Tensor, centroid_scores: torch.Tensor, weight: torch.Tensor, ordering: torch.Tensor, active: int
) -> torch.Tensor:
    """What :func:`centroid_argmax` computes, through a row of logits over the whole vocabulary."""
    rows, width = hidden.shape
    centroids = centroid_scores.shape[1]
    per = weight.shape[0] // centroids
    scores = centroid_scores.float().nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    chosen = scores.sort(dim=-1, descending=True, stable=True).indices[:, :active]
    picked = weight.view(centroids, per, width)[chosen].view(rows, active * per, width)
    products = torch.einsum("rkw,rw->rk", picked.float(), hidden.float()).to(weight.dtype).float()
    products = products.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    tokens = ordering.long().view(centroids, per)[chosen].view(rows, active * per)
    best = products == products.amax(-1, keepdim=True)
    return torch.where(best, tokens, weight.shape[0]).amin(-1)


@triton.jit
def _choose_kernel(  # type: ignore[no-untyped-def]
    scores_ptr,  # [rows, centroids]
    chosen_ptr,  # [rows, active] int32
    scores_stride,
    CENTROIDS: tl.constexpr,
    ACTIVE: tl.constexpr,
    MINE: tl.constexpr,  # centroids a program ranks
    OTHERS: tl.constexpr,  # centroids it compares them with at a time
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    start = scores_ptr + row * scores_stride
    mine = tl.program_id(1) * MINE + tl.arange(0, MINE)
    score = tl.load(start + mine, mask=mine < CENTROIDS, other=float("-inf")).to(tl.float32)
    score = tl.where(score == score, score, float("-inf"))
    rank = tl.zeros([MINE], tl.int32)
    for first in range(0, CENTROIDS, OTHERS):
        other = first + tl.arange(0, OTHERS)
        rival = tl.load(start + other, mask=other < CENTROIDS, other=float("-inf")).to(tl.float32)
        rival = tl.where(rival == rival, rival, float("-inf"))
        equal = (rival[None, :] == score[:, None]) & (other[None, :] < mine[:, None])
        ahead = (other[None, :] < CENTROIDS) & ((rival[None, :] > score[:, None]) | equal)
        rank += tl.sum(ahead.to(tl.int32), 1)
    tl.store(chosen_ptr + row * ACTIVE + rank, mine, mask=(mine < CENTROIDS) & (rank < ACTIVE))


@triton.jit(do_not_specialize=["rows"])
def _chosen_rows_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr,  # [rows, width]
    weight_ptr,  # [centroids · per, width]
    ordering_ptr,  # [centroids · per] int
    chosen_ptr,  # [rows, active] int32
    pairs_ptr,  # [active · pieces, 2, rows] float32
    rows,
    hidden_stride,
    weight_stride,
    WIDTH: tl.constexpr,
    PER: tl.constexpr,  # tokens of a centroid
    ACTIVE: tl.constexpr,
    PIECES: tl.constexpr,  # programs a centroid
    TOKENS: tl.constexpr,  # tokens a program, padded
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    centroid = tl.load(chosen_ptr + row * ACTIVE + part // PIECES).to(tl.int64)
    number = (part % PIECES) * TOKENS + tl.arange(0, TOKENS)
    inside = number < PER
    place = centroid * PER + number
    scores = tl.zeros([TOKENS], tl.float32)
    for offset in range(0, WIDTH, COLUMNS):
        column = offset + tl.arange(0, COLUMNS)
        states = tl.load(hidden_ptr + row * hidden_stride + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        weights = tl.load(
            weight_ptr + place[:, None] * weight_stride + column[None, :], mask=inside[:, None] & (column[None, :] < WIDTH), other=0.0
        )
        scores += tl.sum(weights.to(tl.float32) * states[None, :], 1)
    scores = scores.to(weight_ptr.dtype.element_ty).to(tl.float32)
    scores = tl.where(inside & (scores == scores), scores, float("-inf"))
    tokens = tl.load(ordering_ptr + place, mask=inside, other=0).to(tl.float32)
    top = tl.max(scores, 0)
    token = tl.min(tl.where(inside & (scores == top), tokens, float("inf")), 0)
    pair = pairs_ptr + part.to(tl.int64) * 2 * rows + row
    tl.store(pair, top)
    tl.store(pair + rows, token)


def centroid_argmax(
    hidden: torch.Tensor, centroid_scores: torch.Tensor, weight: torch.Tensor, ordering: torch.Tensor, active: int
) -> torch.Tensor:
    """``[rows]`` int64: the token with the largest logit among those of each row's best centroids. The host does not wait for the device.

    Args:
        hidden: ``[rows, width]``; float32, bfloat16 or float16.
        centroid_scores: ``[rows, centroids]``, the centroid layer's output for ``hidden``.
        weight: ``[vocabulary, width]``, ordered by centroid, equally many rows for each; of ``hidden``'s dtype.
        ordering: ``[vocabulary]`` int, the token of each row of ``weight``.
        active: centroids chosen for each row.

    Raises:
        ValueError: tensors that the kernels do not take.
    """
    reason = reason_against(hidden, centroid_scores, weight, ordering, active)
    if reason:
        raise ValueError(reason)
    rows, width = hidden.shape
    centroids = centroid_scores.shape[1]
    per = weight.shape[0] // centroids
    tokens = min(32, triton.next_power_of_2(per))  # a small batch still gives every SM a piece
    pieces = -(-per // tokens)
    chosen = torch.empty((rows, active), dtype=torch.int32, device=hidden.device)
    pairs = torch.empty((active * pieces, 2, rows), dtype=torch.float32, device=hidden.device)
    if rows:
        mine = min(64, triton.next_power_of_2(centroids))
        _choose_kernel[(rows, -(-centroids // mine))](
            centroid_scores, chosen, centroid_scores.stride(0),
            CENTROIDS=centroids, ACTIVE=active, MINE=mine, OTHERS=min(128, triton.next_power_of_2(centroids)), num_warps=4,
            **launch_options(hidden.device),
        )  # fmt: skip
        _chosen_rows_kernel[(rows, active * pieces)](
            hidden, weight, ordering, chosen, pairs, rows, hidden.stride(0), weight.stride(0),
            WIDTH=width, PER=per, ACTIVE=active, PIECES=pieces, TOKENS=tokens, COLUMNS=min(256, triton.next_power_of_2(width)),
            num_warps=4, **launch_options(hidden.device),
        )  # fmt: skip
    return join_pairs(pairs)[0]


def reason_against(
    hidden: torch.Tensor, centroid_scores: torch.Tensor, weight: torch.Tensor, ordering: torch.Tensor, active: int
) -> str | None:
    """Why the kernels do not take these tensors, or None."""
    if reason := reason_against_rows(hidden=hidden, weight=weight):
        return reason
    if hidden.shape[1] != weight.shape[1]:
        return f"hidden states {tuple(hidden.shape)} and a head {tuple(weight.shape)} do not fit"
    if centroid_scores.dim() != 2 or centroid_scores.shape[0] != hidden.shape[0]:
        return f"centroid scores {tuple(centroid_scores.shape)} for {hidden.shape[0]} rows"
    centroids = centroid_scores.shape[1]
    if not 0 < active <= centroids <= MOST_CENTROIDS or weight.shape[0] % centroids:
        return (
            f"{active} of {centroids} centroids over {weight.shape[0]} tokens; up to {MOST_CENTROIDS} that divide the tokens are supported"
        )
    if ordering.shape != (weight.shape[0],) or ordering.is_floating_point() or not ordering.is_contiguous():
        return (
            f"the token ordering is {tuple(ordering.shape)} {ordering.dtype}; contiguous integers, one for each of {weight.shape[0]} rows"
        )
    if weight.shape[0] > MOST_TOKENS:
        return f"{weight.shape[0]} tokens; up to {MOST_TOKENS} are supported"
    if centroid_scores.stride(1) != 1:
        return "the last dimension of the centroid scores is not contiguous"
    return None
