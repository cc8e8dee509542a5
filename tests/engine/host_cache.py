"""HiCache's host pools on a machine without CUDA: pageable memory, and its direct copies in torch. ``TEST_SABOTAGE`` names a function."""

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
