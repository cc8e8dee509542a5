"""The norms of queries, keys and values and their rotation are one launch."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, switches, takes, uses


def normed_and_rotated(
    original: Callable[..., Any], attention: Any, positions: Any, hidden_states: Any, forward_batch: Any, **kwargs: Any
) -> Any:
    """Around ``Gemma4Attention.forward``, and around ``shared_query`` where that is on too."""
    from sglang_gemma4.models.layers import kv_write, qkv_rope, shared_query

    problem = qkv_rope.problem_with(attention, positions, hidden_states)
    if not takes("qkv_rope", problem):
        if kv_write.is_wanted():
            takes("kv_write", problem, "SGLang's norms and rotation run")
        return original(attention, positions, hidden_states, forward_batch, **kwargs)
    if qkv_rope.shares_kv(attention):
        queries_only = switches.part_is_on("shared_query", PATCH.switch) and shared_query.reason_against(attention) is None
        return qkv_rope.forward(attention, positions, hidden_states, forward_batch, queries_only=queries_only)
    where = kv_write.destination(attention, hidden_states, forward_batch)
    if isinstance(where, str):
        takes("kv_write", where)
        where = None
    elif where is not None:
        takes("kv_write", None)
    return qkv_rope.forward(attention, positions, hidden_states, forward_batch, where=where)


PATCH = Patch(
    switch="SGLANG_GEMMA4_QKV",
    why="Stock norms q, k and v in one launch, rotates in another, copies k and v to be contiguous in two more (verify, prefill), and "
    "rotates a zero key in layers that share KV.",
    evidence="srt/models/gemma4_causal.py:448-531 · runs/2026-11-21-26b-mtp-v2 (qkv_rmsnorm 42, rope 42 and 60 strided copies a step) · "
    "the kernel alone 1.8 to 4.6 times as fast · with kv_write, 26B-A4B's MTP steps 6.0, 2.2, 1.8 and 2.8 % shorter at batch 1, 8, 32 and "
    "64, runs/2026-11-23-26b-pieces",
    remove_when="SGLang's Gemma4Attention rotates in the launch that norms.",
    uses=(uses.kernels, uses.any_batch),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4Attention.forward", "around", normed_and_rotated, "35891e1c7d9e"),),
)
