"""The gate of a layer's per-layer embedding, multiplied in the launch that computes its input, for steps of a few rows."""

from typing import Any

import torch
from sglang.srt.layers.linear import ReplicatedLinear

from sglang_gemma4 import patching
from sglang_gemma4.kernels.dense import embedding_gate
from sglang_gemma4.kernels.dense.few_row_linear import counters
from sglang_gemma4.models import derived
from sglang_gemma4.models.layers import weight_formats
from sglang_gemma4.models.layers.decoder_layer import eps_of


class EmbeddingGate:
    """Norm, sum, gate and per-layer embedding of one ``Gemma4DecoderLayer``."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.gate = layer, layer.per_layer_input_gate
        weight = self.gate.weight
        self.done = derived.scratch(layer, "embedding_gate_done", counters(weight.shape[0], weight.device))

    def problem(self, dense: torch.Tensor, residual: torch.Tensor, embedding: torch.Tensor) -> str | None:
        """Why this call keeps its three launches, or None."""
        if self.layer.per_layer_input_gate is not self.gate:
            return f"per_layer_input_gate became a {type(self.layer.per_layer_input_gate).__name__}"
        return gate_problem(self.gate) or embedding_gate.reason_against(dense, residual, self.gate.weight, embedding)

    def __call__(self, dense: torch.Tensor, residual: torch.Tensor, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The residual stream after the FFN and the gated embedding, or None where three launches compute them.

        Args:
            dense: ``[rows, hidden]``, the FFN's complete output; ``residual`` alike.
            embedding: ``[rows, per-layer width]``.
        """
        if dense.shape[0] > embedding_gate.MOST_ROWS or not patching.takes("ple_gate", self.problem(dense, residual, embedding)):
            return None
        norm = self.layer.post_feedforward_layernorm
        return embedding_gate.embedding_gate(dense, residual, norm.weight.data, eps_of(norm), self.gate.weight.data, embedding, self.done)


def gate_problem(gate: Any) -> str | None:
    """Why a layer's gate is more than a product with a plain weight, or None."""
    if type(gate) is not ReplicatedLinear:
        return f"per_layer_input_gate is a {type(gate).__name__}"
    if not weight_formats.is_plain(gate):
        return "per_layer_input_gate is quantised"
    return None if gate.bias is None else "per_layer_input_gate has a bias"


def install(model: Any) -> None:
    """Give each layer of a ``Gemma4TextModel`` its gate; layers without per-layer embeddings have none."""
    for number in range(model.start_layer, model.end_layer):
        layer = model.layers[number]
        if not layer.has_ple:
            continue
        if problem := gate_problem(layer.per_layer_input_gate):
            patching.takes("ple_gate", problem)
            return
        layer.embedding_gate = EmbeddingGate(layer)
