"""When a pool is exhausted: answers end with the tokens they have, retracted requests resume, and none waits for ever.

``request_limit`` rejects requests that cannot be served even on an empty server. The other cases are handled here:

- **One request is left and has no room for its next step.** Stock ends it with status 500 and loses its tokens. If
  nothing else holds memory, the request has reached the end of the pool and ends with ``length``. Otherwise it waits,
  like other retracted requests: a chunked prompt, for example, holds memory without being in the batch.
- **A server where nothing runs refuses the first waiting request** in every pass. The request's cached prefix locks a
  window, and a sliding pool that holds the whole request may lack room for the rest beside it. The rest is prefilled in
  smaller chunks. If that does not help (unified memory, a prefix on the host), the request gives up its prefix. If it
  is refused on an empty server all the same, it ends: with ``length`` if it has an answer, else with status 400.
- **A server where nothing runs does not continue a chunked prompt.** The prompt ends with status 400.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sglang_gemma4.memory import session_slots
from sglang_gemma4.memory.request_limit import no_room, refusal
from sglang_gemma4.memory.window_pressure import full_worth
from sglang_gemma4.models.config_files import named_gemma4

logger = logging.getLogger(__name__)
LAST = "Out of memory even after retracting all other requests"
"""Start of the message of ``ScheduleBatch.retract_decode`` about the last request."""
COLD = "#without-prefix-"
"""Starts the suffix that gives a request an empty namespace of the radix tree."""

_scheduler: Any = None
"""The scheduler whose batch is being prepared for a decode step, or None."""
_ended: list[Any] = []
"""Requests of that batch that reached the end of the pool."""
_refused: Any = None
"""The request that found no memory in this pass over the queue."""


def decode(original: Callable[[Any, Any], Any], scheduler: Any, batch: Any) -> Any:
    """Around ``Scheduler.update_running_batch``: answer requests that reached the end of the pool."""
    global _scheduler
    _scheduler = scheduler
    try:
        return original(scheduler, batch)
    finally:
        _scheduler = None
        while _ended:
            req = _ended.pop()
            scheduler.output_streamer.stream_output([req], req.return_logprob)


def retract(original: Callable[[Any], tuple[list[Any], float, list[Any]]], batch: Any) -> tuple[list[Any], float, list[Any]]:
    """Around ``ScheduleBatch.retract_decode``."""
    if _scheduler is None or not named_gemma4(batch.model_config.hf_config) or _is_decode_server():
        return session_slots.leave(original(batch))
    if session_slots.make_room(_scheduler, batch):
        return [], float(_scheduler.new_token_ratio_tracker.current), []
    if len(batch.reqs) == 1 and batch.reqs[0].beam_group is None and not batch.check_decode_mem() and not _held_by_others(batch):
        _end(batch)
        return [], float(_scheduler.new_token_ratio_tracker.current), []
    retracted, ratio, aborted = original(batch)
    back = [req for req in aborted if req.beam_group is None and str(getattr(req.to_finish, "message", "")).startswith(LAST)]
    for req in back:
        req.to_finish = None
        logger.warning("sglang-gemma4: %s waits for memory that others hold; it goes on after its %d tokens", req.rid, len(req.output_ids))
    return session_slots.leave(([*retracted, *back], ratio, [req for req in aborted if req not in back]))


def _held_by_others(batch: Any) -> bool:
    """Whether anything but the one request of ``batch`` holds tokens: a prompt outside the batch, or a session."""
    from sglang.srt.utils.common import ceil_align

    own = ceil_align(batch.reqs[0].kv.kv_allocated_len, batch.tree_cache.page_size)
    return _scheduler.chunked_req is not None or _held(batch.tree_cache) > own


def _held(cache: Any) -> int:
    """Full tokens that cannot be allocated now; in unified memory, whose capacity varies, those that the tree locks."""
    allocator = cache.token_to_kv_pool_allocator
    if full_worth(allocator) is not None:
        return int(cache.full_protected_size())
    return int(allocator.size_full - allocator.full_available_size() - cache.full_evictable_size())


def _end(batch: Any) -> None:
    """End the only request of a batch with the tokens that it has, and free its memory."""
    from sglang.srt.mem_cache.common import release_kv_cache

    req = batch.reqs[0]
    _finish(req)
    release_kv_cache(req, batch.tree_cache, checkpoint=False)
    req.time_stats.set_completion_time()
    _ended.append(req)
    batch.filter_batch(keep_indices=[])


def _finish(req: Any) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH

    req.finished_len = len(req.output_ids)
    req.finished_reason = FINISH_LENGTH(length=req.finished_len)
    logger.warning(
        "sglang-gemma4: %s reached the end of the KV pools and ends with its %d tokens of answer; a larger --max-total-tokens or "
        "--mem-fraction-static holds more",
        req.rid,
        req.finished_len,
    )


def _is_decode_server() -> bool:
    from sglang.srt.runtime_context import get_disagg

    return bool(get_disagg().disaggregation_mode == "decode")


def note_refused(result: Any, adder: Any, req: Any, *_args: Any, truncation_align_size: int | None = None, **_kwargs: Any) -> None:
    """After ``PrefillAdder.add_one_req``: record a request without memory, or without any for the smallest chunk."""
    global _refused
    unaligned = truncation_align_size is not None and adder.prefill_delayer_single_pass is None and result.name == "OTHER"
    _refused = req if result.name == "NO_TOKEN" or unaligned else None


def never_fits(original: Callable[..., bool], budget: Any, extend_input_len: int, max_new_tokens: int, **given: Any) -> bool:
    """Around ``SWAPrefillBudget.swa_never_fits``: also cut a chunk that does not fit beside the request's own prefix.

    If another request runs, or was admitted in this pass, more tokens may become free, and the request waits.
    """
    if original(budget, extend_input_len, max_new_tokens, **given):
        return True
    if budget.req_ring or budget.total_offset or budget.swa_offset:
        return False
    left = budget.allocator.size_swa - budget.tree_cache.swa_protected_size()
    return bool(budget.swa_tokens(extend_input_len, max_new_tokens, **given) >= left)


def admit_whole(original: Callable[..., tuple[bool, int | None]], budget: Any, **asked: Any) -> tuple[bool, int | None]:
    """Around ``SWAPrefillBudget.check_prefill``: without chunks, admit a prompt that the idle sliding pool holds.

    SGLang requires one more page, so a retracted request of the full pool's size would never come back.
    """
    admitted = original(budget, **asked)
    if admitted[0] or asked["chunk_limit"] is not None or budget.req_ring or budget.total_offset or budget.swa_offset:
        return admitted
    fits = budget.ceil_paged_tokens(asked["extend_input_len"]) <= budget.remaining_swa
    return bool(fits and asked["total_tokens"] < budget.remaining_total), None


def admit_by_tokens(original: Callable[[Any, Any], Any], adder: Any, req: Any) -> Any:
    """Around ``PrefillAdder.add_one_req_ignore_eos``, for requests of a known length where there is no radix cache.

    On an empty server it refuses some that fit: it does not cut a chunk to a small sliding pool, and keeps tokens
    spare. Those requests go through ``add_one_req``.
    """
    result = original(adder, req)
    if result.name != "NO_TOKEN" or adder.can_run_list or (adder.running_batch is not None and adder.running_batch.reqs):
        return result
    req.sampling_params.ignore_eos = False
    try:
        return adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)
    finally:
        req.sampling_params.ignore_eos = True


def end_a_standstill(result: tuple[Any, Any], scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Scheduler._get_new_batch_prefill_raw``: break a standstill, where nothing runs and nothing can start.

    The refused request gives up its cached prefix, or ends; a chunked prompt ends.
    """
    global _refused
    refused, _refused = _refused, None
    batch, running = result
    if batch is not None or not running.is_empty() or scheduler.last_batch is not None or not _stands_alone(scheduler, refused):
        return
    if scheduler.chunked_req is not None:
        _abort_chunked(scheduler)
    elif refused is not None and refused.to_finish is None and any(req is refused for req in scheduler.waiting_queue):
        _make_way(scheduler, refused)


