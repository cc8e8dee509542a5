"""A running request holds one sliding window, not two.

SGLang locks a prompt's last window in the radix tree until the request ends, in addition to the window of the request's
own tokens. This package gives up the prompt's window when it is not needed:

- Once a request's window has passed its prompt, the request locks only the prompt's full slots
  (``window_pressure.unlock_passed``, always).
- While sliding tokens are short, the request takes the nodes of the prompt's window out of the tree and frees what its
  own window passes (``window_pressure.make_room``, ``make_decode_fit``; ``window_nodes.give_back``). Until it ends,
  other requests cannot hit these nodes, unless HiCache has a copy on the host.

This module says whether that happens on a server, and counts it.
"""

import weakref
from dataclasses import dataclass
from typing import Any

from sglang_gemma4 import patching
from sglang_gemma4.memory.tiers import other_tier
from sglang_gemma4.models.config_files import named_gemma4

NAME = "own_window"


@dataclass
class Counts:
    """What was done in this scheduler process since it started."""

    taken_back: int = 0  # times a running request took its prompt's last nodes out of the tree
    taken_tokens: int = 0  # tokens of those nodes
    unlocked: int = 0  # times the lock on a prompt's sliding window ended because the request's window had passed the prompt
    refused: int = 0  # times a request was asked to take its nodes and could not: they have children or another reader


COUNTS = Counts()


def one_window_reason_against() -> str | None:
    """Why a running request of this server may hold two sliding windows, or None if one can be assumed.

    Answered from the patch's state and SGLang's resolved arguments alone, so pools may be sized by it before there is
    a scheduler. Without a radix cache a request never holds more than one window, whatever the state of the patch.
    """
    from sglang.srt.runtime_context import get_memory

    if get_memory().disable_radix_cache:
        return None
    outcome = next((one for one in patching.report() if one.name == NAME), None)
    if outcome is None or outcome.state in ("off", "failed", "declined"):
        return f"{NAME} is {'not in this process' if outcome is None else f'{outcome.state} ({outcome.reason})'}"
    return reason_against_server()


def reason_against_server() -> str | None:
    """Why nodes of this server's tree cannot go back to running requests, by SGLang's resolved arguments; or None."""
    from sglang.srt.runtime_context import get_disagg, get_memory, get_parallel, get_serving

    memory, parallel = get_memory(), get_parallel()
    if get_disagg().disaggregation_mode != "null":
        return "prefill and decode are on servers of their own"
    tier = other_tier(memory)
    if tier is not None:
        return f"{tier}: a node that leaves the device's tree may have a copy elsewhere"
    if memory.radix_cache_backend:
        return f"--radix-cache-backend {memory.radix_cache_backend}: its tree is not SGLang's"
    if memory.enable_session_radix_cache:
        return "--enable-session-radix-cache: nodes belong to sessions"
    if get_serving().enable_streaming_session:
        return "--enable-streaming-session: a session's slot holds the lock of its turns"
    for what, size in (("pipeline", parallel.pp_size), ("context", parallel.attn_cp_size), ("decode context", parallel.attn_dcp_size)):
        if size > 1:
            return f"{what} parallel over {size} ranks"
    return None


@dataclass(frozen=True)
class Window:
    """What a running request of this server holds of the sliding pool, in tokens."""

    kept: int  # a window, in whole pages
    interval: int  # SGLang frees what lies behind a window in pieces of this many tokens
    most: int  # including what is not freed yet and what a step allocates ahead
    page: int


_windows: weakref.WeakKeyDictionary[Any, Window | None] = weakref.WeakKeyDictionary()


def window_of(cache: Any, config: Any) -> Window | None:
    """The :class:`Window` of this tree cache, or None if its requests are left to SGLang. The first call says why.

    Args:
        config: SGLang's ``ModelConfig``.
    """
    if cache not in _windows:
        _windows[cache] = _look_at(cache) if named_gemma4(config.hf_config) else None
    return _windows[cache]


def _look_at(cache: Any) -> Window | None:
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    from sglang_gemma4.memory import window_nodes

    if cache.disable:
        patching.idle(NAME, "--disable-radix-cache: a request never holds more than one window")
        return None
    reason = reason_against_server() or reason_against_cache(cache)
    if reason is not None:
        patching.decline(NAME, reason)
        return None
    kept, interval = window_nodes.kept(cache), max(1, envs.SGLANG_SWA_EVICTION_INTERVAL.get())
    speculative = get_spec().speculative_algorithm is not None
    ahead = int(max_speculative_num_draft_tokens() or 0) + get_alloc_reserve_per_decode() if speculative else 1
    return Window(kept, interval, kept + interval + ahead + cache.page_size, cache.page_size)


def reason_against_cache(cache: Any) -> str | None:
    """Why nodes of this tree cannot go back to running requests, judged by the tree's components; or None."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.unified_hybrid_swa import UnifiedSWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    allocator = cache.token_to_kv_pool_allocator
    if type(cache) is not UnifiedRadixCache:
        return f"the prefix cache is a {type(cache).__name__}"
    parts = set(cache.components)
    if parts != {ComponentType.FULL, ComponentType.SWA}:
        return f"the tree holds {', '.join(sorted(part.name for part in parts))}, not full and sliding tokens"
    if type(allocator) not in (SWATokenToKVPoolAllocator, UnifiedSWATokenToKVPoolAllocator) or allocator.swa_req_ring:
        return f"slots come from a {type(allocator).__name__}, not from a full and a sliding pool of tokens"
    if cache.linker is not None or cache.buffer_pipeline is not None or cache.enable_storage:
        return "the tree has a tier beside the device and the host"
    return None
