"""One forward of the target for two batches: a prefill, and the decode or verify rows of other requests.

The linear layers and experts see all rows at once, attention takes each batch with its own kernels (:mod:`attention.two_kinds`), and the
logits of each are made as for that batch alone. Nothing of the two batches is merged, so whoever made one of them gets the output he waits
for. Graphs are not used: the sizes of the two vary independently.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
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
"""Only the parts have them: a layer that asked the joined batch would get an error, not the numbers of one part."""


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
    both.batch_size = prefill.batch_size + running.batch_size
    both.extend_num_tokens = both.global_num_token_non_padded_cpu = both.out_cache_loc.shape[0]
    both.forward_mode = ForwardMode.EXTEND
    both.return_logprob = False
    both.residual_stream = None
    return both


def forward(runner: Any, prefill: Any, running: Any) -> tuple[Any, Any]:
    """The ``ModelRunnerOutput`` of each batch, from one forward of ``runner``'s model.

    Args:
        prefill: a ``ForwardBatch`` of mode EXTEND.
        running: one of mode DECODE or TARGET_VERIFY, with other requests.
    """
    backend = runner.attn_backend
    second = second_metadata.prepare(backend, running)
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


def logits_of_each(
    original: Callable[..., Any], processor: Any, input_ids: Any, hidden_states: Any, lm_head: Any, metadata: Any, *others: Any, **more: Any
) -> Any:
    """Around ``LogitsProcessor.forward``: in a joined forward the outputs of its parts, each made as for that part alone."""
    kinds = get_attn_backend() if has_forward_context() else None
    if not isinstance(kinds, TwoKinds):
        return original(processor, input_ids, hidden_states, lm_head, metadata, *others, **more)
    if any(other is not None for other in (*others, *more.values())):
        raise ValueError("a joined forward has hidden states of its last layer only; hidden states of other layers are captured")
    rows = zip(kinds.parts, kinds.split(hidden_states), strict=True)
    return tuple(original(processor, part.batch.input_ids, own, lm_head, part.batch) for part, own in rows)
