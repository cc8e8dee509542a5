"""Images among a prompt's tokens: what they attend to, and where a prefill chunk may end.

Gemma 4 models with ``use_bidirectional_attention == "vision"`` let the tokens of one image see each other in both
directions, on sliding layers, within the window (transformers' ``create_masks_for_vision_model``). The other models
and the full-attention layers are causal.
"""

from collections.abc import Sequence
from typing import Any

import torch

Span = tuple[int, int]
"""First and last position of an image, both included."""


def bidirectional(hf_config: Any) -> bool:
    """Whether this model's images attend in both directions."""
    text = getattr(hf_config, "text_config", hf_config)
    return getattr(text, "use_bidirectional_attention", None) == "vision"


def of_inputs(mm_inputs: Any) -> list[Span]:
    """Spans of a request's images and videos (SGLang's ``MultimodalInputs`` or None), sorted, adjacent ones joined."""
    if mm_inputs is None:
        return []
    spans = sorted(
        (int(begin), int(end)) for item in mm_inputs.mm_items if item.is_image() or item.is_video() for begin, end in item.offsets or ()
    )
    joined: list[Span] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def reach(spans: Sequence[Sequence[Span]], key_lens: torch.Tensor, query_lens: torch.Tensor) -> torch.Tensor | None:
    """Last position each new token may see: the end of its image, or itself.

    Args:
        spans: per request.
        key_lens: [requests] tokens of each request, new ones included.
        query_lens: [requests] new tokens.

    Returns:
        [tokens] int64, or None where no request has an image.
    """
    if not any(spans):
        return None
    rows = []
    for own, keys, queries in zip(spans, key_lens.tolist(), query_lens.tolist(), strict=True):
        row = torch.arange(keys - queries, keys)
        for begin, end in own:
            row[(row >= begin) & (row <= end)] = min(end, keys - 1)
        rows.append(row)
    return torch.cat(rows)


def chunk_length(prefix: int, limit: int, total: int, spans: Sequence[Span], page_size: int) -> int:
    """How many tokens a prefill chunk should take so that no image is cut.

    The longest length up to ``limit`` whose end is a page boundary outside every image or the end of the prompt;
    where an image is longer than that allows, the shortest length past it.

    Args:
        prefix: tokens already prefilled.
        limit: the chunk size asked for.
        total: length of the prompt.
    """
    if prefix + limit >= total:
        return total - prefix

    def cut(position: int) -> bool:
        return any(begin < position <= end for begin, end in spans)

    end = (prefix + limit) // page_size * page_size
    while end > prefix and cut(end):
        end -= page_size
    if end > prefix:
        return end - prefix
    end = (prefix + limit) // page_size * page_size
    while end < total and (end <= prefix or cut(end)):
        end += page_size
    return min(end, total) - prefix
