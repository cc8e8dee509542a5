"""What SGLang's breakable prefill graphs lack for Gemma 4: per-layer embeddings at a fixed address, reasons against.

Such a graph is captured in pieces, which attention separates, and replayed for any batch of at most its size. The
multimodal wrapper (vision tower, image masks, embeddings) and every attention still run in Python. The rest of the
language model is replayed; with fast prefill only the layers that own KV are (``fast_prefill_graph``).
"""

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.utils import get_bool_env_var

SAVED_GRAPHS = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"


def reason_against(given: Any) -> str | None:
    """Why a server with these resolved arguments runs its prefills without graphs, or None."""
    if given.pp_size > 1:
        return f"--pp-size {given.pp_size}: a stage's inputs come from the stage before, they are not embeddings"
    if given.attn_dp_size > 1:
        return f"--attn-dp-size {given.attn_dp_size}: a layer gathers the tokens of all attention groups, whose numbers a graph fixes"
    if given.enable_memory_saver and get_bool_env_var(SAVED_GRAPHS):
        return f"--enable-memory-saver with {SAVED_GRAPHS}=1: SGLang's breakable graphs keep their memory; unset the variable to have them"
    if given.enable_lora or given.lora_paths:
        return "--enable-lora: adapters inside captured pieces were never compared; --cuda-graph-backend-prefill=breakable has them anyway"
    if str(given.model_impl).lower() == "transformers":
        return "--model-impl transformers: the model is not SGLang's, whose forward is captured"
    if given.dcp_size > 1:
        return f"--dcp-size {given.dcp_size}: SGLang's capture does not support split keys"
    if given.enable_two_batch_overlap:
        return "--enable-two-batch-overlap: SGLang's capture supports one batch at a time"
    return None


@dataclass
class GraphInputs:
    """The per-layer embeddings that graphs read, ``[largest size, layers, width]``.

    A model without them (26B-A4B, 31B) has none.
    """

    per_layer: torch.Tensor | None = None

    def for_capture(self, model: Any, tokens: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """The first ``tokens`` rows; graphs are captured from the largest down, so the first call allocates.

        Raises:
            ValueError: a later capture asks for more rows than the first.
        """
        if model.embed_tokens_per_layer is None:
            return None
        if self.per_layer is None:
            shape = (tokens, model.config.num_hidden_layers, model.hidden_size_per_layer_input)
            self.per_layer = torch.zeros(shape, dtype=dtype, device=device)
        if tokens > self.per_layer.shape[0]:
            raise ValueError(f"a prefill graph of {tokens} tokens after one of {self.per_layer.shape[0]}; capture the largest first")
        return self.per_layer[:tokens]

    def fill(self, per_layer_inputs: torch.Tensor | None) -> None:
        """Copy a batch's ``[rows, layers, width]`` before its replay; it may have more rows than tokens.

        Raises:
            ValueError: the batch has per-layer embeddings and the graph does not, or the other way round.
        """
        if (per_layer_inputs is None) != (self.per_layer is None):
            has = "has none" if per_layer_inputs is None else "has them"
            raise ValueError(f"per-layer embeddings: the batch {has}, the prefill graph was captured otherwise")
        if self.per_layer is not None and per_layer_inputs is not None:
            self.per_layer[: per_layer_inputs.shape[0]].copy_(per_layer_inputs)


def inputs_of(model: Any) -> GraphInputs:
    """The :class:`GraphInputs` of a ``Gemma4TextModel``, made at the first call."""
    inputs: GraphInputs | None = model.__dict__.get("_sglang_gemma4_graph_inputs")
    if inputs is None:
        inputs = model.__dict__["_sglang_gemma4_graph_inputs"] = GraphInputs()
    return inputs
