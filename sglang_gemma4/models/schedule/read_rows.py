"""Which rows of a prefill are read after the layers that own KV, and why a prefill may need all of them."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode, get_server_return_hidden_states_mode
from sglang.srt.model_executor.runner_utils.prefill_graph import is_in_prefill_graph_scope
from sglang.srt.runtime_context import get_exec, get_lora, get_parallel

from sglang_gemma4.attention import image_spans, second_metadata
from sglang_gemma4.attention.quantised import ReadsLevels
from sglang_gemma4.attention.quantised_pool import has_scales


@dataclass(frozen=True)
class Spans:
    """How many of each request's new rows are read; always its last ones."""

    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    """New rows of each request."""

    @property
    def rows(self) -> list[int]:
        """Their indices in the batch, ascending."""
        ends = accumulate(self.lengths)
        return [row for end, count in zip(ends, self.counts, strict=True) for row in range(end - count, end)]

    @property
    def one_each(self) -> bool:
        """Whether exactly one row of each request is read."""
        return all(count == 1 for count in self.counts)

    @property
    def skip_nothing(self) -> bool:
        """Whether every row is read."""
        return self.counts == self.lengths


def first_shared(model: Any) -> int:
    """Index of a ``Gemma4TextModel``'s first layer that shares KV; the number of layers if none does."""
    return int(model.config.num_hidden_layers - (getattr(model.config, "num_kv_shared_layers", 0) or 0))


def is_prefill(forward_batch: Any) -> bool:
    """Whether this forward is a prefill, alone or mixed with decode rows, which SGLang's runners call EXTEND too."""
    return bool(forward_batch.forward_mode == ForwardMode.EXTEND)


def of_batch(forward_batch: Any) -> Spans:
    """The rows that are read: those that ``LogitsProcessor`` keeps of a prefill, or none if no next token is taken."""
    lengths = tuple(forward_batch.extend_seq_lens_cpu)
    asked = [0] * len(lengths)
    if forward_batch.return_logprob:
        starts = forward_batch.extend_logprob_start_lens_cpu
        asked = [max(0, length - start) for length, start in zip(lengths, starts, strict=True)]
    # The next token of a chunk that ends inside its prompt is discarded. That of a decode row in the same batch
    # (--enable-mixed-chunk) is used; here it differs from a chunk only in that the request has one new token.
    unread = not (forward_batch.contains_last_prefill_chunk or 1 in lengths or any(asked))
    return Spans(tuple(0 if unread else max(1, count) for count in asked), lengths)


def ends(forward_batch: Any) -> list[int]:
    """How many tokens of each request are in the pool after this prefill."""
    both = zip(forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu, strict=True)
    return [prefix + length for prefix, length in both]


def reason_against_model(model: Any) -> str | None:
    """Why this process's model prefills all rows through all layers, or None."""
    first, layers = first_shared(model), model.config.num_hidden_layers
    if first == layers:
        return "no layer of the model shares KV"
    if model.pp_group.world_size > 1:
        return f"the layers are split over {model.pp_group.world_size} pipeline stages"
    parallel = get_parallel()
    for what, size in (("data", parallel.attn_dp_size), ("context", parallel.attn_cp_size), ("decode context", parallel.attn_dcp_size)):
        if size > 1:
            return f"attention is {what} parallel ({size} ranks)"
    if get_lora().enable_lora:
        return "LoRA adapters follow all rows of a batch"
    if get_exec().deterministic.enable_deterministic_inference:
        return "deterministic inference: a row's rounding would depend on which other rows are read"
    shared = [model.layers[number] for number in range(first, layers)]
    if not all(layer.self_attn.is_kv_shared_layer for layer in shared):
        return f"a layer from {first} on has keys and values of its own"
    if image_spans.bidirectional(model.config):
        return "use_bidirectional_attention is 'vision': the rows of an image see later ones, which the short part does not know"
    if any(layer.enable_moe_block for layer in shared):
        return "a layer that shares KV has experts"
    inside = [number for number in model.layers_to_capture if number >= first]
    if inside:
        return f"hidden states are captured at layers {inside}, KV is shared from layer {first} on"
    if get_exec().features.aux_hidden_state_capture is not None:
        return "hidden states of the last layer are kept beside captured ones"
    return None


def reason_against_backend(backend: Any, dtype: torch.dtype) -> str | None:
    """Why no prefill of a model of ``dtype`` on this attention backend can have a short part, or None."""
    problem = second_metadata.reason_against(backend)
    if problem is not None:
        return f"attention backend: {problem}"
    if backend.token_to_kv_pool.dtype != dtype and not reads_levels(backend):
        return f"the KV cache is {backend.token_to_kv_pool.dtype}, the model {dtype}"
    return None


def reads_levels(backend: Any) -> bool:
    """Whether all keys of a prefill are read from the pool, whatever its elements are."""
    prefills = getattr(backend, "prefill_backend", backend)
    return isinstance(prefills, ReadsLevels) or (type(prefills).__name__ == "Gemma4CpuAttention" and has_scales(prefills.token_to_kv_pool))


def reason_against_batch(tokens: int, forward_batch: Any) -> str | None:
    """Why all rows of this prefill go through all layers, or None.

    Args:
        tokens: rows that the first layer gets.
    """
    if is_in_prefill_graph_scope() or torch.compiler.is_compiling():
        return "it is captured in a graph, whose number of rows is fixed"
    if forward_batch.extend_seq_lens_cpu is None or forward_batch.extend_prefix_lens_cpu is None:
        return "the lengths of its prompts are on the device only"
    if sum(forward_batch.extend_seq_lens_cpu) != tokens:
        return "its batch is padded"
    if forward_batch.kv_loc_cols is not None or forward_batch.tbo_split_seq_index is not None:
        return "its batch is a part of another one"
    if forward_batch.multi_item_delimiter_indices is not None or forward_batch.token_indices_to_pool is not None:
        return "multi-item scoring reads rows inside the prompt"
    if forward_batch.return_pooled_hidden_states:
        return "hidden states are pooled over the prompt"
    if _reads_every_row(forward_batch):
        return "hidden states of every row are asked for"
    return None


def _reads_every_row(forward_batch: Any) -> bool:
    """Whether all hidden states are read. FROZEN_KV_MTP asks for all but takes each request's last; others take all."""
    if forward_batch.capture_hidden_mode != CaptureHiddenMode.FULL:
        return False
    algorithm = forward_batch.spec_algorithm
    seeds_only = algorithm is not None and algorithm.is_frozen_kv_mtp()
    return not seeds_only or bool(get_server_return_hidden_states_mode() == CaptureHiddenMode.FULL)
