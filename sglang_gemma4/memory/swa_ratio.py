"""The share of sliding-window tokens that a Gemma 4 model's pools should have."""

from dataclasses import dataclass
from typing import Any

MOE_RATIO = 0.15
"""Sliding tokens per full token on 26B-A4B: its sliding layers take ten times the bytes of its full ones, and a request of more than
window / 0.15 = 6,827 tokens needs fewer sliding tokens than this share."""

_CONCURRENT = 48  # requests: what SGLang runs at once under speculation unless told otherwise
_CHUNK = 8192  # tokens: SGLang's usual chunk of a prefill


@dataclass(frozen=True)
class Choice:
    """A ratio (None: leave SGLang's default) and the sentence for the log."""

    ratio: float | None
    why: str


def choose(text_config: Any, given: float | None, max_total_tokens: int | None, page_size: int | None) -> Choice:
    """The ratio for a model, given what the operator set (``--swa-full-tokens-ratio``, ``--max-total-tokens``, ``--page-size``).

    Args:
        text_config: the language model's config, with ``num_experts`` and ``sliding_window``.
    """
    if given is not None:
        return Choice(None, f"--swa-full-tokens-ratio {given:g} stands as given")
    if not (getattr(text_config, "num_experts", None) or 0) > 0:
        return Choice(None, "SGLang's default ratio stays: on a dense model the sliding pool binds first")
    least = _CONCURRENT * (int(text_config.sliding_window) + (page_size or 1)) + _CHUNK
    if max_total_tokens is not None and MOE_RATIO * max_total_tokens < least:
        return Choice(
            None,
            f"SGLang's default ratio stays: {MOE_RATIO} of --max-total-tokens {max_total_tokens} is below {least}, "
            f"the sliding tokens of {_CONCURRENT} requests and a prefill chunk",
        )
    return Choice(
        MOE_RATIO, f"swa_full_tokens_ratio {MOE_RATIO} for MoE Gemma 4: the full pool binds; --swa-full-tokens-ratio overrides it"
    )
