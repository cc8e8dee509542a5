"""Admission of a prompt whose cached prefix is still partly on the host (HiCache).

The older part of the prefix's window may be on the host and the newer part on the GPU. Loading the older part back
also locks the newer one. SGLang's ``PrefillAdder`` compares what the request needs with free and evictable slots before
that lock. It therefore counts slots as evictable that are about to be locked.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def with_its_window_locked(
    original: Callable[..., Any], adder: Any, req: Any, *, host_hit_length: int, swa_host_hit_length: int, **given: Any
) -> Any:
    """Around ``PrefillAdder._select_prefill_admission``: lock the nodes that the load-back of ``req`` will lock.

    If the request is refused although no other request runs or was admitted, SGLang's own check decides. Otherwise the
    request would wait for ever; the locks on its prefix on the GPU end before its slots are allocated.
    """
    given |= {"host_hit_length": host_hit_length, "swa_host_hit_length": swa_host_hit_length}
    if not (host_hit_length or swa_host_hit_length) or not _reads_back(adder):
        return original(adder, req, **given)
    with adder._lock_node(req.best_match_node, lock_host=True):
        admission = original(adder, req, **given)
    alone = not adder.can_run_list and (adder.running_batch is None or adder.running_batch.is_empty())
    return original(adder, req, **given) if alone and isinstance(admission, AddReqResult) else admission


def _reads_back(adder: Any) -> bool:
    """Whether load-backs lock nodes of SGLang's tree, and the budget counts sliding tokens.

    False with staging buffers and external linkers.
    """
    cache = adder.tree_cache
    ours = type(cache) is UnifiedRadixCache and cache.buffer_pipeline is None and cache.linker is None
    return ours and isinstance(adder.memory_budget, SWAPrefillBudget) and not adder.memory_budget.req_ring
