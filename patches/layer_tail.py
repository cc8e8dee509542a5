"""The end of a layer and the next layer's input norm are one launch."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, takes, uses


def chain_layers(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``."""
    from sglang_gemma4.models.layers.decoder_layer import chain

    chain(model)


def next_stream(
    original: Callable[..., Any], layer: Any, hidden_states: Any, residual: Any, per_layer_input: Any, forward_batch: Any
) -> Any:
    """Around ``Gemma4DecoderLayer._next_stream``; layers with per-layer embeddings are ``ple_tail``'s."""
    from sglang_gemma4.models.layers import decoder_layer

    if layer.has_ple or decoder_layer.no_rows(hidden_states):
        return original(layer, hidden_states, residual, per_layer_input, forward_batch)
    if not takes("layer_tail", decoder_layer.tail_problem(layer, hidden_states, residual)):
        return original(layer, hidden_states, residual, per_layer_input, forward_batch)
    return decoder_layer.next_stream(layer, hidden_states, residual, forward_batch)


PATCH = Patch(
    switch="SGLANG_GEMMA4_NORMS",
    why="Each layer's input norm is a launch that reads back what the layer before has just written.",
    evidence="srt/models/gemma4_causal.py:768-814 · srt/layers/layer_boundary/residual/add_norm.py (NormQuantReadout.read) · the kernel "
    "alone 1.2 to 1.7 times as fast; MTP steps 2.9, 0.7 and 1.5 % shorter at batch 1, 8 and 32, measured as triple_norm",
    remove_when="SGLang's fused tail of a layer gives the next layer's input norm too.",
    uses=(uses.kernels, uses.plain_layers, uses.any_batch),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", chain_layers, "b7e9b394300f"),
        Hook("sglang.srt.models.gemma4_causal.Gemma4DecoderLayer._next_stream", "around", next_stream, "1c1c4b6f8ca3"),
    ),
)
