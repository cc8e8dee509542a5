"""One forward of the target for a mixed batch: a prefill, and the decode or verify rows of other requests.

The linear layers and experts see all rows at once. Attention runs each part's own kernels (:mod:`attention.two_kinds`),
and the logits of each part are computed as for that part alone. The two batches are not merged, so each caller gets the
output that it waits for. If the server has prefill graphs they are replayed (:mod:`joined_graph`), else layers are
launched kernel by kernel.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsMetadata
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context, get_attn_backend, has_forward_context
from sglang.srt.model_executor.model_runner import ModelRunnerOutput
from sglang.srt.runtime_context import get_model

from sglang_gemma4.attention import second_metadata
from sglang_gemma4.attention.two_kinds import Part, TwoKinds
from sglang_gemma4.models.schedule import joined_graph
from sglang_gemma4.models.schedule.joined_batch import joined, keys_before
from sglang_gemma4.patching import note


def forward(runner: Any, prefill: Any, running: Any, held: Sequence[int] | None = None) -> tuple[Any, Any]:
    """The ``ModelRunnerOutput`` of each batch, from one forward of ``runner``'s model.

    Args:
        prefill: a ``ForwardBatch`` of mode EXTEND.
        running: one of mode DECODE or TARGET_VERIFY, with other requests.
        held: slots of the KV pool that each request of ``running`` has; for batches whose lengths are only on the
        device.
    """
    backend = runner.attn_backend
    if running.seq_lens_cpu is None and held is not None:
        running.seq_lens_sum = sum(held)  # for such a batch, backends use it only as a size
    with keys_before(running, held):
        second = second_metadata.prepare(backend, running)
    with keys_before(prefill):  # last, so that what the parts share, such as the masks of images, is the prefill's
        backend.init_forward_metadata(prefill)
    parts = [Part(each.input_ids.shape[0], each, own) for each, own in ((prefill, backend), (running, second))]
    graphs, problem = joined_graph.graphs_of(runner), None
    if graphs is not None:
        rows, requests = sum(part.rows for part in parts), prefill.batch_size + running.batch_size
        problem = joined_graph.reason_against(graphs, prefill, rows, requests)
    if problem is not None:
        note("prefill_beside", f"a mixed batch is launched kernel by kernel: {problem}")
    replays = graphs is not None and problem is None
    whole = joined_graph.whole(graphs, *parts) if replays else None
    in_order = slice(None) if whole is None else slice(None, None, -1)  # in whole graphs the running requests come first
    both = joined(prefill, running, running_first=whole is not None)
    kinds = TwoKinds(parts[in_order])
    runner.forward_pass_id += 1
    with (
        get_model().override(shared_experts=runner.model.shared_experts_config),
        forward_context(ForwardContext(attn_backend=kinds), forward_batch=both),
    ):
        runner._prepare_eager_forward_batch(both)
        replayed = joined_graph.replay(graphs, both, kinds, whole) if replays else None
        outputs = replayed or runner.model.forward(both.input_ids, both.positions, both)
    graph = replayed is not None  # for SGLang's log and metrics
    of_prefill, of_running = [ModelRunnerOutput(logits_output=output, can_run_graph=graph) for output in outputs][in_order]
    return of_prefill, of_running


def masks_of_parts(original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``prepare_attn_masks``: skip it for a mixed batch.

    A part's images are masked by its own backend, which has described them with its metadata.
    """
    if not isinstance(get_attn_backend(), TwoKinds):
        original(model, *args, **kwargs)


def logits_of_each(
    original: Callable[..., Any], processor: Any, input_ids: Any, hidden_states: Any, lm_head: Any, metadata: Any, *others: Any, **more: Any
) -> Any:
    """Around ``LogitsProcessor.forward``: for a mixed batch, one output per part, computed as for that part alone."""
    kinds = get_attn_backend() if has_forward_context() else None
    if not isinstance(kinds, TwoKinds):
        return original(processor, input_ids, hidden_states, lm_head, metadata, *others, **more)
    if any(other is not None for other in (*others, *more.values())):
        raise ValueError("a mixed batch has hidden states of its last layer only; hidden states of other layers are captured")
    states = kinds.split(hidden_states[: kinds.rows])  # a graph returns as many rows as its size
    heads: list[Any] = [None] * len(kinds.parts)
    metadata = [LogitsMetadata.from_forward_batch(part.batch) for part in kinds.parts]
    if not any(each.extend_return_logprob for each in metadata):  # a prompt's own log-probabilities go through the head in pieces
        heads = _one_head(processor, lm_head, metadata, states)
    outputs = []
    for part, own, logits in zip(kinds.parts, states, heads, strict=True):
        with _given(processor, logits):
            outputs.append(original(processor, part.batch.input_ids, own, lm_head, part.batch))
    return tuple(outputs)


def _one_head(processor: Any, lm_head: Any, metadata: list[LogitsMetadata], states: list[Any]) -> list[torch.Tensor]:
    """The logits of each part, only for rows that are read, from one GEMM that reads the head's weights once."""
    read = [processor._get_pruned_states(own, None, None, each)[0] for own, each in zip(states, metadata, strict=True)]
    logits: torch.Tensor = processor._get_logits(torch.cat(read), lm_head, LogitsMetadata(forward_mode=ForwardMode.EXTEND))
    return list(logits.split([len(rows) for rows in read]))


@contextmanager
def _given(processor: Any, logits: torch.Tensor | None) -> Iterator[None]:
    """Inside, ``processor`` uses these logits instead of a GEMM with the head; with None it computes its own."""
    if logits is not None:
        vars(processor)["_get_logits"] = lambda *_args, **_kwargs: logits
    try:
        yield
    finally:
        vars(processor).pop("_get_logits", None)
