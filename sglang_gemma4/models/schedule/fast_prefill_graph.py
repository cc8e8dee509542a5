"""Fast prefill inside SGLang's breakable prefill graphs.

Layers that own KV are replayed; those that share it run between two pieces.

Such a graph is a sequence of pieces with Python between them, where attention runs. One more break, after the last
layer that owns KV, runs all layers that share it. They see a different number of rows in each batch, so none of them
is captured. A batch's rows are decided before its replay and stored in the batch, the only part of the replay that
Python between the pieces can find.
"""

import copy
from typing import Any

import torch
from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import eager_on_graph, is_in_breakable_cuda_graph
from sglang.srt.model_executor.runner_utils.forward_batch import get_forward_batch, set_forward_batch
from sglang.srt.model_executor.runner_utils.prefill_graph import is_in_full_prefill_graph, is_in_prefill_graph_scope

from sglang_gemma4.attention.two_kinds import TwoKinds
from sglang_gemma4.models.schedule import fast_prefill, read_rows
from sglang_gemma4.models.schedule.fast_prefill import ShortPart
from sglang_gemma4.models.schedule.read_rows import Spans
from sglang_gemma4.patching import takes

PART = "_sglang_gemma4_short_part"
SHORT = "_sglang_gemma4_short_graphs"
SEEN = "_sglang_gemma4_captured"


def capturing() -> bool:
    """Whether this forward is a warm-up or capture of a breakable graph."""
    return is_in_prefill_graph_scope() and is_in_breakable_cuda_graph() and not is_in_full_prefill_graph()


def capture(
    model: Any,
    input_ids: torch.Tensor | None,
    input_embeds: torch.Tensor | None,
    per_layer_inputs: torch.Tensor | None,
    positions: torch.Tensor,
    forward_batch: Any,
) -> Any:
    """As :func:`fast_prefill.forward`, without any row in the short part: what a capture computes is not read."""
    model.__dict__[SHORT] = True
    model.__dict__[SEEN] = copy.copy(forward_batch)
    setattr(forward_batch, PART, ShortPart(torch.empty(0, dtype=torch.int64, device=positions.device)))
    return fast_prefill.forward(model, input_ids, input_embeds, per_layer_inputs, positions, forward_batch, _fill_between_pieces)


def take_captured(model: Any) -> Any:
    """The batch of this model's last capture. Later calls, or calls without a capture, return None."""
    return model.__dict__.pop(SEEN, None)


def plan(model: Any, forward_batch: Any, static_batch: Any, backend: Any) -> str | None:
    """Before a replay: decide the short part of ``forward_batch`` and store it in ``static_batch``.

    ``static_batch`` is the padded view that is replayed.
    Returns:
        Why all rows go through all layers, or None. If so, all rows are the short part, since those layers are not in
        the graph.
    """
    if not model.__dict__.get(SHORT, False):
        return None
    problem = read_rows.reason_against_batch(forward_batch.input_ids.shape[0], forward_batch)
    spans = read_rows.of_batch(forward_batch)
    if problem is not None:
        spans = Spans(spans.lengths, spans.lengths)
    setattr(static_batch, PART, fast_prefill.short_part(model, spans, forward_batch, backend))
    return problem


def plan_joined(model: Any, static_batch: Any, kinds: TwoKinds) -> None:
    """As :func:`plan`, for a replay of a mixed batch whose attention is in ``kinds``; notes reasons against it."""
    if not model.__dict__.get(SHORT, False):
        return
    prefill = kinds.parts[0]
    problem = read_rows.reason_against_batch(prefill.rows, prefill.batch)
    spans = read_rows.of_batch(prefill.batch)
    if not takes("yoco", problem, "a prefill goes through all layers"):
        spans = Spans(spans.lengths, spans.lengths)
    setattr(static_batch, PART, fast_prefill.short_part_beside(model, spans, *kinds.parts))


@eager_on_graph
def _fill_between_pieces(
    model: Any, hidden_states: torch.Tensor, per_layer_inputs: torch.Tensor | None, positions: torch.Tensor, out: torch.Tensor
) -> None:
    """:func:`fast_prefill.fill_rows` for the batch of this replay; the arguments are the buffers of the capture."""
    part: ShortPart = getattr(get_forward_batch(), PART)
    # Inside a replay SGLang's attention for an extension takes the batch from there, too.
    with set_forward_batch(part.batch):
        fast_prefill.fill_rows(part, model, hidden_states, per_layer_inputs, positions, out)
