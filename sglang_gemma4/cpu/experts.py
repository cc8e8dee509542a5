"""A rank's experts in torch, on the CPU reference engine."""

from collections.abc import Callable
from typing import Any

import torch

Rounding = Callable[[torch.Tensor], torch.Tensor]


def exact(values: torch.Tensor) -> torch.Tensor:
    """No rounding: activations stay as they are."""
    return values


def gated_sum(
    x: torch.Tensor,
    routed: Any,
    w13: torch.Tensor,
    w2: torch.Tensor,
    activation: str,
    first: Rounding = exact,
    second: Rounding = exact,
) -> torch.Tensor:
    """Weighted sum of each token's experts on this rank: ``[tokens, hidden]``.

    Gelu uses tanh, as every Gemma 4's config says.

    Args:
        x: ``[tokens, hidden]``.
        routed: SGLang's ``StandardTopKOutput``; an id below 0 is another rank's expert.
        w13: ``[experts, 2 * inner, hidden]``, the gate's rows first.
        w2: ``[experts, hidden, inner]``.
        first: rounds the first GEMM's input, ``second`` the second's.

    Raises:
        ValueError: the activation is not gelu.
    """
    if activation not in ("gelu", "gelu_tanh"):
        raise ValueError(f"experts' activation {activation}: the CPU reference engine computes Gemma 4's gelu_tanh only")
    out, rounded = torch.zeros_like(x), first(x)
    for expert in routed.topk_ids.unique().tolist():
        if expert < 0:
            continue
        token, place = (routed.topk_ids == expert).nonzero(as_tuple=True)
        gate, up = torch.nn.functional.linear(rounded[token], w13[expert]).chunk(2, dim=-1)
        inner = second(torch.nn.functional.gelu(gate, approximate="tanh") * up)
        product = torch.nn.functional.linear(inner, w2[expert]) * routed.topk_weights[token, place, None]
        out.index_add_(0, token, product.to(out.dtype))
    return out


def of_this_rank(
    original: Callable[..., torch.Tensor], layer: Any, x: torch.Tensor, topk_output: Any, moe_runner_config: Any
) -> torch.Tensor:
    """Around ``moe_forward_native``, which takes another rank's expert (-1) as an index and fails."""
    if layer.moe_ep_size == 1 or not layer.moe_runner_config.activation.startswith("gelu"):
        return original(layer, x, topk_output, moe_runner_config)
    return gated_sum(x, topk_output, layer.w13_weight, layer.w2_weight, moe_runner_config.activation)
