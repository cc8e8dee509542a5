"""Layers that share KV see only the rows of a prompt that are read, the last one and those of log-probabilities."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, takes, uses

INSTEAD = "a prefill goes through all layers"


def fast_prefill(
    original: Callable[..., Any],
    model: Any,
    input_ids: Any,
    positions: Any,
    forward_batch: Any,
    input_embeds: Any = None,
    per_layer_inputs: Any = None,
    pp_proxy_tensors: Any = None,
    **kwargs: Any,
) -> Any:
    """Around ``Gemma4TextModel.forward``."""
    from functools import partial

    from sglang_gemma4.models.schedule import fast_prefill as fast
    from sglang_gemma4.models.schedule import fast_prefill_graph, read_rows

    ids_or_embeds = (input_ids is None) is not (input_embeds is None)  # SGLang's forward refuses both, and neither
    if ids_or_embeds and read_rows.is_prefill(forward_batch):
        given = (model, input_ids, input_embeds, per_layer_inputs, positions, forward_batch)
        reason = read_rows.model_problem(model) or read_rows.backend_problem(fast.prefill_in(forward_batch).backend, model.dtype())
        if reason is None and kwargs:
            reason = f"the model was called with {', '.join(sorted(kwargs))}"
        if reason is None and fast_prefill_graph.capturing():
            return fast_prefill_graph.capture(*given)
        reason = reason or read_rows.batch_problem(*fast.prefill_in(forward_batch, positions)[:2])
        if reason is not None:
            takes("yoco", reason, INSTEAD)
        elif (part := fast.plan(model, forward_batch)) is not None:
            takes("yoco", None)
            return fast.forward(*given, partial(fast.fill_rows, part))
    return original(model, input_ids, positions, forward_batch, input_embeds, per_layer_inputs, pp_proxy_tensors, **kwargs)


def plan_replay(result: tuple[Any, Any], runner: Any, forward_batch: Any, **_kwargs: Any) -> None:
    """After ``PrefillCudaGraphRunner.load_batch``, which returns the batch that is replayed and another thing."""
    from sglang_gemma4.models.schedule import fast_prefill_graph

    if type(runner.layer_model).__name__ == "Gemma4TextModel" and runner.layer_model.__dict__.get(fast_prefill_graph.SHORT, False):
        reason = fast_prefill_graph.plan(runner.layer_model, forward_batch, result[0], runner.model_runner.attn_backend)
        takes("yoco", reason, INSTEAD)


PATCH = Patch(
    switch="SGLANG_GEMMA4_YOCO",
    why="20 of E2B's 35 layers, 18 of E4B's 42, write no KV: what they compute for a prompt's rows is read at its last row only.",
    evidence="srt/models/gemma4_causal.py:540 · srt/layers/logits_processor.py:668 (a prefill is pruned after the last layer) · "
    "model_executor/runner/prefill_cuda_graph_runner.py:1845 (what a replay's batch is) · 30 prompts of 7,000 tokens on an "
    "H200, all defaults: E2B 1.9 times stock's throughput, 2.0 times under MTP, two passes each, runs/2026-11-22-e2b-yoco; E4B "
    "1.9 times, three, runs/2026-11-22-e4b-yoco",
    remove_when="Gemma4TextModel.forward prunes a prefill where its layers begin to share KV.",
    uses=(uses.shared_kv, uses.any_batch),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.forward", "around", fast_prefill, "e83830e23e96"),
        Hook(
            "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.load_batch",
            "after",
            plan_replay,
            "f587ddb3656b",
        ),
    ),
)
