"""What admission may count on while a prompt's prefix is still on the host (HiCache).

A prefix is found with a window of which the older part may be on the host and the newer one on the card. Reading it back locks the
latter, too. SGLang's ``PrefillAdder`` compares what the request needs with what is free or evictable before that, and so counts slots as
evictable that are about to be locked.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def with_its_window_locked(
    original: Callable[..., Any], adder: Any, req: Any, *, host_hit_length: int, swa_host_hit_length: int, **given: Any
) -> Any:
    """Around ``PrefillAdder._select_prefill_admission``: what ``req`` is to read back is locked meanwhile, as the copy will lock it.

    A request that is refused with nobody beside it is asked for as SGLang does: it would wait for ever, and the locks of the prefix found
    on the card go before its slots are allocated.
    """
    given |= {"host_hit_length": host_hit_length, "swa_host_hit_length": swa_host_hit_length}
    if not (host_hit_length or swa_host_hit_length) or not _reads_back(adder):
        return original(adder, req, **given)
    with adder._lock_node(req.best_match_node, lock_host=True):
        admission = original(adder, req, **given)
    alone = not adder.can_run_list and (adder.running_batch is None or adder.running_batch.is_empty())
    return original(adder, req, **given) if alone and isinstance(admission, AddReqResult) else admission


def _reads_back(adder: Any) -> bool:
    """Whether copies lock nodes of SGLang's tree, and sliding tokens are counted: not so with staging buffers and external linkers."""
    cache = adder.tree_cache
    ours = type(cache) is UnifiedRadixCache and cache.buffer_pipeline is None and cache.linker is None
    return ours and isinstance(adder.memory_budget, SWAPrefillBudget) and not adder.memory_budget.req_ring
