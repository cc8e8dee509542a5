"""What the patches install: the few places where SGLang must be told about the CPU engine."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.cpu import image_spans
from sglang_gemma4.cpu.attention_backend import Gemma4CpuAttention


def sampled_verification(*, is_all_greedy: bool, **_: Any) -> bool:
    """``_verify_uses_greedy``: only where every request is greedy; stock says always, on a CPU."""
    return is_all_greedy


def draft_backend(original: Callable[..., Any], worker: Any) -> Any:
    """``FrozenKVMTPDraftWorker._init_draft_attn_backend``: topk > 1 uses the same backend as topk = 1.

    The draft writes no KV, so its frontier of ``requests * topk`` rows is an ordinary decode batch.
    """
    backend = worker.draft_model_runner.attn_backend
    return backend if isinstance(backend, Gemma4CpuAttention) else original(worker)


def image_masks(original: Callable[..., Any], model: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """``prepare_attn_masks``: our backend reads image spans from the batch itself."""
    from sglang.srt.model_executor.forward_context import get_attn_backend

    if isinstance(get_attn_backend(), Gemma4CpuAttention):
        return None
    return original(model, forward_batch, *args, **kwargs)


def chunk_beside_images(original: Callable[..., Any], adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """``PrefillAdder.add_chunked_req`` and ``add_one_req``: a chunk ends before or after an image, not inside.

    The adder's chunk budget is set to the length that fits for the time of the call; what the request took is then
    taken off the real budget.
    """
    budget = adder.rem_chunk_tokens
    spans = image_spans.of_inputs(req.multimodal_inputs)
    total = len(req.full_untruncated_fill_ids)
    if budget is None or budget <= 0 or not spans or req.prefix_len + budget >= total:
        return original(adder, req, *args, **kwargs)
    length = image_spans.chunk_length(req.prefix_len, budget, total, spans, adder.page_size)
    cut = req.prefix_len + length < total
    offered = -(-length // adder.page_size) * adder.page_size
    adder.rem_chunk_tokens = offered
    try:
        return original(adder, req, *args, **kwargs)
    finally:
        taken = offered - adder.rem_chunk_tokens
        # As stock leaves it: a chunk that ends inside its prompt is the batch's last.
        adder.rem_chunk_tokens = 0 if taken and cut else max(0, budget - taken)
