"""Data-parallel attention: each attention group attends to requests of its own, the FFNs are split over all ranks.

SGLang's Gemma 4 splits heads over all ranks (gemma4_causal.py:323), while the KV pools and the layer boundaries know attention groups: a
layer's FFN gets the tokens of all groups, gathered, and its exit takes this group's back. Gemma 4's FFN writes the residual stream itself,
so it needs the residual and the per-layer embeddings of the same tokens.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.dp_attention import dp_gather_replicate, get_global_dp_buffer_len
from sglang.srt.runtime_context import get_parallel

GROUP = "attn_tp"


@contextmanager
def split_by_attention_group(module: Any) -> Iterator[None]:
    """Within it, what ``module`` builds has its heads split over the attention group. For the time of one constructor, in one thread."""
    kept = {name: getattr(module, name) for name in ("get_parallel", "QKVParallelLinear", "RowParallelLinear")}
    parallel = SimpleNamespace(tp_size=get_parallel().attn_tp_size)
    module.get_parallel = lambda: parallel
    for name in ("QKVParallelLinear", "RowParallelLinear"):
        setattr(module, name, functools.partial(kept[name], parallel_group=GROUP))
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


def build_attention(original: Callable[..., None], attention: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``Gemma4Attention.__init__``."""
    if get_parallel().attn_dp_size == 1:
        return original(attention, *args, **kwargs)
    with split_by_attention_group(importlib.import_module("sglang.srt.models.gemma4_causal")):
        return original(attention, *args, **kwargs)


def attend(original: Callable[..., Any], attention: Any, positions: Any, hidden_states: Any, forward_batch: Any, **kwargs: Any) -> Any:
    """Around ``Gemma4Attention.forward``: a group without requests has no rows, and attends to nothing."""
    if hidden_states.shape[0] == 0:
        return hidden_states
    return original(attention, positions, hidden_states, forward_batch, **kwargs)


def gathered(rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
    """The rows of all attention groups, as a layer boundary gathers them: ``[tokens of all groups, width]`` from ``[tokens, width]``."""
    out = torch.empty((get_global_dp_buffer_len(), rows.shape[1]), dtype=rows.dtype, device=rows.device)
    # SGLang sums over a group of several ranks in place (_dp_gather_via_all_gather), and the residual is read again.
    dp_gather_replicate(out, rows.clone() if get_parallel().attn_tp_size > 1 else rows.contiguous(), forward_batch)
    return out


def next_stream(
    original: Callable[..., Any], layer: Any, hidden_states: Any, residual: Any, per_layer_input: Any, forward_batch: Any
) -> Any:
    """Around ``Gemma4DecoderLayer._next_stream``, whose ``hidden_states`` are those of all attention groups."""
    if get_parallel().attn_dp_size > 1:
        residual = gathered(residual, forward_batch)
        per_layer_input = None if per_layer_input is None else gathered(per_layer_input, forward_batch)
    return original(layer, hidden_states, residual, per_layer_input, forward_batch)
