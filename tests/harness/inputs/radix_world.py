"""SGLang's own radix tree, allocator and requests with a window of 16 tokens, and the sums that must hold between them."""

from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

WINDOW = 16
SWA = ComponentType.SWA
GEMMA = SimpleNamespace(hf_config=SimpleNamespace(architectures=["Gemma4ForCausalLM"]))


class World:
    """A tree with its pools and the requests that run.

    Args:
        core: "rust" or "python".
        bigrams: keys are pairs of tokens, as under speculation.
    """

    def __init__(self, core: str = "rust", page: int = 1, bigrams: bool = False, full: int = 512, sliding: int = 256) -> None:
        kv = SWAKVPool(
            size=full,
            size_swa=sliding,
            page_size=page,
            dtype=torch.float32,
            head_num=1,
            head_dim=4,
            swa_attention_layer_ids=[0],
            full_attention_layer_ids=[1],
            device="cpu",
        )
        self.allocator = SWATokenToKVPoolAllocator(full, sliding, page, torch.float32, "cpu", kv, False)
        self.rows = ReqToTokenPool(16, 512, "cpu", False)
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=page,
                is_eagle=bigrams,
                sliding_window_size=WINDOW,
                tree_components=(ComponentType.FULL, SWA),
                tree_core_backend=core,
            )
        )
        self.page, self.full, self.sliding = page, full, sliding
        self.running: list[Any] = []

    def prefill(
        self,
        prompt: Sequence[int],
        *chunks: int,
        extra_key: str | None = None,
        answer: int = 30,
        chunk: int = 0,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """A request whose prompt is prefilled in ``chunks`` of so many tokens (one, if none is given), after what the tree has of it.

        ``chunk``: chunks of this size instead. ``meanwhile`` is called when the request has found that, and has no slots of its own yet.
        """
        req: Any = Req(f"request-{len(self.running)}", "", array("q", prompt), SamplingParams(max_new_tokens=answer), extra_key=extra_key)
        req.kv.req_pool_idx = next(row for row in range(1, 16) if all(one.kv.req_pool_idx != row for one in self.running))
        req.refresh_fill_ids()
        self.running.append(req)
        match = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", prompt[:-1]), extra_key)))
        hit, req.swa_branching_seqlen = match.device_prefix_len, match.swa_branching_seqlen
        req.lock, req.last_node = self.cache.lock(match.last_device_node), match.last_device_node
        req.kv.cache_protected_len = req.kv.kv_allocated_len = req.kv.kv_committed_len = hit
        if hit:
            slots = self.cache.path_device_indices(match.last_device_node)[:hit]
            self.rows.write((req.kv.req_pool_idx, slice(0, hit)), slots.to(torch.int32))
        meanwhile()
        left = len(prompt) - hit
        chunks = tuple(min(chunk, left - start) for start in range(0, left, chunk)) if chunk else chunks
        for tokens in chunks or (left,):
            self._write(req, tokens)
            req.extend_end = req.kv.kv_committed_len
            checkpoint_kv_cache(req, self.cache)
        assert req.kv.kv_committed_len == len(prompt)
        req.output_ids.append(500)
        return req

    def decode(self, req: Any, tokens: int, interval: int = 1) -> None:
        """So many decode steps, as SGLang prepares them with an eviction ``interval``."""
        for _ in range(tokens):
            self.cache.evict_sliding_windows(req, req.seqlen - 1, eviction_interval=interval)
            self._write(req, 1)
            req.output_ids.append(501 + len(req.output_ids))
            req.decode_batch_idx += 1

    def _write(self, req: Any, tokens: int) -> None:
        start, end = req.kv.kv_committed_len, req.kv.kv_committed_len + tokens
        missing = end - req.kv.kv_allocated_len
        if missing > 0:
            pages = -(-missing // self.page) * self.page
            if self.page == 1:
                slots = self.allocator.alloc(pages)
            else:
                slots, sliding = (pool.alloc(pages) for pool in (self.allocator.full_attn_allocator, self.allocator.swa_attn_allocator))
                self.allocator.set_full_to_swa_mapping(slots, sliding)
            at = req.kv.kv_allocated_len
            self.rows.write((req.kv.req_pool_idx, slice(at, at + pages)), slots.to(torch.int32))
            req.kv.kv_allocated_len += pages
        assert start < end
        req.kv.kv_committed_len = end

    def end(self, req: Any, publish: bool = True) -> None:
        """The request ends; without ``publish`` it is retracted or aborted."""
        self.running.remove(req)
        if publish:
            req.finished_reason = SimpleNamespace()
            req.refresh_fill_ids()
            self.cache.checkpoint_into_tree(req, up_to=req.kv.kv_committed_len)
        self.cache.free_kv_row(req.kv, [(req.kv.cache_protected_len, req.kv.kv_allocated_len)])
        self.cache.unlock(req.lock)
        req.lock = None
        self.sums()

    def hit(self, *tokens: Sequence[int], extra_key: str | None = None) -> int:
        """Tokens that a request with this prompt would find."""
        key = RadixKey(array("q", [*(token for part in tokens for token in part), 7]), extra_key)
        return int(self.cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len)

    def taken(self) -> int:
        """Sliding tokens that no other request could have: neither free nor evictable."""
        return int(self.sliding - self.allocator.swa_available_size() - self.cache.swa_evictable_size())

    def sums(self) -> None:
        """Every slot of both pools is free, evictable, locked, or a running request's own."""
        cache, allocator = self.cache, self.allocator
        own_full = own_sliding = 0
        for req in self.running:
            own = req.kv.kv_allocated_len - req.kv.cache_protected_len
            own_full += own
            own_sliding += own - max(0, req.kv.get_evicted_seqlen(SWA) - req.kv.swa_dead_lo(self.page))
        full = (allocator.full_available_size(), cache.full_evictable_size(), cache.full_protected_size(), own_full)
        sliding = (allocator.swa_available_size(), cache.swa_evictable_size(), cache.swa_protected_size(), own_sliding)
        assert sum(full) == self.full, full
        assert sum(sliding) == self.sliding, sliding
        cache.sanity_check()

    def reads(self, req: Any) -> bool:
        """Whether every sliding slot of the request's window has its own place, and no other running request uses the
        same one unless through the tree."""
        begin = max(0, req.seqlen - 1 - WINDOW)
        slots = self.rows.req_to_token[req.kv.req_pool_idx, begin : req.kv.kv_committed_len]
        places = self.allocator.full_to_swa_index_mapping[slots.long()]
        return bool((places > 0).all()) and places.unique().numel() == places.numel()

    def empties(self) -> None:
        """Nothing runs; all that is left can be evicted."""
        assert not self.running
        self.cache.evict(EvictParams(num_tokens=self.full, swa_num_tokens=self.sliding))
        self.sums()
        assert self.allocator.full_available_size() == self.full
        assert self.allocator.swa_available_size() == self.sliding

    def occupy(self, left: int = 0) -> Callable[[], None]:
        """Take all sliding slots but ``left``, evictable ones included, until the returned function is called."""
        self.forget_windows()
        pool = self.allocator.swa_attn_allocator
        slots = pool.alloc(pool.available_size() - left)
        return lambda: pool.free(slots)

    def forget_windows(self) -> None:
        """Drop the tree's evictable sliding slots, and with them its unlocked leaves."""
        self.cache.evict(EvictParams(num_tokens=0, swa_num_tokens=self.cache.swa_evictable_size()))

    def batch(self) -> Any:
        """The running requests as SGLang's batch of a decode step."""
        return ScheduleBatch(
            reqs=list(self.running),
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.cache,
            model_config=GEMMA,
            forward_mode=ForwardMode.DECODE,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )
