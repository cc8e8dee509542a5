"""SGLang's KV pool with int8 or fp8 elements and a float32 scale for each token and head; both halves of a hybrid pool are such a pool.

Scales lie in tensors of their own, ``[slots, KV heads]``, under the names that SGLang's own pools with scales give them: ``move_kv_cache``
and the size in bytes already count them. They are allocated once and zeroed, so every slot is a valid one from the start.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, unwrap_write_loc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.platforms import current_platform

from sglang_gemma4.kernels.kv_cache.formats import BY_STORED
from sglang_gemma4.kernels.kv_cache.store import store, store_reference


class Cache(NamedTuple):
    """One layer's keys and values as kernels take them; ``k_scales`` and ``v_scales`` are None if the cache has no
    scales per slot."""

    k: torch.Tensor
    v: torch.Tensor
    k_scales: torch.Tensor | None
    v_scales: torch.Tensor | None


class PerTokenHeadPool(MHATokenToKVPool):  # type: ignore[misc]
    """``MHATokenToKVPool`` in a format of :mod:`kernels.kv_cache.formats`, chosen by the stored ``dtype``."""

    k_scale_buffer: list[torch.Tensor]
    v_scale_buffer: list[torch.Tensor]

    def _create_buffers(self) -> None:
        if self.dtype not in BY_STORED:
            raise ValueError(
                f"a KV cache of {self.dtype} has no scale by token and head; one of {', '.join(map(str, BY_STORED))} is supported"
            )
        if self.kv_cache_layout != "nhd" or self.use_hnd or self.post_capture_active or self.is_quantized_kv_cache:
            raise ValueError(
                f"a KV cache with scales by token and head is laid out by slot (nhd) and sized before graphs are captured, not "
                f"{'hnd' if self.use_hnd else self.kv_cache_layout}{', sized after' if self.post_capture_active else ''}"
            )
        super()._create_buffers()

    def _create_buffers_normal(self) -> None:
        super()._create_buffers_normal()
        custom = torch.cuda.use_mem_pool(self.custom_mem_pool) if self.enable_custom_mem_pool else nullcontext()
        with self.memory_saver_adapter.region(GPU_MEMORY_TYPE_KV_CACHE), custom:
            self.k_scale_buffer, self.v_scale_buffer = (
                [torch.zeros((self.size + self.page_size, self.head_num), dtype=torch.float32, device=self.device) for _ in made]
                for made in (self.k_buffer, self.v_buffer)
            )

    def get_kv_scale_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V scales, each ``[slots, KV heads]`` float32; ``SWAKVPool`` calls its halves by this name."""
        return self.k_scale_buffer[layer_id - self.start_layer], self.v_scale_buffer[layer_id - self.start_layer]

    def _get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.k_buffer[layer_id - self.start_layer].view(BY_STORED[self.dtype].dtype)

    def _get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.v_buffer[layer_id - self.start_layer].view(BY_STORED[self.dtype].dtype)

    def set_kv_buffer(
        self,
        layer: Any,
        loc_info: Any,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        k_scale: Any = None,
        v_scale: Any = None,
        layer_id_override: int | None = None,
        dcp_kv_mask: torch.Tensor | None = None,
    ) -> None:
        """Quantise and write. A checkpoint's per-tensor scales are not used."""
        if dcp_kv_mask is not None:
            raise NotImplementedError("a KV cache with scales by token and head is not split over ranks by token")
        loc, _, _ = unwrap_write_loc(loc_info)
        self._check_physical_write_loc(loc_info, "set_kv_buffer (per token and head)")
        number = layer.layer_id if layer_id_override is None else layer_id_override
        k_scales, v_scales = self.get_kv_scale_buffer(number)
        write = store if cache_k.is_cuda else store_reference
        write(
            cache_k.view(-1, self.head_num, self.head_dim), cache_v.view(-1, self.head_num, self.v_head_dim),
            self._get_key_buffer(number), self._get_value_buffer(number), k_scales, v_scales, loc,
        )  # fmt: skip

    def get_contiguous_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """Address, bytes, and bytes of a page of each buffer: K, its scales, V, its scales.

        A disaggregated server sends the buffers named here page by page, K in the first half and V in the second.
        Scales are buffers like the others, so they travel with their heads: in the same chunks, behind the same
        prefix, within the same window.
        """
        elements = super().get_contiguous_buf_infos()
        scales = [*self.k_scale_buffer, *self.v_scale_buffer]
        beside = (
            [each.data_ptr() for each in scales],
            [each.nbytes for each in scales],
            [each[: self.page_size].nbytes for each in scales],
        )
        count = self.layer_num
        halves = [slice(0, count), slice(count, 2 * count)]
        found = [
            [value for half in halves for value in (*ours[half], *theirs[half])] for ours, theirs in zip(elements, beside, strict=True)
        ]
        return found[0], found[1], found[2]

    def get_cpu_copy(self, indices: Any, mamba_indices: Any = None, req_pool_index: Any = None) -> Any:
        """As the base class, with the scales behind keys and values in each chunk."""
        copies = super().get_cpu_copy(indices, mamba_indices, req_pool_index)
        for chunks, *scales in zip(copies, self.k_scale_buffer, self.v_scale_buffer, strict=True):
            for number, chunk in enumerate(chunks):
                chunk += [each[self._chunk(indices, number)].to("cpu", non_blocking=True) for each in scales]
        current_platform.synchronize()
        return copies

    def load_cpu_copy(self, kv_cache_cpu: Any, indices: Any, mamba_indices: Any = None, req_pool_index: Any = None) -> None:
        """Write what :meth:`get_cpu_copy` made into other slots."""
        super().load_cpu_copy(kv_cache_cpu, indices, mamba_indices, req_pool_index)
        for chunks, *scales in zip(kv_cache_cpu, self.k_scale_buffer, self.v_scale_buffer, strict=True):
            for number, chunk in enumerate(chunks):
                for buffer, copy in zip(scales, chunk[2:], strict=True):
                    buffer[self._chunk(indices, number)] = copy.to(buffer.device, non_blocking=True)
        current_platform.synchronize()

    def _chunk(self, indices: Any, number: int) -> Any:
        return indices[number * self.cpu_offloading_chunk_size : (number + 1) * self.cpu_offloading_chunk_size]

    def set_kv_buffer_prefix_valid(self, *_args: Any, **_kwargs: Any) -> None:
        """Refused: SGLang's kernel for it does not support scales."""
        raise NotImplementedError("a KV cache with scales by token and head takes no prefix-valid writes (DFLASH)")


def has_scales(pool: Any) -> bool:
    """Whether a pool, or both halves of a hybrid one, keeps a scale for each token and head."""
    return isinstance(pool.full_kv_pool if isinstance(pool, SWAKVPool) else pool, PerTokenHeadPool)


def zero_scales(pool: Any) -> None:
    """Reset every slot of a pool, or of both halves of a hybrid one, to zeros, as at the start; does nothing if it
    keeps no scales."""
    for half in (pool.full_kv_pool, pool.swa_kv_pool) if isinstance(pool, SWAKVPool) else (pool,):
        if isinstance(half, PerTokenHeadPool):
            for scales in (*half.k_scale_buffer, *half.v_scale_buffer):
                scales.zero_()


def cache_of(pool: Any, layer_id: int) -> Cache:
    """A layer's part of a pool; on a pool with tiers on the host this waits for the layer, as SGLang's backends do."""
    k, v = pool.get_kv_buffer(layer_id)
    scales = pool.get_kv_scale_buffer(layer_id) if has_scales(pool) else (None, None)
    return Cache(k, v, *scales)
