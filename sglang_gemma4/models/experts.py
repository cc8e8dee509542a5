"""Experts of a mixture-of-experts layer."""

import os
from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import decline


def take_tanh(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name."""
    from sglang_gemma4.models.layers.expert_activation import use_tanh_gelu

    problem = use_tanh_gelu(moe.experts, config.hidden_activation)
    if problem is not None:
        decline("expert_gelu", f"the experts keep SGLang's gelu: {problem}")


OPERATOR_S = "SGLANG_MOE_CONFIG_DIR"

_shapes: set[tuple[int, int]] = set()


def remember_shape(_result: None, moe: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``: the shape of this process's share of the experts."""
    _shapes.add((moe.experts.num_local_experts, moe.experts.intermediate_size_per_partition))


def find_tiles(original: Callable[..., Any], experts: int, inner: int, dtype: str | None, *args: Any, **kwargs: Any) -> Any:
    """Around ``get_moe_configs``: ours for a Gemma 4 layer in 16 bits, where there are some."""
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


def take_groups(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name."""
    from sglang_gemma4.models.layers import expert_layers

    expert_layers.take_groups(moe.experts, config.hidden_activation)


def take_few_tokens(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name."""
    from sglang_gemma4.models.layers import expert_layers

    expert_layers.take_few_tokens(moe, hidden_size, config.hidden_activation)


def take_many(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name."""
    from sglang_gemma4.models.layers import expert_layers

    expert_layers.take_many(moe.experts, config.hidden_activation)


def take_chunks(_result: None, moe: Any, hidden_size: int, layer_id: int, config: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4MoE.__init__``, whose arguments come by name; behind ``prefill_experts``, so that it is asked before that."""
    from sglang_gemma4.kernels.card import this_device
    from sglang_gemma4.kernels.warpgroup_products import reason_against_card
    from sglang_gemma4.models.layers import expert_layers

    card = this_device()
    problem = reason_against_card(card)
    if problem is None:
        expert_layers.take_chunks(moe.experts, config.hidden_activation)
    elif card.type == "cuda":
        decline("chunk_experts", problem)
