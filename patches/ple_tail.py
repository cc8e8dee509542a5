"""The end of a layer with per-layer embeddings (E2B, E4B) is three launches, not seven."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, takes, uses


def next_stream(
    original: Callable[..., Any], layer: Any, hidden_states: Any, residual: Any, per_layer_input: Any, forward_batch: Any
) -> Any:
    """Around ``Gemma4DecoderLayer._next_stream``."""
    from sglang_gemma4.models.layers import decoder_layer

    if not layer.has_ple or per_layer_input is None or decoder_layer.no_rows(hidden_states):
        return original(layer, hidden_states, residual, per_layer_input, forward_batch)
    if not takes("ple_tail", decoder_layer.ple_problem(layer, hidden_states, residual, per_layer_input)):
        return original(layer, hidden_states, residual, per_layer_input, forward_batch)
    return decoder_layer.next_stream_with_ple(layer, hidden_states, residual, per_layer_input, forward_batch)


PATCH = Patch(
    switch="SGLANG_GEMMA4_NORMS",
    why="Per-layer embeddings end in seven element-wise launches a layer: norm, add, gelu, product, norm, add, scale.",
    evidence="srt/models/gemma4_causal.py:815-834 · 2.7 to 3.2 times as fast by itself on an H200, runs/2026-11-22-kernel-times; in a "
    "server with few_row_linear",
    remove_when="SGLang fuses the tail of layers with per-layer embeddings.",
    uses=(uses.layer_embeddings, uses.kernels, uses.any_batch),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4DecoderLayer._next_stream", "around", next_stream, "1c1c4b6f8ca3"),),
)
