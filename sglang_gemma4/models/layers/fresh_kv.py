"""Keys and values of a verify step's tokens, handed from the layer that computed them to those that share its KV.

SGLang's triton backend takes a step's own keys as tensors, and reads them back from the pool if a layer has none. That
costs two gathers in each of E4B's 18 and E2B's 20 such layers, all of the same two layers' tokens.
"""

from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.forward_context import get_attn_backend

from sglang_gemma4 import patching
from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend

Both = tuple[torch.Tensor | None, torch.Tensor | None]
LENDS = "gemma4_lends_kv"
"""Attribute of a ``Gemma4Attention`` whose KV others share."""
KEPT = "gemma4_fresh_kv"
"""Attribute of the ``ForwardBatch``: keys and values by a layer's number in the pool."""


def mark(model: Any) -> bool:
    """Mark the layers of a ``Gemma4TextModel`` that lend their keys and values. Returns whether there are any."""
    found = False
    for layer in model.layers:
        attention = getattr(layer, "self_attn", None)  # none on another pipeline stage
        if attention is None or not attention.is_kv_shared_layer or attention.kv_shared_layer_index is None:
            continue
        owner = getattr(model.layers[attention.kv_shared_layer_index], "self_attn", None)
        if owner is not None:
            setattr(owner, LENDS, True)
            found = True
    return found


def keep(attention: Any, k: torch.Tensor, v: torch.Tensor, forward_batch: Any) -> None:
    """Offer the keys and values that a marked ``Gemma4Attention`` computed in a verify step."""
    if LENDS not in vars(attention) or not forward_batch.forward_mode.is_target_verify():
        return
    backend = get_attn_backend()
    if type(backend).__name__ == "Gemma4CpuAttention":  # reads all keys from the pool, and the patch is idle there
        return
    problem = None
    if type(backend) not in (TritonAttnBackend, Gemma4TritonAttnBackend):  # a quantised cache's backend reads rounded keys on purpose
        problem = f"attention is {type(backend).__name__}, not triton's"
    elif backend.token_to_kv_pool.dtype != k.dtype:
        problem = f"the KV cache is {backend.token_to_kv_pool.dtype}, the model {k.dtype}"
    if patching.takes("fresh_kv", problem, "a verify step's keys are read back from the pool"):
        forward_batch.__dict__.setdefault(KEPT, {})[attention.attn.layer_id] = k, v


def taken(attention: Any, tokens: int, forward_batch: Any) -> Both:
    """Keys and values for a ``Gemma4Attention`` that shares KV, ``[tokens, ...]`` each.

    Both are None if the backend has to read them back.
    """
    k, v = forward_batch.__dict__.get(KEPT, {}).get(attention.attn.layer_id, (None, None))
    fits = k is not None and k.shape[0] == tokens and forward_batch.forward_mode.is_target_verify()
    return (k, v) if fits else (None, None)
