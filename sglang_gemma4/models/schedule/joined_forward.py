"""One forward of the target for two batches: a prefill, and the decode or verify rows of other requests.

The linear layers and experts see all rows at once, attention takes each batch with its own kernels (:mod:`attention.two_kinds`), and the
logits of each are made as for that batch alone. Nothing of the two batches is merged, so whoever made one of them gets the output he waits
for. No CUDA graph is replayed: the sizes of the two vary independently. The host does not wait for the device: what metadata are sized
by is known to it (:func:`window_buffers`).
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsMetadata
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context, get_attn_backend, has_forward_context
from sglang.srt.model_executor.model_runner import ModelRunnerOutput
from sglang.srt.runtime_context import get_model

from sglang_gemma4.attention import second_metadata
from sglang_gemma4.attention.two_kinds import Part, TwoKinds

_BY_ROW = ("input_ids", "positions", "out_cache_loc")
_BY_REQUEST = (
    "req_pool_indices", "seq_lens", "seq_lens_sum", "seq_lens_cpu", "req_pool_indices_cpu", "orig_seq_lens", "extend_seq_lens",
    "extend_prefix_lens", "extend_start_loc", "extend_seq_lens_cpu", "extend_prefix_lens_cpu", "extend_logprob_start_lens_cpu",
    "kv_loc_plan", "sampling_info", "spec_info", "mm_inputs", "lora_ids", "rids", "next_token_logits_buffer",
    "global_num_token_non_padded", "num_token_non_padded", "out_cache_loc_virtual",
)  # fmt: skip
"""Only the parts have them: a layer that asked the joined batch would get an error, not the numbers of one part. Media are an exception."""


def joined(prefill: Any, running: Any) -> Any:
    """The ``ForwardBatch`` that the layers see: rows of ``prefill``, then those of ``running``.

    It is a prefill in name, so that no layer takes it for a decode step of few rows.
    """
    both = copy.copy(prefill)
    for name in _BY_ROW:
        rows = [getattr(prefill, name), getattr(running, name)]
        setattr(both, name, None if any(own is None for own in rows) else torch.cat(rows))
    for name in _BY_REQUEST:
        setattr(both, name, None)
    if prefill.mm_inputs is not None:  # embedded by request; requests without media are skipped
        both.mm_inputs = [*prefill.mm_inputs, *[None] * running.batch_size]
        both.extend_prefix_lens_cpu = [*prefill.extend_prefix_lens_cpu, *[0] * running.batch_size]
        each = running.input_ids.shape[0] // running.batch_size
        both.extend_seq_lens_cpu = [*prefill.extend_seq_lens_cpu, *[each] * running.batch_size]
    both.batch_size = prefill.batch_size + running.batch_size
    both.extend_num_tokens = both.global_num_token_non_padded_cpu = both.out_cache_loc.shape[0]
    both.forward_mode = ForwardMode.EXTEND
    both.return_logprob = False
    both.residual_stream = None
    return both


def forward(runner: Any, prefill: Any, running: Any, held: Sequence[int] | None = None) -> tuple[Any, Any]:
    """The ``ModelRunnerOutput`` of each batch, from one forward of ``runner``'s model.

    Args:
        prefill: a ``ForwardBatch`` of mode EXTEND.
        running: one of mode DECODE or TARGET_VERIFY, with other requests.
        held: slots of the KV pool that each request of ``running`` has; for batches whose lengths are on the device only.
    """
    backend = runner.attn_backend
    if running.seq_lens_cpu is None and held is not None:
        running.seq_lens_sum = sum(held)  # of such a batch, backends only take it as a size
    with keys_before(running, held):
        second = second_metadata.prepare(backend, running)
    with keys_before(prefill):  # last: what parts share, such as the masks of images, is then the prefill's
        backend.init_forward_metadata(prefill)
    both = joined(prefill, running)
    kinds = TwoKinds([Part(each.input_ids.shape[0], each, own) for each, own in ((prefill, backend), (running, second))])
    runner.forward_pass_id += 1
    with (
        get_model().override(shared_experts=runner.model.shared_experts_config),
        forward_context(ForwardContext(attn_backend=kinds), forward_batch=both),
    ):
        runner._prepare_eager_forward_batch(both)
        outputs = runner.model.forward(both.input_ids, both.positions, both)
    of_prefill, of_running = (ModelRunnerOutput(logits_output=output, can_run_graph=False) for output in outputs)
    return of_prefill, of_running


_lengths: ContextVar[Sequence[int] | None] = ContextVar("keys_before", default=None)


@contextmanager
def keys_before(batch: Any, held: Sequence[int] | None = None) -> Iterator[None]:
    """While the metadata of a ``ForwardBatch`` are prepared: how many keys each of its requests has in the KV pool, or more.

    Args:
        held: for batches whose lengths are on the device only.
    """
    if batch.forward_mode == ForwardMode.EXTEND:
        lengths = batch.extend_prefix_lens_cpu
    else:
        lengths = held if batch.seq_lens_cpu is None else batch.seq_lens_cpu.tolist()
    token = _lengths.set(lengths)
    try:
        yield
    finally:
        _lengths.reset(token)


def window_buffers(
    original: Callable[..., Any],
    window_kv_indptr: torch.Tensor,
    translator: Any,
    plan: Any,
    req_pool_indices: torch.Tensor,
    sliding_window_size: int,
    *others: Any,
    **more: Any,
) -> Any:
    """Around triton's ``update_sliding_window_buffer``: a joined forward's indices are sized by the host's lengths.

    SGLang reads the size from the device, so the host would wait for all that it has launched, and the device for the layers' launches.
    """
    lengths = _lengths.get()
    if lengths is not None and len(others) < 5 and more.get("window_kv_indices") is None:
        size = sum(min(length, sliding_window_size) for length in lengths)
        more["window_kv_indices"] = torch.empty(size, dtype=torch.int64, device=window_kv_indptr.device)
    return original(window_kv_indptr, translator, plan, req_pool_indices, sliding_window_size, *others, **more)


def masks_of_parts(original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``prepare_attn_masks``: a part's images are masked by its own backend, which has described them with its metadata."""
    if not isinstance(get_attn_backend(), TwoKinds):
        original(model, *args, **kwargs)


