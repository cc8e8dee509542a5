"""Attention of a layer that reads another layer's KV, without computing keys and values."""

from typing import Any

import torch


def reason_against(attention: Any) -> str | None:
    """Why a ``Gemma4Attention`` that shares KV keeps SGLang's forward, or None."""
    from sglang.srt.layers.linear import QKVParallelLinear

    from sglang_gemma4.models.layers import weight_formats
    from sglang_gemma4.models.layers.few_row_linear import FewRows

    projection = attention.qkv_proj
    if type(projection) is not QKVParallelLinear:
        return f"qkv_proj is a {type(projection).__name__}"
    if problem := weight_formats.reason_against_linear(projection):
        return f"qkv_proj: {problem}"
    plain, shape = weight_formats.is_plain(projection), (attention.q_size + 2 * attention.kv_size, attention.qkv_proj.input_size)
    if not plain and not isinstance(projection.quant_method, FewRows):
        return "qkv_proj is quantised, and few_row_linear is off or declined"
    if weight_formats.is_grouped(projection):
        found = weight_formats.linear_weight(projection).shape
        return f"qkv_proj's weight is packed, {tuple(found)}" if found != shape else _shifted(attention)
    if projection.weight.shape != (shape if plain else shape[::-1]):
        return f"qkv_proj's weight is packed, {tuple(projection.weight.shape)}"
    return _shifted(attention)


def _shifted(attention: Any) -> str | None:
    return "q_norm shifts its scale" if attention.q_norm.scale_shift != 0.0 else None


def project(attention: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Queries ``[tokens, heads * width]`` from the query rows of the QKV projection alone."""
    projection = attention.qkv_proj
    bias = None if projection.bias is None else projection.bias[: attention.q_size]
    multiply = getattr(projection.quant_method, "first_outputs", None)  # of few_row_linear.FewRows
    if multiply is None:
        return torch.nn.functional.linear(hidden_states, projection.weight[: attention.q_size], bias)
    out: torch.Tensor = multiply(projection, hidden_states, attention.q_size, bias)
    return out


def forward(attention: Any, positions: torch.Tensor, hidden_states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
    """What ``Gemma4Attention.forward`` returns for a layer that shares KV, from the query rows of its projection alone.

    Args:
        hidden_states: ``[tokens, hidden]``; ``positions``: ``[tokens]``.
    """
    heads, width = attention.num_heads, attention.head_dim
    query = project(attention, hidden_states)
    if query.is_cuda:
        from sglang.srt.models.gemma4_causal import gemma_qkv_rmsnorm

        weight = attention.q_norm.weight.data
        options = {"num_q_heads": heads, "num_kv_heads": attention.num_kv_heads, "head_dim": width, "eps": attention.q_norm.eps}
        gemma_qkv_rmsnorm(query, None, None, weight, None, **options)
    else:
        query = attention.q_norm(query.unflatten(-1, (heads, width))).flatten(-2, -1)
    # The rotary kernel needs a key: one head of unused memory.
    query, _ = attention.rotary_emb(positions, query, query.new_empty((query.shape[0], width)))
    output = attention.attn(query.unflatten(-1, (heads, width)), None, None, forward_batch=forward_batch, save_kv_cache=False)
    return attention.o_proj(output.flatten(-2, -1) if output.dim() == 3 else output)[0]
