"""Prefill in which the layers that share KV see only the rows that are read later (YOCO: you only cache once).

The last layers of E2B and E4B write no keys and values. What they compute for a prompt's row is needed only for the
logits of that row. So in a prefill they must see the last row of each request and the rows whose log-probabilities were
asked for. If all chunks of a batch end inside their prompts, they need no row. The hidden states keep their shape, with
zeros in rows that are not read, so that ``LogitsProcessor`` and the MTP worker pick their rows as before.

If each request has one row, this *short part* is a decode step: one query per request over keys that are all in the
pool. A backend's decode kernel splits these keys over programs, while its prefill kernel would walk them in one. With
rows for log-probabilities it is an extension of the requests, with everything before those rows as prefix.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sglang.srt.layers.aux_hidden_states import AuxHiddenStateList
from sglang.srt.layers.layer_boundary.residual import batch as residual_batch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import forward_context, get_attn_backend, get_forward_context
from sglang.srt.utils.common import async_h2d

from sglang_gemma4.attention import second_metadata
from sglang_gemma4.attention.two_kinds import Part, TwoKinds
from sglang_gemma4.models.schedule import joined_batch, read_rows, short_graphs
from sglang_gemma4.models.schedule.read_rows import Spans, first_shared
from sglang_gemma4.models.schedule.short_graphs import ShortGraphs, layers_of_rows

Fill = Callable[[Any, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor], None]
"""Called with model, hidden states, per-layer inputs, positions and the output to write to, as in :func:`fill_rows`."""


@dataclass(frozen=True)
class ShortPart:
    """The rows that the layers that share KV see, with their batch and attention backend.

    Attributes:
        rows: ``[rows]`` int64, ascending.
        batch: a ``ForwardBatch`` of these rows; None if there are none, or for graphs.
        backend: an attention backend whose metadata is that of ``batch``.
        graphs: CUDA graphs, loaded with these rows' requests; None: launch by launch.
    """

    rows: torch.Tensor
    batch: Any = None
    backend: Any = None
    graphs: ShortGraphs | None = None


def prefill_in(forward_batch: Any, positions: torch.Tensor | None = None) -> Part:
    """The prefill in a forward over ``positions`` ``[tokens]``: all of it, or the prompt rows of a mixed batch."""
    backend = get_attn_backend()
    if isinstance(backend, TwoKinds):
        return backend.parts[0]
    return Part(0 if positions is None else positions.shape[0], forward_batch, backend)


def plan(model: Any, forward_batch: Any) -> ShortPart | None:
    """The short part of a prefill that ``read_rows`` has nothing against, or None if every row is read.

    Call it before the first layer: a backend may wait for the device while it prepares, and the host should not wait
    later.
    """
    backend = get_attn_backend()
    if isinstance(backend, TwoKinds):
        spans = read_rows.of_batch(backend.parts[0].batch)
        return None if spans.skip_nothing else short_part_beside(model, spans, *backend.parts)
    spans = read_rows.of_batch(forward_batch)
    return None if spans.skip_nothing else short_part(model, spans, forward_batch, backend)


def short_part_beside(model: Any, spans: Spans, prefill: Part, running: Part) -> ShortPart:
    """As :func:`short_part`, for a mixed batch, whose decode or verify rows are all read."""
    short = short_part(model, spans, prefill.batch, prefill.backend, with_graphs=False)
    others = torch.arange(prefill.rows, prefill.rows + running.rows, device=short.rows.device)
    if short.batch is None:
        batch = copy.copy(running.batch)
        batch.global_num_token_non_padded_cpu = running.rows
        return ShortPart(others, batch, running.backend)
    kinds = TwoKinds([Part(len(short.rows), short.batch, short.backend), running])
    return ShortPart(torch.cat([short.rows, others]), joined_batch.joined(short.batch, running.batch), kinds)


def short_part(model: Any, spans: Spans, forward_batch: Any, backend: Any, with_graphs: bool = True) -> ShortPart:
    """What the layers that share KV need to run on these rows, except positions, which the model may still change."""
    numbers = spans.rows
    rows = async_h2d(numbers, dtype=torch.int64, device=forward_batch.out_cache_loc.device)
    if not numbers:
        return ShortPart(rows)
    graphs = short_graphs.of(model, len(numbers)) if spans.one_each and with_graphs else None
    if graphs is not None:
        graphs.load(forward_batch.req_pool_indices, forward_batch.seq_lens)
        return ShortPart(rows, graphs=graphs)
    short = copy.copy(forward_batch)
    short.positions = short.residual_stream = short.spec_info = short.mm_inputs = short.mm_input_embeds = None
    short.forward_metadata_ready = short.return_logprob = False
    short.input_ids = None if forward_batch.input_ids is None else forward_batch.input_ids[rows]
    # The rows' own slots, by which a prefill kernel finds the keys of the rows themselves. Nothing is written to them.
    short.kv_loc_cols = rows
    short.out_cache_loc = forward_batch.out_cache_loc[rows]
    if forward_batch.out_cache_loc_virtual is not None:
        short.out_cache_loc_virtual = forward_batch.out_cache_loc_virtual[rows]
    short.global_num_token_non_padded_cpu = len(numbers)
    if spans.one_each:
        _as_decode(short)
    else:
        _as_extension(short, list(spans.counts), read_rows.ends(forward_batch))
    with joined_batch.keys_before(short):
        return ShortPart(rows, short, second_metadata.prepare(backend, short))


def _as_decode(short: Any) -> None:
    short.forward_mode = ForwardMode.DECODE
    short.extend_num_tokens = short.extend_seq_lens = short.extend_prefix_lens = short.extend_start_loc = None
    short.extend_seq_lens_cpu = short.extend_prefix_lens_cpu = short.extend_logprob_start_lens_cpu = None


def _as_extension(short: Any, counts: list[int], ends: Sequence[int]) -> None:
    short.forward_mode = ForwardMode.EXTEND
    short.extend_num_tokens = sum(counts)
    short.extend_seq_lens_cpu = counts
    short.extend_prefix_lens_cpu = [end - count for end, count in zip(ends, counts, strict=True)]
    short.extend_logprob_start_lens_cpu = [0] * len(counts)
    lengths = async_h2d(counts, dtype=short.extend_seq_lens.dtype, device=short.seq_lens.device)
    short.extend_seq_lens = lengths
    short.extend_prefix_lens = (short.seq_lens - lengths).to(lengths.dtype)
    short.extend_start_loc = lengths.cumsum(0, dtype=lengths.dtype) - lengths


def forward(
    model: Any,
    input_ids: torch.Tensor | None,
    input_embeds: torch.Tensor | None,
    per_layer_inputs: torch.Tensor | None,
    positions: torch.Tensor,
    forward_batch: Any,
    fill: Fill,
) -> Any:
    """What ``Gemma4TextModel.forward`` returns for this prefill, with zeros in the rows that are not read.

    Args:
        input_ids: ``[tokens]``, or None with ``input_embeds`` ``[tokens, hidden]`` and ``per_layer_inputs`` ``[tokens,
            layers, per-layer width]``, the per-layer embeddings of the ids before projection.
        positions: ``[tokens]``.
        fill: runs the layers that share KV.
    """
    first = first_shared(model)
    if input_ids is not None:
        input_embeds, per_layer_inputs = model.embed_tokens(input_ids), model.get_per_layer_inputs(input_ids)
    hidden_states: Any = input_embeds
    per_layer_inputs = model.project_per_layer_inputs(hidden_states, per_layer_inputs)
    captured = AuxHiddenStateList()
    residual_batch.start(forward_batch)
    for number in range(first):
        hidden_states = model.layers[number](
            positions=positions,
            hidden_states=hidden_states,
            per_layer_input=None if per_layer_inputs is None else per_layer_inputs[:, number],
            forward_batch=forward_batch,
            capture_output=captured.capture if number in model.layers_to_capture else None,
        )
    hidden_states = residual_batch.take_output(hidden_states, forward_batch)
    out = torch.zeros_like(hidden_states)
    fill(model, hidden_states, per_layer_inputs, positions, out)
    return (out, captured) if captured else out


def fill_rows(
    part: ShortPart,
    model: Any,
    hidden_states: torch.Tensor,
    per_layer_inputs: torch.Tensor | None,
    positions: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write the rows of ``part`` into ``out`` ``[tokens, hidden]``.

    Args:
        hidden_states: ``[tokens, hidden]`` from the last layer that owns KV.
        per_layer_inputs: ``[tokens, layers, per-layer width]`` or None.
        positions: ``[tokens]``.
    """
    if part.graphs is not None:
        part.graphs.fill(part.rows, hidden_states, per_layer_inputs, positions, out)
        return
    if part.batch is None:
        return
    short, rows = part.batch, part.rows
    short.positions = positions[rows]
    per_layer_rows = None if per_layer_inputs is None else per_layer_inputs[rows, first_shared(model) :]
    with forward_context(replace(get_forward_context(), attn_backend=part.backend)):
        out[rows] = layers_of_rows(model, hidden_states[rows], per_layer_rows, short)