def logits_of_each(
    original: Callable[..., Any], processor: Any, input_ids: Any, hidden_states: Any, lm_head: Any, metadata: Any, *others: Any, **more: Any
) -> Any:
    """Around ``LogitsProcessor.forward``: in a joined forward the outputs of its parts, each made as for that part alone."""
    kinds = get_attn_backend() if has_forward_context() else None
    if not isinstance(kinds, TwoKinds):
        return original(processor, input_ids, hidden_states, lm_head, metadata, *others, **more)
    if any(other is not None for other in (*others, *more.values())):
        raise ValueError("a joined forward has hidden states of its last layer only; hidden states of other layers are captured")
    states = kinds.split(hidden_states)
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
    """The logits of each part, from one product with the head's weights, which are read once; only rows that are read go through.

    A verify head that is deferred elsewhere (``layers/verify_head``) is not here: the last rows of prompts need logits anyhow.
    """
    read = [processor._get_pruned_states(own, None, None, each)[0] for own, each in zip(states, metadata, strict=True)]
    logits: torch.Tensor = processor._get_logits(torch.cat(read), lm_head, LogitsMetadata(forward_mode=ForwardMode.EXTEND))
    return list(logits.split([len(rows) for rows in read]))


@contextmanager
def _given(processor: Any, logits: torch.Tensor | None) -> Iterator[None]:
    """``processor`` takes these logits in place of a product with the head; with None it computes its own."""
    if logits is not None:
        vars(processor)["_get_logits"] = lambda *_args, **_kwargs: logits
    try:
        yield
    finally:
        vars(processor).pop("_get_logits", None)
