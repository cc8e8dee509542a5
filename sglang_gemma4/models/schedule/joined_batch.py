"""The ``ForwardBatch`` that the layers see in a mixed batch, and sizes of its attention metadata.

Nothing waits for the device: the host knows the lengths by which metadata are sized (:func:`window_buffers`).
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

BY_ROW = ("input_ids", "positions", "out_cache_loc")
_BY_REQUEST = (
    "req_pool_indices", "seq_lens", "seq_lens_sum", "seq_lens_cpu", "req_pool_indices_cpu", "orig_seq_lens", "extend_seq_lens",
    "extend_prefix_lens", "extend_start_loc", "extend_seq_lens_cpu", "extend_prefix_lens_cpu", "extend_logprob_start_lens_cpu",
    "kv_loc_plan", "kv_loc_cols", "sampling_info", "spec_info", "mm_inputs", "lora_ids", "rids", "next_token_logits_buffer",
    "global_num_token_non_padded", "num_token_non_padded", "out_cache_loc_virtual",
)  # fmt: skip
"""Fields that only the parts have: a layer that asks the mixed batch gets an error, not the values of one part.

Media are an exception.
"""


def joined(prefill: Any, running: Any, running_first: bool = False) -> Any:
    """The ``ForwardBatch`` that the layers see: rows of ``prefill``, then those of ``running``, or the other way round.

    Its mode is that of a prefill, so that no layer takes it for a decode step of few rows. Media need the rows of
    ``prefill`` first.

    In a unified pool each part is bound to its own plan, which has translated its slots: ``out_cache_loc`` are slots
    in the buffers of full layers. Slots in the buffers of sliding layers are in the metadata of each part's backend.
    """
    both = copy.copy(prefill)
    for name in BY_ROW:
        rows = [getattr(each, name) for each in ((running, prefill) if running_first else (prefill, running))]
        setattr(both, name, None if any(own is None for own in rows) else torch.cat(rows))
    for name in _BY_REQUEST:
        setattr(both, name, None)
    if prefill.mm_inputs is not None:  # embedded by request; requests without media are skipped
        both.mm_inputs = [*prefill.mm_inputs, *[None] * running.batch_size]
        both.extend_prefix_lens_cpu = [*prefill.extend_prefix_lens_cpu, *[0] * running.batch_size]
        each = running.input_ids.shape[0] // running.batch_size
        both.extend_seq_lens_cpu = [*prefill.extend_seq_lens_cpu, *[each] * running.batch_size]
    both.batch_size = prefill.batch_size + running.batch_size
    both.extend_num_tokens = both.global_num_token_non_padded_cpu = both.out_cache_loc.shape[0]
    both.forward_mode = ForwardMode.EXTEND
    both.out_cache_loc_is_physical = prefill.out_cache_loc_is_physical and running.out_cache_loc_is_physical
    both.return_logprob = False
    both.residual_stream = None
    return both


_lengths: ContextVar[Sequence[int] | None] = ContextVar("keys_before", default=None)


@contextmanager
def keys_before(batch: Any, held: Sequence[int] | None = None) -> Iterator[None]:
    """Inside, :func:`window_buffers` knows an upper bound on the keys that each request of ``batch`` has in the pool.

    Use it while the metadata of a ``ForwardBatch`` are prepared.

    Args:
        held: the numbers for a batch whose lengths are only on the device.
    """
    if batch.forward_mode == ForwardMode.EXTEND:
        lengths = batch.extend_prefix_lens_cpu
    else:
        lengths = held if batch.seq_lens_cpu is None else batch.seq_lens_cpu.tolist()
    token = _lengths.set(lengths)
    try:
        yield
    finally:
        _lengths.reset(token)


def window_buffers(
    original: Callable[..., Any],
    window_kv_indptr: torch.Tensor,
    translator: Any,
    plan: Any,
    req_pool_indices: torch.Tensor,
    sliding_window_size: int,
    *others: Any,
    **more: Any,
) -> Any:
    """Around triton's ``update_sliding_window_buffer``: size a mixed batch's indices by lengths on the host.

    SGLang reads the size from the device. The host would wait for all that it has launched, and the device for the
    layers' launches.
    """
    lengths = _lengths.get()
    if lengths is not None and len(others) < 5 and more.get("window_kv_indices") is None:
        size = sum(min(length, sliding_window_size) for length in lengths)
        more["window_kv_indices"] = torch.empty(size, dtype=torch.int64, device=window_kv_indptr.device)
    return original(window_kv_indptr, translator, plan, req_pool_indices, sliding_window_size, *others, **more)
