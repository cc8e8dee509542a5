"""Gemma 4's attention with the norms of queries, keys and values and their rotation in one launch."""

from typing import Any

import torch
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang.srt.layers.rotary_embedding.rope_variant import Gemma4RotaryEmbedding

from sglang_gemma4.kernels.norms import qkv_norm_rope
from sglang_gemma4.models.layers import fresh_kv, shared_query
from sglang_gemma4.models.layers.decoder_layer import reason_against_norm, reason_against_tensor
from sglang_gemma4.models.layers.kv_write import Destination, QuantisedDestination


def shares_kv(attention: Any) -> bool:
    """Whether a ``Gemma4Attention`` reads another layer's KV. The MTP draft's layers learn it after they are built."""
    return attention.is_kv_shared_layer and attention.kv_shared_layer_index is not None


def reason_against(attention: Any, positions: Any, hidden_states: Any) -> str | None:
    """Why this attention keeps SGLang's norms and rotation, or None."""
    problem = reason_against_norm(attention.q_norm, attention.k_norm)
    if problem is None and (attention.v_norm.with_scale or {attention.k_norm.eps, attention.v_norm.eps} != {attention.q_norm.eps}):
        problem = "v_norm has a weight, or the three norms have more than one epsilon"
    rotary = attention.rotary_emb
    problem = problem or reason_against_tensor(hidden_states)
    if problem is None and type(rotary) not in (RotaryEmbedding, Gemma4RotaryEmbedding):
        problem = f"the rotation is {type(rotary).__name__}"
    if problem is None and (not rotary.is_neox_style or rotary.rotary_dim != attention.head_dim or rotary._force_native):
        problem = f"the rotation is {rotary!r}"
    if problem is None and (attention.head_dim & (attention.head_dim - 1) or attention.head_dim < 16):
        problem = f"the head dimension is {attention.head_dim}"
    if problem is None and (positions.dim() != 1 or positions.shape[0] != hidden_states.shape[0]):
        problem = f"positions are {tuple(positions.shape)} for a hidden state of {tuple(hidden_states.shape)}"
    if problem is None and (not positions.is_contiguous() or positions.dtype not in (torch.int32, torch.int64)):
        problem = f"positions are {positions.dtype} with stride {positions.stride(0)}; adjacent integers are supported"
    return problem


def forward(
    attention: Any,
    positions: torch.Tensor,
    hidden_states: torch.Tensor,
    forward_batch: Any,
    queries_only: bool = False,
    where: Destination | QuantisedDestination | None = None,
) -> Any:
    """What ``Gemma4Attention.forward`` returns.

    Args:
        positions: ``[tokens]``; ``hidden_states``: ``[tokens, hidden]``.
        queries_only: in a layer that shares KV, multiply by the query rows of its projection only.
        where: in a layer that owns KV, where the launch writes keys and values; None: attention writes them.
    """
    shared = shares_kv(attention)
    qkv = shared_query.project(attention, hidden_states) if shared and queries_only else attention.qkv_proj(hidden_states)[0]
    scales = {"k_scales": where.k_scales, "v_scales": where.v_scales} if isinstance(where, QuantisedDestination) else {}
    q, k, v = qkv_norm_rope.qkv_norm_rope(
        qkv, positions, attention.rotary_emb.cos_sin_cache, attention.q_norm.weight.data, attention.k_norm.weight.data,
        attention.num_heads, 0 if shared else attention.num_kv_heads, attention.q_norm.eps, *(where[:3] if where else ()), **scales,
    )  # fmt: skip
    del qkv  # it is large in a prefill, and attention needs memory, too
    if shared:
        keys, values = fresh_kv.taken(attention, q.shape[0], forward_batch)
    else:
        keys, values = k, v
        fresh_kv.keep(attention, k, v, forward_batch)
    output = attention.attn(q, keys, values, forward_batch=forward_batch, save_kv_cache=not shared and where is None)
    return attention.o_proj(output.flatten(-2, -1) if output.dim() == 3 else output)[0]
