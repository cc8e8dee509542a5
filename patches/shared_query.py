"""Layers that share KV (the MTP draft's; E2B: 20 of 35) project queries only."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, takes, uses


def queries_only(
    original: Callable[..., Any], attention: Any, positions: Any, hidden_states: Any, forward_batch: Any, **kwargs: Any
) -> Any:
    """Around ``Gemma4Attention.forward``."""
    if not attention.is_kv_shared_layer or attention.kv_shared_layer_index is None:
        return original(attention, positions, hidden_states, forward_batch, **kwargs)
    from sglang_gemma4.models.layers import shared_query

    if not takes("shared_query", shared_query.reason_against(attention)):
        return original(attention, positions, hidden_states, forward_batch, **kwargs)
    return shared_query.forward(attention, positions, hidden_states, forward_batch)


PATCH = Patch(
    switch="SGLANG_GEMMA4_QKV",
    why="Layers that share KV, all of the MTP draft's and 20 of E2B's 35, project keys and values and rotate zeros that nobody reads.",
    evidence="srt/models/gemma4_causal.py:448, 531 · timed only with frozen_chain and draft_graph, on 26B-A4B",
    remove_when="Gemma4Attention projects queries only where it shares KV.",
    uses=(uses.shared_kv_or_draft,),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4Attention.forward", "around", queries_only, "35891e1c7d9e"),),
)
