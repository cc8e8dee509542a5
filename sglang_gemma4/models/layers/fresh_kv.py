"""Keys and values of a verify step's tokens, handed from the layer that computed them to those that share its KV.

SGLang's triton backend takes a step's own keys as tensors, and reads them back from the pool where a layer has none: two gathers in each
of E4B's 18 and E2B's 20 such layers, all of them of the same two layers' rows.
"""

from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.forward_context import get_attn_backend

from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend

Both = tuple[torch.Tensor | None, torch.Tensor | None]
KEPT = "gemma4_fresh_kv"
"""Attribute of the ``ForwardBatch``: by the width of its window, a layer's number in the pool, its keys and values."""

_wanted = False


def want(wanted: bool) -> None:
    """Whether layers of this process that share KV take a verify step's own keys from the layer that computed them."""
    global _wanted
    _wanted = wanted


def keep(attention: Any, k: torch.Tensor, v: torch.Tensor, forward_batch: Any) -> None:
    """Offer what a ``Gemma4Attention`` that owns KV computed; what another layer of its kind offered before is forgotten."""
    if not _wanted or not forward_batch.forward_mode.is_target_verify():
        return
    backend = get_attn_backend()
    # Of another dtype the pool would hold other numbers; a quantised cache's backend reads its own rounding on purpose.
    if type(backend) in (TritonAttnBackend, Gemma4TritonAttnBackend) and backend.token_to_kv_pool.dtype == k.dtype:
        kept = forward_batch.__dict__.setdefault(KEPT, {})
        kept[attention.attn.sliding_window_size] = (attention.attn.layer_id, k, v)


def taken(attention: Any, tokens: int, forward_batch: Any) -> Both:
    """Keys and values for a ``Gemma4Attention`` that shares KV, ``[tokens, ...]`` each; None where the backend is to read them back."""
    number, k, v = forward_batch.__dict__.get(KEPT, {}).get(attention.attn.sliding_window_size, (None, None, None))
    return (k, v) if number == attention.attn.layer_id and k is not None and k.shape[0] == tokens else (None, None)
