"""Removes a request from SGLang's scheduler after a failure: its KV is released, and it waits again or is answered with an error."""

import logging
import traceback
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

logger = logging.getLogger(__name__)


def release(scheduler: Any, req: Any) -> None:
    """Release a request's KV, as a retraction does."""
    from sglang.srt.mem_cache.common import release_kv_cache

    cache = scheduler.tree_cache
    if req.kv.holds_kv:
        req.kv.kv_committed_len = req.kv.kv_allocated_len  # all of it is released
        release_kv_cache(req, cache, checkpoint=False)
    elif req.lock is not None:
        cache.unlock(req.lock)
    req.reset_for_retract()


def end(scheduler: Any, req: Any, error: Exception, batches: int = 0) -> None:
    """Answer ``req`` with the error, as :func:`abort_reason` says it."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT
    from sglang.srt.managers.scheduler import _make_abort_req

    reason = abort_reason(error, batches)
    req.finished_reason = FINISH_ABORT(reason["message"], reason["status_code"], reason["err_type"])
    scheduler._release_aborted_request(req)
    scheduler.send_abort_output(_make_abort_req(req, finished_reason=reason), req)


def stream_ended(scheduler: Any, batch: Any) -> None:
    """Answer the requests that ended in a step whose result was only partly processed."""
    ended = [req for req in batch.reqs if req.finished() and req.finished_output is None]
    if ended:
        scheduler.output_streamer.stream_output(ended, any(req.return_logprob for req in ended))


def abort_reason(error: Exception, batches: int = 0) -> dict[str, Any]:
    """The finish reason with which SGLang's tokenizer process answers a request that ``error`` ended.

    Status 400 for a ValueError, which a client can fix, otherwise 500.

    Args:
        batches: failed batches that the request was in without failing at batch 1; 0: it failed at batch 1.
    """
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    theirs = isinstance(error, ValueError) and not batches
    status, kind = (HTTPStatus.BAD_REQUEST, "BadRequestError") if theirs else (HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError")
    what = "this request failed alone, the server goes on"
    if batches:
        what = f"{batches} batches with this request failed, though it does not fail alone; another request may be the cause: send it again"
    return dict(FINISH_ABORT(f"{what}: {type(error).__name__}: {error!s:.300}", status, kind).to_json())


def refuse_if_broken(original: Callable[..., None], scheduler: Any, received: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``handle_generate_request`` and ``handle_embedding_request``: an exception is answered and ends no other request."""
    from sglang.srt.managers.io_struct import AbortReq

    try:
        original(scheduler, received, *args, **kwargs)
    except Exception as error:
        logger.error("sglang-gemma4: request %s cannot be taken:\n%s", received.rid, "".join(traceback.format_exception(error)))
        scheduler.waiting_queue = [req for req in scheduler.waiting_queue if req.rid != received.rid]
        scheduler.send_abort_output(AbortReq(rid=received.rid, finished_reason=abort_reason(error)), received)


def merged(running: Any, more: Any) -> Any:
    """A batch of the requests of both; ``running`` may be changed in place."""
    if more.is_empty():
        return running
    if running.is_empty():
        return more
    running.merge_batch(more)
    return running


def empty_batch() -> Any:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    return ScheduleBatch(reqs=[], batch_is_full=False)


def end_free_group(allocator: Any) -> None:
    """End the group of frees that an interrupted result left open, if any."""
    if allocator.free_group is not None:
        allocator.free_group_end()
