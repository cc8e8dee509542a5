"""SGLang's pool configurator for hybrid models, with the sizes of ``swa_sizing``."""

import logging
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.model_executor.pool_configurator import HybridSWAPoolConfigurator, MemoryPoolConfig
from sglang.srt.runtime_context import get_disagg, get_memory, get_schedule, get_spec, max_speculative_num_draft_tokens

from sglang_gemma4.memory import bound, draft_cells, given, kv_layers, own_window, swa_sizing
from sglang_gemma4.patching import switches

logger = logging.getLogger(__name__)


class WindowAwarePoolConfigurator(HybridSWAPoolConfigurator):  # type: ignore[misc]
    """Sizes the sliding pool by running requests and idle sessions, and gives the full pool the rest."""

    def __init__(self, kvc: Any) -> None:
        super().__init__(kvc)
        draft_cells.price(self, kvc)
        self._demand, self._stock = demand(kvc), stock(self, kvc)
        limit = get_schedule().max_running_requests
        self._limit = None if limit is None else max(1, limit // kvc.attn_dp_size)
        self._sliding_tokens: int | None = None  # from the budget; a later limit on tokens may lower it, but not raise it

    def calculate_pool_sizes(self, available_bytes: int, page_size: int) -> MemoryPoolConfig:
        """Sizes of both pools from a budget in bytes."""
        full_cell = self._full_cell_bytes() + self._swa_per_token * self._draft_swa_full_layers_num + self._draft_cell_size
        length = given.request_tokens()
        what = self._demand, available_bytes, full_cell, self._swa_cell_bytes(), self._limit, self._stock
        sizes = swa_sizing.solve(*what, length)
        self._sliding_tokens = sizes.sliding
        bound.sized(bound.Sized(*what, sizes.full, sizes.sliding, length))
        logger.info("sglang-gemma4: %s", describe(self._demand, sizes, length))
        if sizes.chunks_cut:
            logger.warning(
                "sglang-gemma4: --chunked-prefill-size %d is more than half of the sliding pool; a prompt of that length may wait until a "
                "running request ends. Use a smaller chunk or a larger --mem-fraction-static",
                self._demand.chunk,
            )
        return self._make_pool_config(sizes.full, sizes.sliding)

    def calculate_pool_sizes_from_max_tokens(self, max_total_num_tokens: int, page_size: int) -> MemoryPoolConfig:
        """Sizes of both pools from a number of full tokens, which also limits the sliding pool."""
        full = max_total_num_tokens // page_size * page_size
        wanted = self._sliding_tokens or self._demand.sliding(self._limit or 1)
        sliding = min(-(-wanted // page_size) * page_size, full)
        self.validate_swa_pool_size(sliding, self._sliding_window_size, self._page_size)
        return self._make_pool_config(full, sliding)


def describe(demand: swa_sizing.Demand, sizes: swa_sizing.Sizes, length: int | None) -> str:
    """The log line about both pools; ``length`` is ``SGLANG_GEMMA4_REQUEST_TOKENS``, or None."""
    said = (
        f"pools by window: {sizes.full} full and {sizes.sliding} sliding tokens, for {sizes.running} running requests of up to "
        f"{demand.per_request} sliding tokens each and {sizes.idle} idle sessions, of {length or swa_sizing.REFERENCE} tokens"
    )
    if sizes.floored:
        said += f"; no fewer short requests than by SGLang's ratio, {switches.REQUEST_TOKENS} (a request's length) makes one pool larger"
    return said


def stock(sizes: Any, kvc: Any) -> swa_sizing.Stock:
    """Bytes per token as SGLang's own configurator counts them.

    It counts every decoder layer, including those that share KV, and the draft's layers as the target's.

    Args:
        sizes: a ``HybridSWAPoolConfigurator`` of this package, which has the bytes of one layer.
    """
    types = kvc.model_config.hf_text_config.layer_types
    sliding = sum(kind == "sliding_attention" for kind in types)
    draft_full, draft_sliding = kv_layers.uncharged
    return swa_sizing.Stock(
        sizes._full_per_token * (len(types) - sliding + sizes._draft_full_layers_num + draft_full)
        + sizes._swa_per_token * sizes._draft_swa_full_layers_num
        + sizes._draft_cell_size,
        sizes._swa_per_token * (sliding + sizes._draft_swa_layers_num + draft_sliding),
    )


def demand(kvc: Any) -> swa_sizing.Demand:
    """How many sliding tokens this server's requests need, from SGLang's resolved arguments."""
    schedule, speculative = get_schedule(), get_spec().speculative_algorithm is not None
    overlapped = not schedule.disable_overlap_schedule
    return swa_sizing.Demand(
        window=int(kvc.sliding_window_size),
        page=int(kvc.page_size),
        eviction_interval=max(1, envs.SGLANG_SWA_EVICTION_INTERVAL.get()),
        draft_tokens=int(max_speculative_num_draft_tokens() or 0) if speculative else 0,
        allocation=get_alloc_reserve_per_decode() if speculative else 1,
        chunk=max(0, int(schedule.chunked_prefill_size or 0)),
        chunks_in_flight=2 if overlapped else 1,
        windows=1 if own_window.one_window_reason_against() is None else 2,
        radix_cache=not get_memory().disable_radix_cache,
    )


def reason_against(kvc: Any) -> str | None:
    """Why this server's pools are left to SGLang, or None."""
    schedule = get_schedule()
    given = kvc.server_args.swa_full_tokens_ratio  # as typed; model overrides are stored separately
    if given is not None:
        return f"--swa-full-tokens-ratio {given:g} was given"
    if get_disagg().disaggregation_mode == "decode":
        return "a disaggregated decode server also holds requests in transfer"
    if get_memory().enable_unified_memory:
        return "--enable-unified-memory shares one pool"
    if envs.SGLANG_ENABLE_POST_CAPTURE_KV_SIZING.get():
        return "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING resizes both pools by their ratio after capture"
    if kvc.pp_size > 1:
        return "pipeline stages agree on full tokens only, and each would size its sliding pool by itself"
    if not schedule.chunked_prefill_size or schedule.chunked_prefill_size <= 0:
        return "prefill is not chunked, so a prompt may take any number of sliding tokens"
    if not kvc.layer_info.full_attention_layer_ids or kvc.sliding_window_size is None:
        return "the model has no full layers or no window here"
    return None
