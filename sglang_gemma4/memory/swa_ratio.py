"""The ratio of sliding-window tokens to full tokens for a Gemma 4 model's pools."""

from dataclasses import dataclass
from typing import Any

MOE_RATIO = 0.15
"""Sliding tokens per full token on 26B-A4B: its sliding layers take ten times the bytes of its full ones.

A running request holds up to two windows of the sliding pool (``swa_sizing``). So requests of more than about
2 · 1024 / 0.15 = 14,000 tokens, and cached prefixes of any length, gain all that the larger full pool gives. For short
ones the sliding pool is the limit, and fewer fit at once than with SGLang's 0.8 (``sglang-gemma4 capacity``).
``swa_sizing`` considers both; this ratio is used only where it declines.
"""

CONCURRENT = 48  # requests: SGLang's default --max-running-requests under speculation
_CHUNK = 8192  # tokens: SGLang's usual chunk of a prefill


@dataclass(frozen=True)
class Choice:
    """A ratio (None: leave SGLang's default) and the sentence for the log."""

    ratio: float | None
    why: str


def choose(
    text_config: Any,
    given: float | None,
    max_total_tokens: int | None = None,
    page_size: int | None = None,
    chunked_prefill_size: int | None = None,
) -> Choice:
    """The ratio for a model, given what the operator set (``--swa-full-tokens-ratio`` and the flags of the other arguments' names).

    Args:
        text_config: the language model's config, with ``num_experts`` and ``sliding_window``.
    """
    if given is not None:
        return Choice(None, f"--swa-full-tokens-ratio {given:g} stands as given")
    if not (getattr(text_config, "num_experts", None) or 0) > 0:
        return Choice(None, "SGLang's default ratio stays: on a dense model the sliding pool binds first")
    if chunked_prefill_size is not None and chunked_prefill_size <= 0:  # a prompt longer than the sliding pool would wait for ever
        return Choice(None, "SGLang's default ratio stays: prefill is not chunked, so the sliding pool limits the length of a prompt")
    least = CONCURRENT * (int(text_config.sliding_window) + (page_size or 1)) + _CHUNK
    if max_total_tokens is not None and MOE_RATIO * max_total_tokens < least:
        return Choice(
            None,
            f"SGLang's default ratio stays: {MOE_RATIO} of --max-total-tokens {max_total_tokens} is below {least}, "
            f"the sliding tokens of {CONCURRENT} requests and a prefill chunk",
        )
    return Choice(
        MOE_RATIO,
        f"swa_full_tokens_ratio {MOE_RATIO} for MoE Gemma 4: several times the context; where many short requests run at once, "
        "set --swa-full-tokens-ratio higher",
    )
