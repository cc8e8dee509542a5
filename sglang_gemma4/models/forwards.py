"""Hooks around forwards of a built model's layers."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.models import build
from sglang_gemma4.patching import switches, takes


def queries_only(
    original: Callable[..., Any], attention: Any, positions: Any, hidden_states: Any, forward_batch: Any, **kwargs: Any
) -> Any:
    """Around ``Gemma4Attention.forward``: a KV-shared layer computes queries only."""
    if not attention.is_kv_shared_layer or attention.kv_shared_layer_index is None:
        return original(attention, positions, hidden_states, forward_batch, **kwargs)
    from sglang_gemma4.models.layers import shared_query

    if not takes("shared_query", shared_query.reason_against(attention)):
        return original(attention, positions, hidden_states, forward_batch, **kwargs)
    return shared_query.forward(attention, positions, hidden_states, forward_batch)


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
    """Around ``Gemma4TextModel.forward``: a prefill's KV-shared layers compute only rows that are read (``yoco``)."""
    from functools import partial

    from sglang_gemma4.models.schedule import fast_prefill as fast
    from sglang_gemma4.models.schedule import fast_prefill_graph, read_rows

    ids_or_embeds = (input_ids is None) is not (input_embeds is None)  # SGLang's forward refuses both or neither
    if ids_or_embeds and read_rows.is_prefill(forward_batch):
        given = (model, input_ids, input_embeds, per_layer_inputs, positions, forward_batch)
        reason = read_rows.reason_against_model(model) or read_rows.reason_against_backend(
            fast.prefill_in(forward_batch).backend, model.dtype()
        )
        if reason is None and kwargs:
            reason = f"the model was called with {', '.join(sorted(kwargs))}"
        if reason is None and fast_prefill_graph.capturing():
            return fast_prefill_graph.capture(*given)
        reason = reason or read_rows.reason_against_batch(*fast.prefill_in(forward_batch, positions)[:2])
        if reason is not None:
            takes("yoco", reason, INSTEAD)
        elif (part := fast.plan(model, forward_batch)) is not None:
            takes("yoco", None)
            return fast.forward(*given, partial(fast.fill_rows, part))
    return original(model, input_ids, positions, forward_batch, input_embeds, per_layer_inputs, pp_proxy_tensors, **kwargs)


def plan_replay(result: tuple[Any, Any], runner: Any, forward_batch: Any, **_kwargs: Any) -> None:
    """After ``PrefillCudaGraphRunner.load_batch``, which returns the replayed batch first: plan the rows to be read."""
    from sglang_gemma4.models.schedule import fast_prefill_graph

    if type(runner.layer_model).__name__ == "Gemma4TextModel" and runner.layer_model.__dict__.get(fast_prefill_graph.SHORT, False):
        reason = fast_prefill_graph.plan(runner.layer_model, forward_batch, result[0], runner.model_runner.attn_backend)
        takes("yoco", reason, INSTEAD)


def read_after_attention(
    original: Callable[..., Any],
    read: Any,
    update: Any,
    hidden_states: Any,
    residual: Any,
    norm: Any,
    quant_format: str = "",
    post_residual_addition: Any = None,
) -> Any:
    """Around ``_TransformedRead.update_and_read``: the residual and norms after attention, once its sum is complete."""
    from sglang_gemma4.models.layers.decoder_layer import no_rows

    norms = getattr(norm, build.NORMS, None)
    if norms is None or residual is None or no_rows(hidden_states):
        return original(read, update, hidden_states, residual, norm, quant_format, post_residual_addition)
    problem = norms.reason_against(read, update, hidden_states, residual, quant_format, post_residual_addition)
    if not takes("triple_norm", problem):
        return original(read, update, hidden_states, residual, norm, quant_format, post_residual_addition)
    return norms.read(hidden_states, residual)


def next_stream(
    original: Callable[..., Any], layer: Any, hidden_states: Any, residual: Any, per_layer_input: Any, forward_batch: Any
) -> Any:
    """Around ``Gemma4DecoderLayer._next_stream``, for layers without per-layer embeddings; ``ple_tail`` has others."""
    from sglang_gemma4.models.layers import decoder_layer

    if layer.has_ple or decoder_layer.no_rows(hidden_states):
        return original(layer, hidden_states, residual, per_layer_input, forward_batch)
    if not takes("layer_tail", decoder_layer.reason_against_tail(layer, hidden_states, residual)):
        return original(layer, hidden_states, residual, per_layer_input, forward_batch)
    return decoder_layer.next_stream(layer, hidden_states, residual, forward_batch)


def ple_tail_next_stream(
    original: Callable[..., Any], layer: Any, hidden_states: Any, residual: Any, per_layer_input: Any, forward_batch: Any
) -> Any:
    """Around ``Gemma4DecoderLayer._next_stream``, for layers with per-layer embeddings."""
    from sglang_gemma4.models.layers import decoder_layer

    if not layer.has_ple or per_layer_input is None or decoder_layer.no_rows(hidden_states):
        return original(layer, hidden_states, residual, per_layer_input, forward_batch)
    if not takes("ple_tail", decoder_layer.reason_against_ple(layer, hidden_states, residual, per_layer_input)):
        return original(layer, hidden_states, residual, per_layer_input, forward_batch)
    return decoder_layer.next_stream_with_ple(layer, hidden_states, residual, per_layer_input, forward_batch)


def normed_and_rotated(
    original: Callable[..., Any], attention: Any, positions: Any, hidden_states: Any, forward_batch: Any, **kwargs: Any
) -> Any:
    """Around ``Gemma4Attention.forward``, and around ``shared_query`` if that is on: norms and RoPE in one launch."""
    from sglang_gemma4.models.layers import kv_write, qkv_rope, shared_query

    problem = qkv_rope.reason_against(attention, positions, hidden_states)
    if not takes("qkv_rope", problem):
        if kv_write.is_wanted():
            takes("kv_write", problem, "SGLang's norms and rotation run")
        return original(attention, positions, hidden_states, forward_batch, **kwargs)
    if qkv_rope.shares_kv(attention):
        queries_only = switches.part_is_on("shared_query", "SGLANG_GEMMA4_QKV") and shared_query.reason_against(attention) is None
        return qkv_rope.forward(attention, positions, hidden_states, forward_batch, queries_only=queries_only)
    where = kv_write.destination(attention, hidden_states, forward_batch)
    if isinstance(where, str):
        takes("kv_write", where)
        where = None
    elif where is not None:
        takes("kv_write", None)
    return qkv_rope.forward(attention, positions, hidden_states, forward_batch, where=where)
