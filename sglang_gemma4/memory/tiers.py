"""Places for KV other than the device and HiCache's plain copy on the host."""

from typing import Any


def other_tier(memory: Any) -> str | None:
    """The flag that adds another place for KV, or None. HiCache's host memory behind two separate pools is not one.

    Args:
        memory: SGLang's resolved arguments of memory (``get_memory()``).
    """
    tiers = {
        "--hicache-storage-backend": memory.hicache_storage_backend,
        "--hicache-host-memory-mode buffer_only": memory.enable_hierarchical_cache and memory.hicache_host_memory_mode == "buffer_only",
        "--enable-unified-memory with --enable-hierarchical-cache": memory.enable_hierarchical_cache and memory.enable_unified_memory,
        "--enable-unified-cache-external-linker": memory.enable_unified_cache_external_linker,
        "--enable-lmcache": memory.enable_lmcache,
        "--enable-flexkv": memory.enable_flexkv,
        "--enable-hisparse": memory.enable_hisparse,
    }
    return next((flag for flag, given in tiers.items() if given), None)
