"""What attention is about to read and write, as :class:`bounds.Table` s made from SGLang's batch, pools and attention backends.

:func:`source` gives SGLang's own request table and slot mapping, which every backend starts from, and the slots of
new keys; :func:`built` gives what a backend made of them for its kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_gemma4.diagnostics.bounds import Group, Table


@dataclass(frozen=True)
class Pools:
    """The buffers of a KV pool. ``sliding_slots`` equals ``full_slots`` if all layers share one buffer.

    ``mapping`` maps full slots to sliding slots, or is None if they are the same. Slots below ``page_size`` are padding.
    """

    page_size: int
    full_slots: int
    sliding_slots: int
    mapping: torch.Tensor | None
    full_layers: list[int]
    sliding_layers: list[int]

    @classmethod
    def of(cls, pool: Any) -> "Pools":
        """The pools of SGLang's ``SWAKVPool`` (two buffers) or of any other KV pool (one)."""
        mapping = getattr(pool, "full_to_swa_index_mapping", None)
        if mapping is None:
            slots = pool.size + pool.page_size
            return cls(pool.page_size, slots, slots, None, [], [])
        page_size, layers = pool.page_size, sorted(pool.layers_mapping)
        return cls(
            page_size=page_size,
            full_slots=pool.full_kv_pool.size + page_size,
            sliding_slots=pool.swa_kv_pool.size + page_size,
            mapping=mapping,
            full_layers=[layer for layer in layers if not pool.layers_mapping[layer][1]],
            sliding_layers=[layer for layer in layers if pool.layers_mapping[layer][1]],
        )


@dataclass(frozen=True)
class Forward:
    """One forward pass as attention sees it.

    Attributes:
        requests: [rows] row of each request in ``req_to_token``.
        key_lens: [rows] keys of each request, this pass's own included.
        query_lens: [rows] new tokens; 0 for a draft, which writes no keys.
        req_to_token: [requests, longest] slot of each position.
        slots: [tokens] slots that new keys are written to, or None if none are written.
        distance: how far behind a query its oldest key is on sliding layers (window - 1), or None without a window.
    """

    requests: torch.Tensor
    key_lens: torch.Tensor
    query_lens: torch.Tensor
    req_to_token: torch.Tensor
    slots: torch.Tensor | None
    distance: int | None

    @classmethod
    def of(cls, batch: Any, backend: Any, distance: int | None, draft: bool) -> "Forward":
        """The forward of SGLang's ``ForwardBatch``, or of the view of one that a graph runner hands to its backend."""
        rows = batch.batch_size
        requests, key_lens = batch.req_pool_indices[:rows], batch.seq_lens[:rows].long()
        mode = batch.forward_mode
        if draft:
            query_lens = torch.zeros_like(key_lens)
        elif mode.is_target_verify():
            width = getattr(batch.spec_info, "draft_token_num", None) or batch.input_ids.numel() // rows
            query_lens = torch.full_like(key_lens, width)
            key_lens = key_lens + width
        elif mode.is_decode():
            query_lens = torch.ones_like(key_lens)
        else:
            query_lens = batch.extend_seq_lens[:rows].long()
        slots = None if draft else getattr(batch, "out_cache_loc", None)
        return cls(requests, key_lens, query_lens, backend.req_to_token_pool.req_to_token, slots, distance)

    def oldest(self, key_lens: torch.Tensor) -> torch.Tensor:
        """[rows] position of the oldest key that sliding layers read, for requests of ``key_lens`` keys."""
        if self.distance is None:
            return torch.zeros_like(key_lens)
        return (key_lens - self.query_lens - self.distance).clamp(min=0)


def source(forward: Forward, pools: Pools) -> list[Table]:
    """Tables with the slots of every key in the request table, and the mapped slots of the keys in the window."""
    reads: dict[str, Any] = {"lengths": forward.key_lens, "by_request": True}
    found = [_slots("req_to_token", "full", forward.req_to_token, forward, pools, **reads)]
    if pools.mapping is not None:
        reads |= {"first": forward.oldest(forward.key_lens), "mapping": pools.mapping}
        found.append(_slots("full_to_swa_index_mapping[req_to_token]", "sliding", forward.req_to_token, forward, pools, **reads))
    if forward.slots is None:
        return found
    writes: dict[str, Any] = {"indptr": _offsets(forward)}
    found.append(_slots("out_cache_loc", "full", forward.slots, forward, pools, **writes))
    if pools.mapping is not None:
        writes["mapping"] = pools.mapping
        found.append(_slots("full_to_swa_index_mapping[out_cache_loc]", "sliding", forward.slots, forward, pools, **writes))
    return found


