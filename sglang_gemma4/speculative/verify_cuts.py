"""Top-k, top-p and min-p in MTP's verify step, as in plain sampling. Stock's verify applies them in another order, and min-p not at all.

Plain sampling applies both top-k and top-p to the whole softmax, with either backend (``layers/sampler.py``: pytorch's cumulative sum,
flashinfer's ``filter_apply_order="joint"``), and min-p relative to the largest probability. If a request of the batch has min-p, the
flashinfer backend applies top-p to what top-k left, and so does this.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.runtime_context import get_exec

Renormalise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(probabilities [rows, vocabulary], bound of each row) -> truncated and renormalised probabilities."""


@dataclass(frozen=True)
class Cuts:
    """The bounds of each request, [requests]; None if no request of the batch has that kind."""

    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None
    joint: bool
    """Top-p applies to the whole softmax, else to what top-k left."""


_current: ContextVar[Cuts | None] = ContextVar("verify_cuts", default=None)


def differ_from_stock(info: Any) -> bool:
    """Whether stock's verify truncates this batch differently from plain sampling: with min-p, or with both top-k and top-p."""
    return not info.is_all_greedy and (info.need_min_p_sampling or (info.need_top_k_sampling and info.need_top_p_sampling))


def of(info: Any, backend: str) -> Cuts:
    """The cuts of a ``SamplingBatchInfo`` under a ``--sampling-backend``."""
    return Cuts(
        top_k=info.top_ks if info.need_top_k_sampling else None,
        top_p=info.top_ps if info.need_top_p_sampling else None,
        min_p=info.min_ps if info.need_min_p_sampling else None,
        joint=backend == "pytorch" or not info.need_min_p_sampling,
    )


@contextmanager
def in_softmax(batch: Any) -> Iterator[None]:
    """Inside, the softmax that ``eagle_sample`` calls is truncated, and its own truncation is off."""
    given = batch.sampling_info
    if batch.forward_mode.is_idle() or not differ_from_stock(given):
        yield
        return
    cuts = of(given, get_exec().kernel.sampling_backend)
    batch.sampling_info = copy.copy(given)
    batch.sampling_info.need_top_k_sampling = batch.sampling_info.need_top_p_sampling = False
    token = _current.set(cuts)
    try:
        yield
    finally:
        _current.reset(token)
        batch.sampling_info = given


def cut_softmax(softmax: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The softmax that ``eagle_sample`` calls, [requests · nodes, vocabulary], followed by the current cuts."""

    def sampling_softmax(logits: torch.Tensor, temperatures: torch.Tensor | None = None) -> torch.Tensor:
        probs = softmax(logits, temperatures)
        cuts = _current.get()
        if cuts is None:
            return probs
        from sglang.srt.speculative import eagle_utils  # its renormalising kernels, which differ by platform

        return cut(probs, cuts, eagle_utils.top_k_renorm_prob, eagle_utils.top_p_renorm_prob)

    return sampling_softmax


def cut(probs: torch.Tensor, cuts: Cuts, top_k_renorm: Renormalise, top_p_renorm: Renormalise) -> torch.Tensor:
    """``probs`` [requests · nodes, vocabulary] truncated and renormalised.

    Top-k depends on ranks only, so top-p followed by top-k applies both to the whole softmax.
    """
    steps = [(top_p_renorm, cuts.top_p), (top_k_renorm, cuts.top_k)]
    for renormalise, bound in steps if cuts.joint else reversed(steps):
        if bound is not None:
            probs = renormalise(probs, _of_nodes(bound, probs))
    if cuts.min_p is not None:
        least = probs.amax(-1, keepdim=True) * _of_nodes(cuts.min_p, probs)[:, None]
        probs = probs.masked_fill(probs < least, 0.0)
        probs /= probs.sum(-1, keepdim=True)
    return probs


def _of_nodes(bound: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    return bound.repeat_interleave(probs.shape[0] // bound.shape[0])
