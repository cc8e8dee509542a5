"""Refuses a ``--max-total-tokens`` pool that cannot hold one request, by SGLang's resolved arguments, before weights are loaded.

Pools sized from the memory left after the weights are checked in ``memory/pool_checks.py``. Neither torch nor sglang
is imported.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_gemma4.memory.pool_checks import PoolTooSmallError, check_sliding
from sglang_gemma4.memory.swa_sizing import STOCK_RATIO, Demand

FIELDS = (
    "page_size",
    "chunked_prefill_size",
    "swa_full_tokens_ratio",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "enable_hierarchical_cache",
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "enable_unified_memory",
    "pp_size",
    "max_running_requests",
)
"""The resolved arguments that :func:`problems` reads."""


def problems(
    tokens: int | None, ratio_asked: float | None, resolved: Mapping[str, Any], window: int, context: int, *, interval: int, sized: bool
) -> Iterator[str]:
    """Why the sliding pool could not hold one request, one line each.

    Args:
        tokens: ``--max-total-tokens`` as typed, or None if memory decides.
        ratio_asked: ``--swa-full-tokens-ratio`` as typed, or None.
        resolved: :data:`FIELDS`.
        window: keys of a sliding layer, the query's own included.
        context: tokens of the longest request.
        interval: tokens between two evictions behind the window (SGLANG_SWA_EVICTION_INTERVAL).
        sized: the patch swa_sizing is on.
    """
    if tokens is None or resolved.get("enable_unified_memory"):
        return
    if resolved.get("disable_radix_cache") and resolved.get("max_running_requests"):
        return  # SWARequestCapPoolConfigurator sizes by windows and ignores the ratio
    page, chunk = int(resolved.get("page_size") or 1), int(resolved.get("chunked_prefill_size") or 0)
    full = tokens // page * page
    by_window = sized and ratio_asked is None and chunk > 0 and (resolved.get("pp_size") or 1) == 1
    ratio = 1.0 if by_window else ratio_asked or resolved.get("swa_full_tokens_ratio") or STOCK_RATIO
    sliding = int(full * ratio) // page * page
    if sliding < window + page:  # pool_configurator.py:208 counts the window without the query
        yield (
            f"--max-total-tokens {tokens} leaves the sliding layers {sliding} tokens, and one request needs {window + page}, a window and "
            "a page; give more, or leave the flag out"
        )
    demand = _demand(resolved, window - 1, page, max(chunk, 0), interval)
    try:
        check_sliding(sliding, full, demand.per_request if chunk > 0 else max(demand.per_request, context), ratio_asked)
    except PoolTooSmallError as error:
        yield str(error)


def _demand(resolved: Mapping[str, Any], window: int, page: int, chunk: int, interval: int) -> Demand:
    """Like ``pool_configurator.demand``, but with one window where only the scheduler knows whether two are held."""
    drafted = int(resolved.get("speculative_num_draft_tokens") or 0) if resolved.get("speculative_algorithm") else 0
    radix = not resolved.get("disable_radix_cache")
    return Demand(
        window=window,
        page=page,
        eviction_interval=max(1, interval),
        draft_tokens=drafted,
        allocation=2 * drafted or 1,
        chunk=chunk,
        chunks_in_flight=1 if resolved.get("disable_overlap_schedule") else 2,
        windows=2 if radix and (resolved.get("enable_hierarchical_cache") or (resolved.get("pp_size") or 1) > 1) else 1,
        radix_cache=radix,
    )
