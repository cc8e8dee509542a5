"""HiCache's host pools on a machine without CUDA: pageable memory, and its direct copies in torch: ``host_cache:torch_copies``."""

import importlib
from collections.abc import Sequence
from typing import Any


def transfer_kv_direct(src_layers: Sequence[Any], dst_layers: Sequence[Any], src_indices: Any, dst_indices: Any, page_size: int) -> None:
    """What ``sgl_kernel.kvcacheio.transfer_kv_direct`` does: the same tokens of every layer, source to destination."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def torch_copies() -> None:
    """The two things that HiCache's pools need from CUDA; everything else is SGLang's own code.

    Nor do they leave 10 GiB of the machine's memory free, and refuse to start where others have it: the pools of tests have megabytes.
    """
    base: Any = importlib.import_module("sglang.srt.mem_cache.pool_host.base")
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    mha: Any = importlib.import_module("sglang.srt.mem_cache.pool_host.mha")
    original = mha.MHATokenToKVPoolHost.__init__

    def pageable(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "pin_memory": False})

    mha.MHATokenToKVPoolHost.__init__ = pageable
    mha.transfer_kv_direct = transfer_kv_direct


def all_comes_back() -> None:
    """Each time the cache is flushed, everything in it is evicted first, and ``LEFT`` and the tokens that each pool does not get back are
    in the log: SGLang's own checks do not count the host's pools."""
    cache: Any = importlib.import_module("sglang.srt.mem_cache.unified_radix_cache").UnifiedRadixCache
    evict: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache").EvictParams
    original = cache.reset

    def reset(self: Any) -> None:
        if self.cache_controller is not None and self.full_evictable_size() > 0:
            allocator, host = self.token_to_kv_pool_allocator, self.host_pool_group.entry_map
            self.writing_check(write_back=True)
            self.evict(evict(num_tokens=allocator.size_full, swa_num_tokens=allocator.size_swa))
            for kind in self.tree_components:
                self.evict_host(1 << 30, kind)
            left = {
                "full": allocator.size_full - allocator.full_available_size(),
                "sliding": allocator.size_swa - allocator.swa_available_size(),
                **{f"host {name.value}": entry.host_pool.size - entry.host_pool.available_size() for name, entry in host.items()},
            }
            print("LEFT", left, flush=True)
        original(self)

    cache.reset = reset