def _stands_alone(scheduler: Any, refused: Any) -> bool:
    """Whether no other queue, rank, session or copy under way can give memory back. Frees a session that can."""
    from sglang.srt.runtime_context import get_disagg, get_parallel

    return (
        named_gemma4(scheduler.model_config.hf_config)
        and get_disagg().disaggregation_mode == "null"
        and get_parallel().pp_size == 1
        and not ((scheduler.chunked_req is not None or refused is not None) and session_slots.give_up(scheduler))
        and (scheduler.chunked_req is not None or _held(scheduler.tree_cache) == 0)
    )


def _make_way(scheduler: Any, req: Any) -> None:
    if found := int(req.prefix_len + req.host_hit_length):
        logger.warning("sglang-gemma4: %s found %d tokens in the cache beside which the rest has no room; it goes on cold", req.rid, found)
        req.extra_key = f"{req.extra_key or ''}{COLD}{req.rid}"
        return
    scheduler.waiting_queue = [other for other in scheduler.waiting_queue if other is not req]
    if req.output_ids:
        _finish(req)
        if req.session is not None and req.session.streaming:
            req.session.finish_req(req)
        scheduler.output_streamer.stream_output([req], req.return_logprob)
        return
    from sglang.srt.disaggregation.utils import prepare_abort

    message = no_room(len(req.origin_input_ids), scheduler.server_args)
    logger.error("sglang-gemma4: %s: %s", req.rid, message)
    prepare_abort(req, message, status_code=HTTPStatus.BAD_REQUEST)
    scheduler.output_streamer.stream_output([req], req.return_logprob)
    scheduler._release_aborted_request(req)


def _abort_chunked(scheduler: Any) -> None:
    """Mark the chunked prompt, so that the next pass ends it (``Scheduler.process_pending_chunked_abort``)."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    req = scheduler.chunked_req
    message = refusal(len(req.origin_input_ids), max(1, req.prefix_len), scheduler.server_args)
    logger.error("sglang-gemma4: %s: %s", req.rid, message)
    req.discard_output_reason = FINISH_ABORT(message, HTTPStatus.BAD_REQUEST, "BadRequestError")
    scheduler._pending_chunked_abort_req = req
