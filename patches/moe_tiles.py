"""The experts' products take tiles measured on this card for prefill chunks; SGLANG_MOE_CONFIG_DIR stands."""

import os
from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

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


PATCH = Patch(
    switch="SGLANG_GEMMA4_EXPERTS",
    why="SGLang's tiles for this shape end at 1,024 tokens: a prefill chunk of 8,192 takes twice its floor, 240 of 620 ms for 32k tokens.",
    evidence="srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0 · runs/2026-11-21-26b-stock-steps (prefill, batch 32) · H200, "
    "26B-A4B, prefill of 8 to 64 requests: 6 to 9 % shorter than with SGLang's tiles in this package, two repetitions, stock not "
    "measured, runs/2026-11-22-26b-experts · `sglang-gemma4 tune-moe` makes tiles for another card",
    remove_when="SGLang ships tiles for E=128, N=704 measured beyond 1,024 tokens on this card.",
    uses=(uses.moe, uses.kernels, uses.any_batch),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4MoE.__init__", "after", remember_shape, "a63fb2abba48"),
        Hook("sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config.get_moe_configs", "around", find_tiles, "2fb82c3e8fa9"),
    ),
)
