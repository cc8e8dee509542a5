"""KV slots of an MTP step, allocated some steps ahead: most steps then have none to allocate.

Stock tops each request up to its committed tokens and twice a step's draft tokens before each step: what the step before accepted, two or
three slots a request, by two copies to the card and some ten launches for the slots of full and sliding layers, their map and the table
of requests. At batch 1 the card waits for the host that launches them. Here all running requests get :data:`AHEAD` more as soon as one
is short. Nothing else changes: slots that a finished or retracted request did not use are freed with those that stock allocates ahead.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import takes

NAME = "slots_ahead"
AHEAD = 32
"""Slots beyond stock's: eight steps in which every draft is accepted."""
SPARED = 8
"""Slots are taken ahead while so large a part of each pool, one in eight, would stay free or evictable."""

_problems: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()  # by the allocator
_taken = 0
"""What :func:`lengths` adds, while a batch is prepared that takes slots ahead."""


def prepare(original: Callable[[Any], None], batch: Any) -> None:
    """Around ``eagle_prepare_for_decode``: no launch where every request has its slots, and more than one step's where one is short."""
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    global _taken
    allocator = batch.token_to_kv_pool_allocator
    if allocator not in _problems:
        problem = reason_against(allocator) if named_gemma4(batch.model_config.hf_config) else "the model is no Gemma 4"
        _problems[allocator] = problem
        takes(NAME, problem, "slots are allocated step by step")
    if _problems[allocator] is not None or batch.hisparse_coordinator is not None:
        original(batch)
        return
    reserve = get_alloc_reserve_per_decode()
    if all(req.kv.kv_allocated_len >= req.kv.kv_committed_len + reserve for req in batch.reqs):
        _prepare_without_allocation(batch)
        return
    _taken = AHEAD if is_ample(batch, reserve) else 0
    try:
        original(batch)
    finally:
        _taken = 0


def _prepare_without_allocation(batch: Any) -> None:
    """What ``eagle_prepare_for_decode`` does beside the allocation."""
    batch.maybe_evict_swa()
    if batch.sampling_info.penalizer_orchestrator.is_required:
        batch.cumulate_penalty_output_tokens()
    for req in batch.reqs:
        req.decode_batch_idx += 1
    if batch.seq_lens_cpu is None:
        batch.max_seq_len_host = max(req.kv.kv_allocated_len for req in batch.reqs)


def lengths(original: Callable[..., Any], reqs: Sequence[Any], *, reserve: int, page_size: int) -> tuple[list[int], list[int], int]:
    """Around ``page_aligned_decode_alloc_lens``: (allocated, to be allocated, their difference) of each request, in tokens.

    No request gets slots for tokens that it will not generate.
    """
    now, then, needed = original(reqs, reserve=reserve, page_size=page_size)
    if not _taken:
        return now, then, needed
    # Beyond what is committed, not beyond what is held: a slow request would get more each time that another one is short.
    ahead = [min(req.kv.kv_committed_len + reserve + _taken, last_slot(req, reserve)) for req in reqs]
    then = [max(pair) for pair in zip(then, ahead, strict=True)]
    return now, then, sum(then) - sum(now)


def last_slot(req: Any, reserve: int) -> int:
    """Slots that stock gives a request at most: a row of the table of requests need not hold more.

    A request whose last token but one is committed still runs.
    """
    return len(req.origin_input_ids) + int(req.sampling_params.max_new_tokens) - 2 + reserve


def is_ample(batch: Any, reserve: int) -> bool:
    """Whether both pools keep an eighth of their slots for others if all requests of ``batch`` take theirs ahead.

    By what the host counts: nothing is evicted and no device is asked.
    """
    allocator, cache = batch.token_to_kv_pool_allocator, batch.tree_cache
    wanted = len(batch.reqs) * (reserve + AHEAD)
    full = allocator.full_available_size() + cache.full_evictable_size()
    sliding = allocator.swa_available_size() + cache.swa_evictable_size()
    return bool(full - wanted >= allocator.size_full // SPARED and sliding - wanted >= allocator.size_swa // SPARED)


def reason_against(allocator: Any) -> str | None:
    """Why slots of this allocator are not taken ahead, or None."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    if type(allocator) is not SWATokenToKVPoolAllocator or allocator.swa_req_ring:
        return f"slots come from a {type(allocator).__name__}, not from a full and a sliding pool of tokens"
    if allocator.page_size != 1:
        return f"a page has {allocator.page_size} tokens: most steps have no page to allocate as it is"
    return None
