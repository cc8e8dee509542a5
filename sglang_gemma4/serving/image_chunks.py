"""Prefill chunks that end beside images: an image cut in two cannot attend to itself both ways."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.attention import image_spans

_two_way = False


def serve_two_way_images() -> None:
    """Said where a model is made whose images attend both ways; the scheduler of the same process then keeps them whole."""
    global _two_way
    _two_way = True


def chunk_beside_images(original: Callable[..., Any], adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``PrefillAdder.add_chunked_req`` and ``add_one_req``: a chunk ends before or after an image, not inside.

    The adder's chunk budget is set to the length that fits for the time of the call; what the request took is then
    taken off the real budget. Where free KV memory and not the chunk size cut an image, the chunk is shortened afterwards.
    """
    spans = image_spans.of_inputs(req.multimodal_inputs) if _two_way else []
    if not spans:
        return original(adder, req, *args, **kwargs)
    budget, total = adder.rem_chunk_tokens, len(req.full_untruncated_fill_ids)
    if budget is None or budget <= 0 or req.prefix_len + budget >= total:
        result = original(adder, req, *args, **kwargs)
    else:
        length = image_spans.chunk_length(req.prefix_len, budget, total, spans, adder.page_size)
        cut = req.prefix_len + length < total
        offered = -(-length // adder.page_size) * adder.page_size
        adder.rem_chunk_tokens = offered
        try:
            result = original(adder, req, *args, **kwargs)
        finally:
            taken = offered - adder.rem_chunk_tokens
            # As stock leaves it: a chunk that ends inside its prompt is the batch's last.
            adder.rem_chunk_tokens = 0 if taken and cut else max(0, budget - taken)
    if adder.can_run_list and adder.can_run_list[-1] is req and req.extend_end < total:
        taken = req.extend_end - req.prefix_len
        req.extend_end = req.prefix_len + min(taken, image_spans.chunk_length(req.prefix_len, taken, total, spans, adder.page_size))
    return result
