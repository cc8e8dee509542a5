"""Runs a mixed batch by graphs of SGLang's prefill runner: whole, with attention (:mod:`whole_graphs`), or in pieces.

In pieces, SGLang's breakable graph is replayed piece by piece, with the attention of each part in Python between them.
The pieces know tokens, not requests, so prompt rows and verify rows are the same to them. Launched kernel by kernel, a
mixed batch takes the host as long as any eager prefill (``prefill_sizes.LAUNCH_SECONDS`` a layer). For a short chunk
that is longer than the GPU needs.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.model_executor.runner.prefill_cuda_graph_runner import PrefillCudaGraphRunner
from sglang.srt.model_executor.runner_backend.breakable_cuda_graph_backend import BreakableCudaGraphBackend

from sglang_gemma4.attention.two_kinds import Part, TwoKinds
from sglang_gemma4.models.schedule import fast_prefill_graph, host_loads, whole_graphs
from sglang_gemma4.models.schedule.joined_batch import BY_ROW
from sglang_gemma4.models.schedule.whole_graphs import WholeGraphs
from sglang_gemma4.patching import note


def graphs_of(runner: Any) -> PrefillCudaGraphRunner | None:
    """The breakable prefill graphs of a ``ModelRunner``, or None."""
    graphs = runner.prefill_cuda_graph_runner
    return graphs if isinstance(graphs, PrefillCudaGraphRunner) and isinstance(graphs.backend, BreakableCudaGraphBackend) else None


def reason_against(graphs: PrefillCudaGraphRunner, prefill: Any, rows: int, requests: int) -> str | None:
    """Why no graph is replayed for ``rows`` rows of ``requests`` requests, of which ``prefill`` is a part; or None."""
    if rows > graphs.max_num_tokens:
        return f"more tokens than the {graphs.max_num_tokens} of the largest prefill graph"
    if graphs.use_captured_attn_metadata:
        return "the attention backend captures its metadata"
    fits = graphs.can_replay_locally(
        batch_size=requests,
        num_tokens=rows,
        input_embeds=prefill.input_embeds,
        replace_embeds=prefill.replace_embeds,
        prefix_lens=prefill.extend_prefix_lens_cpu,
        is_target_verify=False,
        capture_hidden_mode=prefill.capture_hidden_mode,
        return_logprob=prefill.return_logprob,
        lora_ineligible=graphs.enable_lora,
        contains_mm_inputs=prefill.contains_mm_inputs(),
    )
    return None if fits else "SGLang's rules for prefill graphs"


def whole(graphs: PrefillCudaGraphRunner, prefill: Part, running: Part) -> WholeGraphs | None:
    """The graphs of whole forwards, if one of them takes these parts, whose metadata are prepared."""
    found = whole_graphs.of(graphs)
    problem = None if found is None else found.reason_against(prefill, running)
    if problem is not None:
        note("prefill_beside", f"a mixed batch goes in pieces: {problem}")
    return found if problem is None else None


def replay(graphs: PrefillCudaGraphRunner, both: Any, kinds: TwoKinds, whole: WholeGraphs | None = None) -> Any:
    """What the model returns for ``both``, whose layers find the attention of each part in ``kinds``.

    As ``PrefillCudaGraphRunner.execute``, except for metadata of attention, which the parts have. With ``whole`` the
    parts of ``kinds`` are running requests and prompts, in this order.
    """
    runner, rows = graphs.model_runner, both.input_ids.shape[0]
    size = graphs._pad_to_bucket(rows, graphs.capture_num_tokens if whole is None else whole.sizes)
    with graphs.model_context(), graphs.backend.replay_session():
        graphs.raw_num_tokens, graphs.raw_bs = rows, both.batch_size
        graphs.buffer_registry.fill_from(
            both, raw_bs=both.batch_size, padded_bs=both.batch_size, raw_num_tokens=rows, padded_num_tokens=size
        )
        static = copy.copy(both)
        for name in BY_ROW:
            setattr(static, name, graphs.buffer_registry.get_slot(name).slice_for(both.batch_size, size))
        static = runner.prepare_dummy_forward_batch(static)
        if whole is None:
            key = graphs._shape_key(size, both)
        else:
            running, prompts = kinds.parts
            whole.kinds.fill(prompts, running)
            host_loads.wait_for_all(runner.token_to_kv_pool)  # between pieces each layer's attention waits for its own keys
            key = whole.key(size)
        with _attention(runner, kinds):
            fast_prefill_graph.plan_joined(graphs.layer_model, static, kinds)
            return graphs._execute_body_capture(both, static, size, rows, key)


@contextmanager
def _attention(runner: Any, kinds: TwoKinds) -> Iterator[None]:
    """Inside, SGLang's graphs find ``kinds`` as the attention backend of ``runner``."""
    kept = runner.attn_backend
    runner.attn_backend = kinds
    try:
        yield
    finally:
        runner.attn_backend = kept
