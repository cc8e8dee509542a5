"""Experts of a mixture-of-experts layer."""

import os
from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import decline, is_on


def prepare(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name: install the experts' kernels by number of tokens.

    Each kernel passes a batch that it does not take to the one installed before it, so the last one is asked first. If
    two take the same number of tokens, the later one is faster.
    """
    activation = config.hidden_activation
    if is_on("expert_gelu"):
        take_tanh(moe, activation)  # first: for the batches that are left to SGLang's kernels
    if is_on("moe_tiles"):
        remember_shape(moe)
    if is_on("grouped_experts"):
        expert_layers().take_groups(moe.experts, activation)  # 32 to 320 tokens; in 4 bits up to prefill_experts' minimum
    if is_on("few_token_experts"):
        expert_layers().take_few_tokens(moe, hidden_size, activation)  # 1 to 16 tokens
    if is_on("prefill_experts"):
        expert_layers().take_many(moe.experts, activation)  # from 1,024 tokens on
    if is_on("chunk_experts"):
        take_chunks(moe, activation)  # after prefill_experts: in 4 bits it is faster for up to 4,096 tokens


def expert_layers() -> Any:
    """The module of the layers' kernels, whose import loads Triton."""
    from sglang_gemma4.models.layers import expert_layers

    return expert_layers


def take_tanh(moe: Any, activation: str) -> None:
    """Make SGLang's kernels compute GELU by tanh."""
    from sglang_gemma4.models.layers.expert_activation import use_tanh_gelu

    problem = use_tanh_gelu(moe.experts, activation)
    if problem is not None:
        decline("expert_gelu", f"the experts keep SGLang's gelu: {problem}")


OPERATOR_S = "SGLANG_MOE_CONFIG_DIR"

_shapes: set[tuple[int, int]] = set()


def remember_shape(moe: Any) -> None:
    """Remember the shape of this process's share of the experts, for :func:`find_tiles`."""
    _shapes.add((moe.experts.num_local_experts, moe.experts.intermediate_size_per_partition))


def find_tiles(original: Callable[..., Any], experts: int, inner: int, dtype: str | None, *args: Any, **kwargs: Any) -> Any:
    """Around ``get_moe_configs``: our tiles for a Gemma 4 layer in 16 bits, if there are any."""
    sixteen_bits = dtype is None and not any(args[:3]) and not any(kwargs.get(key) for key in ("block_n", "block_k", "per_channel_quant"))
    if not sixteen_bits or (experts, inner) not in _shapes or OPERATOR_S in os.environ:
        return original(experts, inner, dtype, *args, **kwargs)
    from sglang.srt.runtime_context import get_exec

    if get_exec().deterministic.enable_deterministic_inference:
        return original(experts, inner, dtype, *args, **kwargs)
    from sglang_gemma4.models.layers import expert_tiles

    down = bool(kwargs.get("down_moe", args[3] if len(args) > 3 else False))
    found = expert_tiles.for_server(experts, inner, down)
    stock = original(experts, inner, dtype, *args, **kwargs)
    return stock if found is None else {**(stock or {}), **found}  # SGLang takes the nearest number of tokens


def take_chunks(moe: Any, activation: str) -> None:
    """Compute a chunk's 4-bit experts with Hopper's warpgroup matrix instruction, dequantising in registers."""
    from sglang_gemma4.kernels.card import this_device
    from sglang_gemma4.kernels.warpgroup_products import reason_against_card

    card = this_device()
    problem = reason_against_card(card)
    if problem is None:
        expert_layers().take_chunks(moe.experts, activation)
    elif card.type == "cuda":
        decline("chunk_experts", problem)
