"""How much of the sliding pool running requests will still take; the scheduler must not give it to new ones."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_gemma4.memory import own_window
from sglang_gemma4.models.config_files import named_gemma4

MOMENTS = 64
"""Most moments at which the running requests are summed: with 2,000 requests neighbouring moments hardly differ."""


def growth(locked: npt.ArrayLike, held: npt.ArrayLike, expected: npt.ArrayLike, most: int) -> int:
    """Sliding tokens that the running requests will take together at the worst moment, beyond what they take now.

    A request takes ``locked + min(held + t, most)`` after t more tokens and nothing after its end; the worst moment is just before one
    ends.

    Args:
        locked: ``[requests]``, tokens of prompt windows that stay locked in the radix tree until the request ends.
        held: ``[requests]``, tokens in the request's own window; ``expected``: ``[requests]``, tokens still to come.
        most: tokens that a window takes at most, including those not evicted yet.
    """
    lock, own, left = (np.asarray(values, dtype=np.int64) for values in (locked, held, expected))
    if not left.size:
        return 0
    moments = np.unique(left)  # [moments]
    if moments.size > MOMENTS:
        moments = moments[np.linspace(0, moments.size - 1, MOMENTS).astype(np.int64)]
    taken = lock + np.minimum(own + moments[:, None], most)  # [moments, requests]
    later = np.where(left >= moments[:, None], taken, 0).sum(1)
    return max(0, int(later.max() - (lock + np.minimum(own, most)).sum()))


def reserve_growth(_result: None, adder: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``PrefillAdder.__init__``, which reserves what running requests will take of the full pool: the same for the sliding pool."""
    batch, budget = adder.running_batch, adder.memory_budget
    if batch is not None and batch.reqs and _counts(budget):
        budget.swa_offset += running_growth(adder)


def charge_whole(charged: int, budget: Any, extend_input_len: int, max_new_tokens: int, **_kwargs: Any) -> int:
    """After ``SWAPrefillBudget.swa_tokens``, which charges a new request a window and a page: what it will hold beyond that, too.

    Never so much that it would not fit into the pool with nobody beside it, where it would wait for ever. What is locked counts as taken:
    on an idle server that is the window of the prefix that the request itself has found.
    """
    if not _counts(budget):
        return charged
    window = budget.tree_cache.sliding_window_size
    most, answer = _most(window, budget.page_size), max_new_tokens + _ahead()
    held = min(extend_input_len + answer, most) if _one_window() else min(extend_input_len, window) + min(answer, most)
    beyond = held - min(extend_input_len + max_new_tokens, window)
    alone = budget.allocator.size_swa - budget.tree_cache.swa_protected_size() - 1
    return int(charged + max(0, min(beyond, alone - charged)))


def _counts(budget: Any) -> bool:
    """Whether a prefill's budget is that of this server's Gemma 4 model, with sliding tokens in a pool of their own or in a unified one."""
    mine = (
        type(budget).__name__ in ("SWAPrefillBudget", "SharedSWAPrefillBudget")
        and not budget.req_ring
        and bool(budget.tree_cache.sliding_window_size)
    )
    return mine and _gemma4()


@functools.cache
def _gemma4() -> bool:
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.runtime_context import get_server_args

    return named_gemma4(model_config_of(get_server_args()).hf_config)


def _most(window: int, page: int) -> int:
    """Sliding tokens that a running request holds at most, beside a prompt's window in the tree (``swa_sizing.Demand.per_request``)."""
    from sglang.srt.environ import envs

    return int(-(-window // page) * page + max(1, envs.SGLANG_SWA_EVICTION_INTERVAL.get()) + max(1, _ahead()))


def _ahead() -> int:
    """Tokens that a running request has beyond those it has decoded: of drafts, and of steps that were allocated and are not taken yet."""
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    if get_spec().speculative_algorithm is None:
        return 0
    return int(get_alloc_reserve_per_decode() + (max_speculative_num_draft_tokens() or 0))


@functools.cache
def _one_window() -> bool:
    return own_window.one_window_reason_against() is None


def running_growth(adder: Any) -> int:
    """:func:`growth` of the running batch of SGLang's ``PrefillAdder``, with SGLang's estimate of the tokens to come.

    Where a request holds one window, prompt and answer slide through it: what the tree still holds of a prompt can be taken back.
    """
    requests, window = adder.running_batch.reqs, adder.tree_cache.sliding_window_size
    most = _most(window, adder.page_size)
    prompts, decoded = [len(one.origin_input_ids) for one in requests], [len(one.output_ids) for one in requests]
    expected = [adder._get_running_request_total_token_offset(one) for one in requests]
    if _one_window():
        return growth([0] * len(requests), [sum(pair) for pair in zip(prompts, decoded, strict=True)], expected, most)
    return growth([min(prompt, window) for prompt in prompts], decoded, expected, most)
