"""How much of the sliding pool running requests will still take; the scheduler must not give it to new ones."""

from typing import Any

import numpy as np
import numpy.typing as npt

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
    if batch is None or not batch.reqs or not named_gemma4(batch.model_config.hf_config):
        return
    if type(budget).__name__ == "SWAPrefillBudget" and not budget.req_ring and adder.tree_cache.sliding_window_size:
        budget.swa_offset += running_growth(adder)


def running_growth(adder: Any) -> int:
    """:func:`growth` of the running batch of SGLang's ``PrefillAdder``, with SGLang's estimate of the tokens to come."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_memory, max_speculative_num_draft_tokens

    requests, window = adder.running_batch.reqs, adder.tree_cache.sliding_window_size
    pages = -(-window // adder.page_size) * adder.page_size
    most = pages + max(1, envs.SGLANG_SWA_EVICTION_INTERVAL.get()) + int(max_speculative_num_draft_tokens() or 0)
    prompts, decoded = [len(one.origin_input_ids) for one in requests], [len(one.output_ids) for one in requests]
    expected = [adder._get_running_request_total_token_offset(one) for one in requests]
    if get_memory().disable_radix_cache:  # prompt and answer slide through one window
        return growth([0] * len(requests), [sum(pair) for pair in zip(prompts, decoded, strict=True)], expected, most)
    return growth([min(prompt, pages) for prompt in prompts], decoded, expected, most)
