"""Whether and where the launch that norms and rotates a layer's keys and values may write them into SGLang's KV pool.

It follows ``TritonAttnBackend._set_kv_buffer`` and the pools' ``set_kv_buffer``: full layers write at the batch's
``out_cache_loc``, sliding ones at the locations that the backend's metadata holds for their own buffer. In graphs
these tensors have fixed addresses, and SGLANG_GEMMA4_DEBUG checks them before each forward. Anything else that those
functions can do (scales, other formats and layouts, keys split over ranks) is left to them.
"""

from typing import Any, NamedTuple

import torch
from sglang.srt.layers.attention.graph_utils import padded_extend_real_tokens
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_memory_pool import UnifiedMHATokenToKVPool, UnifiedSWAKVPool
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import is_in_breakable_cuda_graph
from sglang.srt.model_executor.runner_utils.prefill_graph import is_in_prefill_graph_scope
from sglang.srt.runtime_context import get_parallel

from sglang_gemma4.attention.quantised import READERS
from sglang_gemma4.attention.quantised_pool import PerTokenHeadPool, has_scales
from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend
from sglang_gemma4.attention.two_kinds import TwoKinds

_wanted = False


class Destination(NamedTuple):
    """Where one layer's keys and values go: ``[slots, KV heads, dim]`` buffers, and the slot of each token."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    slots: torch.Tensor


class QuantisedDestination(NamedTuple):
    """:class:`Destination` for a launch that also quantises, with ``[slots, KV heads]`` for the scales."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    slots: torch.Tensor
    k_scales: torch.Tensor
    v_scales: torch.Tensor


def want(wanted: bool) -> None:
    """Enable or disable writes of keys and values by this process's layers, where they can write them."""
    global _wanted
    _wanted = wanted


def is_wanted() -> bool:
    """Whether :func:`want` has enabled these writes."""
    return _wanted


def destination(attention: Any, hidden_states: torch.Tensor, forward_batch: Any) -> Destination | QuantisedDestination | str | None:
    """Where a ``Gemma4Attention`` that owns KV writes it; why SGLang has to write it; or None if this is off.

    Args:
        hidden_states: ``[tokens, hidden]``, what it computes queries, keys and values from.
    """
    if not _wanted or forward_batch.forward_mode.is_idle():  # an idle rank's attention returns before it writes
        return None
    problem = reason_against_batch(hidden_states, forward_batch)
    if problem is not None:
        return problem
    backend, layer = get_attn_backend(), attention.attn
    kinds = backend if isinstance(backend, TwoKinds) else None
    for each in [backend] if kinds is None else [part.backend for part in kinds.parts]:
        problem = reason_against_backend(each, layer)
        if problem is not None:
            return problem
    pool, number, sliding = backend.token_to_kv_pool, layer.layer_id, False
    part = pool
    if type(pool) in (SWAKVPool, UnifiedSWAKVPool):
        number, sliding = pool.layers_mapping[number]
        part = pool.swa_kv_pool if sliding else pool.full_kv_pool
    problem = hooked(pool) or reason_against_pool(part, hidden_states.dtype, forward_batch.out_cache_loc_is_physical)
    if problem is not None:
        return problem
    swa_loc = backend.forward_metadata.swa_out_cache_loc if kinds is None else kinds.sliding_slots
    where = KVWriteLoc.for_batch(forward_batch, swa_loc=swa_loc)
    slots = where.swa_loc if sliding else where.loc
    if slots is None or slots.shape != hidden_states.shape[:1] or not slots.is_contiguous():
        return f"there is not one location in order for each token of a {'sliding' if sliding else 'full'} layer"
    place = number - part.start_layer
    # Not get_kv_buffer: that waits for keys on their way from the host, which only a reader needs.
    if isinstance(part, PerTokenHeadPool):
        return QuantisedDestination(part._get_key_buffer(number), part._get_value_buffer(number), slots, *part.get_kv_scale_buffer(number))
    return Destination(part.k_buffer[place], part.v_buffer[place], slots)


def reason_against_batch(hidden_states: torch.Tensor, forward_batch: Any) -> str | None:
    """Why SGLang's attention must write this batch's keys and values, or None."""
    if is_in_prefill_graph_scope() or is_in_breakable_cuda_graph():
        # At a replay, attention runs eagerly between the graph's pieces and gets another batch than at capture.
        return "the prefill is captured in a graph, outside of which attention writes the rows of each batch"
    if padded_extend_real_tokens(hidden_states, forward_batch) is not None:
        return "the prefill is padded, and attention writes the real tokens alone"
    return None


def reason_against_backend(backend: Any, layer: Any) -> str | None:
    """Why this attention backend must write this ``RadixAttention``'s keys and values, or None."""
    if type(backend) not in (TritonAttnBackend, Gemma4TritonAttnBackend, *READERS.values()):
        return f"attention is {type(backend).__name__}, not triton's"
    parallel = get_parallel()
    if backend.dcp_size > 1 or parallel.attn_cp_size > 1:
        return f"keys are split over ranks (context parallel {parallel.attn_cp_size}, in decode {backend.dcp_size})"
    if (layer.k_scale is not None or layer.v_scale is not None) and not has_scales(backend.token_to_kv_pool):
        return "keys and values are scaled in the cache"
    if layer.is_cross_attention:
        return "keys and values are an encoder's"
    return hooked(backend)


def reason_against_pool(pool: Any, dtype: torch.dtype, physical: bool = True) -> str | None:
    """Why a pool must write keys and values of ``dtype`` itself, or None.

    Args:
        physical: whether the batch's locations are physical slots of the pool, not the virtual ones of its requests.
    """
    if type(pool) not in (MHATokenToKVPool, UnifiedMHATokenToKVPool, PerTokenHeadPool):
        return f"the KV pool is a {type(pool).__name__}"
    if type(pool) is not PerTokenHeadPool and (pool.is_quantized_kv_cache or pool.dtype != dtype or pool.store_dtype != dtype):
        return f"the KV cache is {pool.dtype} stored as {pool.store_dtype}, the model {dtype}"
    layout = "page_major" if type(pool) is UnifiedMHATokenToKVPool else "nhd"  # both are rows of heads, the former with longer strides
    if pool.use_hnd or pool.kv_cache_layout != layout:
        return f"the KV cache's layout is {'hnd' if pool.use_hnd else pool.kv_cache_layout}"
    if pool.requires_physical_write_loc and not physical:
        return "the KV pool takes physical locations only"
    return hooked(pool)


def hooked(holder: Any) -> str | None:
    """Why a pool or backend writes in another way than its class, which our launch would bypass; or None."""
    for name in ("_set_kv_buffer", "set_kv_buffer", "_store_kv_layer"):
        if name in vars(holder):
            return f"{name} of the {type(holder).__name__} is hooked"
    return None