def _slots(name: str, group: Group, slots: torch.Tensor, forward: Forward, pools: Pools, **read: Any) -> Table:
    """A table of slots of the full or the sliding pool."""
    bound = pools.full_slots if group == "full" else pools.sliding_slots
    return Table(name, group, "slot", slots, forward.requests, pools.page_size, bound, **read)


def _offsets(forward: Forward) -> torch.Tensor:
    """[rows + 1] offsets in ``forward.slots`` at which each request's new tokens begin."""
    assert forward.slots is not None
    return torch.nn.functional.pad(forward.query_lens.cumsum(0), (1, 0)).clamp(max=forward.slots.numel())


def built(backend: Any, forward: Forward, pools: Pools, replay: bool) -> list[Table] | None:
    """The tables that ``backend`` built for its kernels; None for an unknown backend.

    With ``replay``, those that a captured graph reads: buffers at fixed addresses, already filled for this batch.
    """
    for kind in type(backend).__mro__:
        if kind.__name__ in READERS:
            return READERS[kind.__name__](backend, forward, pools, replay)
    return None


def _triton(backend: Any, forward: Forward, pools: Pools, replay: bool) -> list[Table]:
    rows = len(forward.requests)
    if replay:  # the metadata object belongs to another batch; a graph reads the buffers
        full, full_ptr = backend.cuda_graph_kv_indices, backend.kv_indptr
        sliding, sliding_ptr = getattr(backend, "cuda_graph_window_kv_indices", None), backend.window_kv_indptr
        slots = getattr(backend, "cuda_graph_swa_out_cache_loc", None)
    else:
        metadata = backend.forward_metadata
        full, full_ptr = metadata.kv_indices, metadata.kv_indptr
        sliding, sliding_ptr = metadata.window_kv_indices, metadata.window_kv_indptr
        slots = metadata.swa_out_cache_loc
    found = [_slots("kv_indices", "full", full, forward, pools, indptr=full_ptr[: rows + 1])]
    if sliding is not None and sliding_ptr is not None:
        found.append(_slots("window_kv_indices", "sliding", sliding, forward, pools, indptr=sliding_ptr[: rows + 1]))
    return found + _sliding_writes(forward, pools, slots)


def _paged(backend: Any, forward: Forward, pools: Pools, replay: bool) -> list[Table]:
    """Tables of trtllm_mha and FlashAttention: pages, cut by ``cache_seqlens_int32``; ``forward_metadata`` is set at replay too."""
    metadata, page = backend.forward_metadata, backend.page_size
    tokens = metadata.cache_seqlens_int32.long()
    pages = (tokens + page - 1) // page
    requests = forward.requests
    found = [Table("page_table", "full", "page", metadata.page_table, requests, 1, pools.full_slots // page, pages)]
    if pools.mapping is not None:
        # Without their own table, sliding layers read their buffer through the full one.
        own = metadata.swa_page_table is not None
        name, sliding = ("swa_page_table", metadata.swa_page_table) if own else ("page_table", metadata.page_table)
        oldest = forward.oldest(tokens) // page
        found.append(Table(name, "sliding", "page", sliding, requests, 1, pools.sliding_slots // page, pages, first=oldest))
    return found + _sliding_writes(forward, pools, metadata.swa_out_cache_loc)


def _sliding_writes(forward: Forward, pools: Pools, slots: torch.Tensor | None) -> list[Table]:
    if slots is None or forward.slots is None:
        return []
    return [_slots("swa_out_cache_loc", "sliding", slots, forward, pools, indptr=_offsets(forward))]


READERS: dict[str, Callable[[Any, Forward, Pools, bool], list[Table]]] = {
    "TritonAttnBackend": _triton,
    "TRTLLMHAAttnBackend": _paged,
    "FlashAttentionBackend": _paged,
    "Gemma4CpuAttention": lambda *_: [],  # reads the request table itself, which `source` covers
}
"""By the class name of a backend or of its base; importing the classes would import their kernels."""
