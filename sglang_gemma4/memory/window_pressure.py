"""When running requests give up their prompts' windows: hooks of the scheduler and its batches, and their arithmetic.

All inputs are on the host: nothing waits for a device, and every rank of a tensor-parallel group decides the same.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS
from sglang.srt.mem_cache.allocator.unified_hybrid_swa import UnifiedSWATokenToKVPoolAllocator

from sglang_gemma4.memory import window_nodes
from sglang_gemma4.memory.own_window import COUNTS, Window, window_of
from sglang_gemma4.memory.window_nodes import SWA

logger = logging.getLogger(__name__)
ASK_EVERY = 16
"""Decode steps after which :func:`make_room` asks a request again that could not take back its window.

Before a retraction all requests are asked.
"""
SAID_EVERY = 1024
"""Taken windows between two lines of the log, in addition to the lines at 1, 2, 4, 8 and so on."""
LOOKED_AT = 64
"""Waiting requests whose prompts are counted."""
MOMENTS = 64
"""Most moments at which the running requests are summed: with 2,000 requests neighbouring moments hardly differ."""


def make_decode_fit(original: Callable[..., bool], batch: Any, selected_indices: list[int] | None = None) -> bool:
    """Around ``ScheduleBatch.check_decode_mem``: before any retraction, running requests free what they do not read.

    They first free tokens behind their own windows that SGLang would free at the next eviction interval, then what
    :func:`take_back` frees. They free only as much as the next step needs.
    """
    fits = original(batch, selected_indices)
    if fits or selected_indices is not None:  # selected_indices are given while requests are retracted
        return fits
    window = window_of(batch.tree_cache, batch.model_config)
    if window is None:
        return fits
    allocator, needed = batch.token_to_kv_pool_allocator, batch.new_tokens_required_next_decode()
    missing = missing_for_step(allocator, needed)
    if missing is None:
        return fits  # the sliding pool is not what is short
    unlock_passed(batch.tree_cache, window, batch.reqs)
    _slide(batch, window, missing)
    # Also ask requests that could not some steps ago: their window may have passed a node that other requests read.
    passed = [(_passed(req, window), req) for req in batch.reqs if window_nodes.locks_window(req)]
    for tokens, req in sorted(passed, key=lambda pair: -pair[0]):
        if tokens <= 0 or missing_for_step(allocator, needed) is None:
            break
        take_back(batch.tree_cache, req)
    return original(batch, None)


def missing_for_step(allocator: Any, needed: int) -> int | None:
    """Sliding tokens to free so that ``needed`` tokens can be allocated for full and for sliding layers.

    None if no tokens are missing, or if freeing sliding tokens does not help.
    """
    if (worth := full_worth(allocator)) is not None:
        short = needed - allocator.available_size()
        return math.ceil(short * (1 + worth)) if short > 0 else None
    if allocator.full_available_size() < needed or allocator.swa_available_size() >= needed:
        return None
    return int(needed - allocator.swa_available_size())


def full_worth(allocator: Any) -> float | None:
    """Sliding tokens whose memory equals that of one full token; None if the two layer types have separate pools."""
    if not isinstance(allocator, UnifiedSWATokenToKVPoolAllocator):
        return None
    return float(allocator.full_attn_allocator.entry_bytes / allocator.swa_attn_allocator.entry_bytes)


def _slide(batch: Any, window: Window, missing: int) -> None:
    """Free what lies behind the windows of running requests, largest pieces first, until ``missing`` tokens are free.

    Each free launches some small kernels, so pieces of less than a quarter of the eviction interval are left alone.
    """
    cache, least = batch.tree_cache, max(window.page, window.interval // 4)
    behind = [(_behind(req, window), req) for req in batch.reqs if req.decode_batch_idx >= 1 and req.kv.holds_kv and req.beam_group is None]
    cache.token_to_kv_pool_allocator.free_group_begin()
    for tokens, req in sorted(behind, key=lambda pair: -pair[0]):
        if tokens < least or missing <= 0:
            break
        cache.evict_sliding_windows(req, req.seqlen - 1)
        missing -= tokens
    cache.token_to_kv_pool_allocator.free_group_end()


def make_room(scheduler: Any, prefill_delayer_single_pass: Any, running_batch: Any) -> None:
    """Before ``Scheduler._get_new_batch_prefill_raw``: free sliding tokens if prompts wait and these tokens are short.

    Running requests reclaim their own prompt's cached window. Sliding tokens are short if fewer are available and
    evictable than the running requests will still take (:func:`growth` with SGLang's estimate of the tokens to come)
    plus a prefill chunk. If full tokens take the same memory, theirs count, too. The request that saves most comes
    first, until tokens are no longer short. This happens before the prefill's policy matches prefixes, because the
    policy keeps ids of nodes.
    """
    cache, window = scheduler.tree_cache, window_of(scheduler.tree_cache, scheduler.model_config)
    if window is None or running_batch.is_empty() or not (scheduler.waiting_queue or scheduler.chunked_req):
        return
    unlock_passed(cache, window, running_batch.reqs)
    ratio = scheduler.new_token_ratio_tracker.current
    saves = [(_saves(req, window, ratio), req) for req in running_batch.reqs if _may_take(req)]
    if not any(tokens > 0 for tokens, _ in saves):
        return
    if scheduler.chunked_req is None and scheduler.get_num_allocatable_reqs(len(running_batch.reqs), running_batch=running_batch) <= 0:
        return  # nothing can be admitted, so nothing is short
    allocator, chunk = scheduler.token_to_kv_pool_allocator, _chunk(scheduler)
    missing = _growth(running_batch.reqs, window, ratio) + chunk - allocator.swa_available_size() - cache.swa_evictable_size()
    if worth := full_worth(allocator):
        full = sum(_expected(req, ratio) for req in running_batch.reqs) + chunk - cache.full_evictable_size()
        missing += math.ceil(full * worth)
    for tokens, req in sorted(saves, key=lambda pair: -pair[0]):
        if missing <= 0 or tokens <= 0:
            return
        if take_back(cache, req):
            missing -= tokens


def unlock_after_step(_result: None, batch: Any) -> None:
    """After ``ScheduleBatch.maybe_evict_swa``: :func:`unlock_passed` for the requests of a decode step."""
    if not batch.forward_mode.is_decode():
        return
    window = window_of(batch.tree_cache, batch.model_config)
    if window is not None:
        unlock_passed(batch.tree_cache, window, batch.reqs)


def unlock_passed(cache: Any, window: Window, requests: Sequence[Any]) -> None:
    """End the lock on sliding slots in the tree, for requests whose window has passed what they have in the tree.

    This can happen before the first decode step: SGLang may insert a prompt only up to the point where another one
    branches off (``unified_cache/components/swa.py``, swa_branching_seqlen), and free what the window passed behind it.
    """
    for req in requests:
        if req.seqlen > window.kept + req.kv.cache_protected_len and window_nodes.locks_window(req):
            window_nodes.unlock_window(cache, req)
            COUNTS.unlocked += 1


def take_back(cache: Any, req: Any) -> int:
    """:func:`window_nodes.give_back` with counters and a log line. Returns the tokens of the nodes.

    If it fails, :func:`make_room` skips the request for :data:`ASK_EVERY` steps.
    """
    tokens = window_nodes.give_back(cache, req)
    if not tokens:
        COUNTS.refused += 1
        req.own_window_refused_at = req.decode_batch_idx
        return 0
    COUNTS.taken_back += 1
    COUNTS.taken_tokens += tokens
    if COUNTS.taken_back & (COUNTS.taken_back - 1) == 0 or COUNTS.taken_back % SAID_EVERY == 0:
        logger.info(
            "sglang-gemma4: sliding tokens are short: running requests took their prompts' last windows out of the radix tree %d times "
            "so far (%d tokens); a prompt like one of theirs is prefilled again until they end",
            COUNTS.taken_back,
            COUNTS.taken_tokens,
        )
    return tokens


def _may_take(req: Any) -> bool:
    steps = req.decode_batch_idx - getattr(req, "own_window_refused_at", -ASK_EVERY)
    return not 0 <= steps < ASK_EVERY and window_nodes.locks_window(req)


def _own(req: Any) -> int:
    """Sliding tokens of a request outside the tree."""
    kv = req.kv
    return int(kv.kv_allocated_len - max(kv.cache_protected_len, kv.get_evicted_seqlen(SWA)))


def _behind(req: Any, window: Window) -> int:
    """Sliding tokens of its own that a request no longer reads, in whole pages."""
    begin = (req.seqlen - 1 - window.kept) // window.page * window.page
    return int(begin - max(req.kv.swa_dead_lo(window.page), req.kv.get_evicted_seqlen(SWA)))


def _passed(req: Any, window: Window) -> int:
    """Tokens of its prompt's locked window that a request's own window has passed, in whole pages.

    These are freed if the request takes its prompt's window back.
    """
    prompt = req.kv.cache_protected_len
    begin = (req.seqlen - 1 - window.kept) // window.page * window.page
    return int(min(begin, prompt) - max(prompt - window.kept, 0))


def _expected(req: Any, ratio: float) -> int:
    """Tokens still to come, as SGLang's ``PrefillAdder._get_running_request_total_token_offset`` estimates them."""
    parameters = req.sampling_params
    left = min(parameters.max_new_tokens - len(req.output_ids), CLIP_MAX_NEW_TOKENS)
    return int(max(left, 0) * (1.0 if parameters.ignore_eos else ratio))


def _saves(req: Any, window: Window, ratio: float) -> int:
    """How many fewer sliding tokens a request holds at its largest if it takes back its prompt's window.

    0 while its own window reaches back to the first token.
    """
    if req.seqlen - 1 < window.kept:
        return 0
    locked, later = min(req.kv.cache_protected_len, window.kept), _own(req) + _expected(req, ratio)
    return int(locked + min(later, window.most) - min(locked + later, window.most))


def growth(locked: npt.ArrayLike, held: npt.ArrayLike, expected: npt.ArrayLike, most: int) -> int:
    """Sliding tokens that the running requests will take together at the worst moment, beyond what they take now.

    A request takes ``locked + min(held + t, most)`` after t more tokens and nothing after its end; the worst moment is
    just before one ends.

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


def _growth(requests: Sequence[Any], window: Window, ratio: float) -> int:
    locked = [min(req.kv.cache_protected_len, window.kept) if window_nodes.locks_window(req) else 0 for req in requests]
    return growth(locked, [_own(req) for req in requests], [_expected(req, ratio) for req in requests], window.most)


def _chunk(scheduler: Any) -> int:
    """Most tokens of the next prefill chunk: its size, or the tokens that wait, including cached prefixes."""
    cut = scheduler.chunked_req
    waiting = 0 if cut is None else len(cut.origin_input_ids) - cut.prefix_len
    waiting += sum(len(req.origin_input_ids) for req in scheduler.waiting_queue[:LOOKED_AT])
    size = scheduler.chunked_prefill_size
    return int(waiting if size is None or size <= 0 else min(waiting, size))
