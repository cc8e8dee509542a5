"""Attention in a mixed batch, such as a chunk of a prompt and the verify rows of other requests.

Each part keeps its own batch, metadata and kernels. Everything except attention sees all rows at once.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc


class Part(NamedTuple):
    """Rows of one kind.

    ``rows`` of them follow each other in the forward; ``backend`` holds the metadata of ``batch``, a ``ForwardBatch`` of these rows alone.
    """

    rows: int
    batch: Any
    backend: Any


class TwoKinds:
    """Replaces the attention backend of a forward; pools and tables are those of the first part's backend.

    Args:
        parts: in the order of their rows. No request is in two of them, so no part reads a slot that another one
            writes.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)

    def __getattr__(self, name: str) -> Any:
        if name == "parts":  # asked for before __init__, by copy
            raise AttributeError(name)
        return getattr(self.parts[0].backend, name)

    @cached_property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    @cached_property
    def sliding_slots(self) -> torch.Tensor | None:
        """``[rows]``: where the rows' keys go in the buffers of sliding layers, on triton; None if these have no slots of their own."""
        slots = [part.backend.forward_metadata.swa_out_cache_loc for part in self.parts]
        return None if any(own is None for own in slots) else torch.cat(slots)

    def split(self, rows: torch.Tensor | None) -> list[torch.Tensor | None]:
        """The rows of each part, as views; None for each part of None.

        Raises:
            ValueError: the tensor has another number of rows than the parts together.
        """
        if rows is None:
            return [None] * len(self.parts)
        counts = [part.rows for part in self.parts]
        if rows.shape[0] != sum(counts):
            raise ValueError(f"a forward of {' + '.join(map(str, counts))} rows got a tensor of {rows.shape[0]}")
        return list(rows.split(counts))

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """``[rows, heads * value dim]``, in ``forward_batch``'s output buffer if it has one; the arguments are those of
        ``AttentionBackend.forward``."""
        given = getattr(forward_batch, "_attn_output", None)
        out = q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim) if given is None else given
        if save_kv_cache and k is not None and self._write_at_once(layer, forward_batch, k, v):
            save_kv_cache = False
        counts, nothing = [part.rows for part in self.parts], [None] * len(self.parts)
        own = (nothing if rows is None else torch.split_with_sizes(rows, counts) for rows in (q, k, v, out))
        parts = zip(self.parts, *own, strict=True)
        for part, own_q, own_k, own_v, own_out in parts:
            part.batch._attn_output = own_out  # a backend that knows it writes there
            try:
                found = part.backend.forward(own_q, own_k, own_v, layer, part.batch, save_kv_cache)
            finally:
                part.batch._attn_output = None
            if found.data_ptr() != own_out.data_ptr():
                own_out.view(found.shape).copy_(found)
        return out

    def _write_at_once(self, layer: Any, forward_batch: Any, k: torch.Tensor, v: torch.Tensor) -> bool:
        """Write keys and values of all parts at once, if triton's backends can as for one batch; returns whether they
        were written."""
        first = self.parts[0].backend
        if not self._alike or layer.k_scale is not None or layer.v_scale is not None:
            return False
        where = KVWriteLoc.for_batch(forward_batch, swa_loc=self.sliding_slots)
        first._set_kv_buffer(forward_batch, layer, where, k, v)
        return True

    @cached_property
    def _alike(self) -> bool:
        """Whether all parts write keys and values as triton's backends do, into the same pool, and none overrides
        how."""
        backends = [part.backend for part in self.parts]
        if not all(isinstance(each, TritonAttnBackend) for each in backends):
            return False
        own = (type(each)._set_kv_buffer is not TritonAttnBackend._set_kv_buffer or "_set_kv_buffer" in vars(each) for each in backends)
        return not any(own) and not any(each.dcp_size > 1 for each in backends)
