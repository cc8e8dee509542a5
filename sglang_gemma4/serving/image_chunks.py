"""Prefill chunks that do not split images: an image split in two cannot attend to itself in both directions.

A chunk may exceed the chunk size for an image, but not free KV memory. If that is too small, the request waits until other requests
release memory, and no request is admitted meanwhile. If no other request holds any, the request is refused.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang_gemma4.attention import image_spans

_two_way = False
_waiting: list[tuple[Any, str]] = []
"""The request of this scheduling pass whose next image exceeds free KV memory, and the error message for it."""


def serve_two_way_images() -> None:
    """Called when a model is created whose images attend in both directions; its scheduler then keeps them whole."""
    global _two_way
    _two_way = True


def admit_beside_images(original: Callable[..., Any], adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``PrefillAdder.add_one_req``: a first chunk does not end inside an image."""
    if _waiting:
        return _no_token()
    spans, budget, total = _spans(req), adder.rem_chunk_tokens, len(req.full_untruncated_fill_ids)
    if not spans or budget is None or budget <= 0:
        return original(adder, req, *args, **kwargs)
    if req.prefix_len + budget >= total:
        result = original(adder, req, *args, **kwargs)
    else:
        length = image_spans.chunk_length(req.prefix_len, budget, total, spans, adder.page_size)
        result = _offer(length, original, adder, req, *args, **kwargs)
    if adder.new_chunked_req is req:
        adder.rem_chunk_tokens = 0  # as in stock: a chunk that does not complete its prompt is the batch's last
    return result


def continue_beside_images(original: Callable[..., Any], adder: Any, req: Any) -> Any:
    """Around ``PrefillAdder.add_chunked_req``, for the chunks after the first: returns ``req`` if its prompt is not complete."""
    spans, budget, total = _spans(req), adder.rem_chunk_tokens, len(req.full_untruncated_fill_ids)
    if not spans or budget is None or budget <= 0:
        return original(adder, req)

    def whole(limit: int) -> int:
        return image_spans.chunk_length(req.prefix_len, limit, total, spans, adder.page_size)

    limit = budget if adder.chunked_req_limit is None else min(budget, adder.chunked_req_limit)
    length = whole(limit)
    room = adder.memory_budget.available_chunk_tokens(length) or 0
    if room:
        room = adder.memory_budget.fit_chunk(
            extend_input_len=total - req.prefix_len, max_new_tokens=adder._swa_new_tokens(req), chunk_limit=room
        )
    length = whole(min(limit, room or 0))
    if length > (room or 0):
        _wait(req, length, room or 0)
        return req
    if adder.chunked_req_limit is not None:
        adder.chunked_req_limit = max(limit, length)
    result = _offer(length, original, adder, req)
    if result is req:
        adder.rem_chunk_tokens = 0
    return result


def fit_beside_images(original: Callable[..., Any], adder: Any, req: Any, **asked: Any) -> Any:
    """Around ``PrefillAdder._select_prefill_admission``: a limit from free memory or a prefix on the host does not split an image."""
    admission, spans = original(adder, req, **asked), _spans(req)
    if not spans or not getattr(admission, "is_chunked", False):
        return admission
    total, budget = len(req.full_untruncated_fill_ids), adder.rem_chunk_tokens
    length = image_spans.chunk_length(admission.prefix_len, admission.extend_len, total, spans, adder.page_size)
    if length <= admission.extend_len:
        return replace(admission, extend_len=length)
    adder.rem_chunk_tokens = _pages(length, adder)
    try:
        admission = original(adder, req, **asked)
    finally:
        adder.rem_chunk_tokens = budget
    if getattr(admission, "is_chunked", False) and admission.extend_len < length:
        _wait(req, length, admission.extend_len)
        return _no_token()
    return admission


def refuse_what_never_fits(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``Scheduler._get_new_batch_prefill_raw``: a request that waits for memory that no other request holds gets status 400."""
    _waiting.clear()
    result = original(scheduler, *args, **kwargs)
    for req, why in _waiting:
        held = any(other is not req and not other.finished() for other in scheduler.collect_inflight_reqs())
        if held or getattr(scheduler, "disagg_prefill_inflight_queue", None):
            continue
        from http import HTTPStatus

        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        if scheduler.chunked_req is req:
            req.discard_output_reason = FINISH_ABORT(why, HTTPStatus.BAD_REQUEST, "BadRequestError")
            scheduler._pending_chunked_abort_req = req
        else:
            req.set_finish_with_abort(why)
    return result


def _spans(req: Any) -> list[image_spans.Span]:
    return image_spans.of_inputs(req.multimodal_inputs) if _two_way else []


def _pages(length: int, adder: Any) -> int:
    return int(-(-length // adder.page_size) * adder.page_size)


def _offer(length: int, original: Callable[..., Any], adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``original`` with a chunk budget of ``length`` tokens; what it uses is subtracted from the real budget."""
    budget, offered = adder.rem_chunk_tokens, _pages(length, adder)
    adder.rem_chunk_tokens = offered
    try:
        return original(adder, req, *args, **kwargs)
    finally:
        adder.rem_chunk_tokens = max(0, budget - (offered - adder.rem_chunk_tokens))


def _wait(req: Any, length: int, room: int) -> None:
    why = (
        f"an image or a run of images takes {length} tokens, which are prefilled together, and the KV pools have room for {room} where no "
        "other request runs; send smaller or fewer images in a row, or start the server with a larger --mem-fraction-static, "
        "--max-total-tokens or --swa-full-tokens-ratio"
    )
    _waiting.append((req, why))


def _no_token() -> Any:
    from sglang.srt.managers.schedule_policy import AddReqResult

    return AddReqResult.NO_TOKEN
