"""Data-parallel attention: each attention group has its own requests, and the FFNs are split over all ranks.

SGLang's Gemma 4 splits heads over all ranks (gemma4_causal.py:323), but the KV pools and the layer boundaries use
attention groups. A layer's FFN gets the gathered tokens of all groups, and its exit returns this group's. Gemma 4's FFN
writes the residual stream itself, so it needs the residual and the per-layer embeddings of the same tokens.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.dp_attention import dp_gather_replicate, get_global_dp_buffer_len
from sglang.srt.runtime_context import get_parallel

LINEAR: dict[str, dict[str, Any]] = {
    "QKVParallelLinear": {},
    "ColumnParallelLinear": {},
    "MergedColumnParallelLinear": {},
    "RowParallelLinear": {"use_dp_attention_reduce": True},
}
"""SGLang's linear layers that are split over ranks, with the arguments that sum them over the attention group."""
MODELS = "sglang.srt.models"
TOWERS = ("sglang.srt.layers.clippable_linear", f"{MODELS}.gemma4_audio")
"""The modules in which the towers look up their linear layers."""


@contextmanager
def split_by_attention_group(*modules: str) -> Iterator[None]:
    """Inside, linear layers that these modules build are split over the attention group.

    Use it for one constructor, in one thread.
    """
    with ExitStack() as names:
        for module in map(importlib.import_module, modules):
            for name in filter(module.__dict__.__contains__, LINEAR):
                narrow = functools.partial(getattr(module, name), parallel_group="attn_tp", **LINEAR[name])
                names.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, narrow)
        yield


def build_attention(original: Callable[..., None], attention: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``Gemma4Attention.__init__``, which divides heads by the ranks of the whole model."""
    if get_parallel().attn_dp_size == 1:
        return original(attention, *args, **kwargs)
    module: Any = importlib.import_module(f"{MODELS}.gemma4_causal")
    parallel, given = SimpleNamespace(tp_size=get_parallel().attn_tp_size), module.get_parallel
    with split_by_attention_group(module.__name__):
        module.get_parallel = lambda: parallel
        try:
            return original(attention, *args, **kwargs)
        finally:
            module.get_parallel = given


def build_tower(original: Callable[..., None], tower: Any, *args: Any, **kwargs: Any) -> None:
    """Around a tower's ``__init__``, which divides its sizes by the group's ranks but linear layers by all ranks."""
    if get_parallel().attn_dp_size == 1:
        return original(tower, *args, **kwargs)
    with split_by_attention_group(*TOWERS):
        return original(tower, *args, **kwargs)


def attend(original: Callable[..., Any], attention: Any, positions: Any, hidden_states: Any, forward_batch: Any, **kwargs: Any) -> Any:
    """Around ``Gemma4Attention.forward``: a group without requests has no tokens and skips attention."""
    if hidden_states.shape[0] == 0:
        return hidden_states
    return original(attention, positions, hidden_states, forward_batch, **kwargs)


def gathered(rows: torch.Tensor, forward_batch: Any) -> torch.Tensor:
    """``[tokens of all groups, width]``: the ``[tokens, width]`` of all groups, gathered as a layer boundary does."""
    out = torch.empty((get_global_dp_buffer_len(), rows.shape[1]), dtype=rows.dtype, device=rows.device)
    # SGLang sums over a group of several ranks in place (_dp_gather_via_all_gather), but the residual is read again.
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
