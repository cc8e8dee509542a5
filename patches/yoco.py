"""In a prefill, the layers that share KV see only the rows whose output somebody reads."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, note


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
    from sglang_gemma4.models import fast_prefill as fast
    from sglang_gemma4.models import read_rows

    ids_or_embeds = (input_ids is None) is not (input_embeds is None)  # SGLang's forward refuses both, and neither
    if ids_or_embeds and read_rows.is_prefill(forward_batch):
        reason = read_rows.model_problem(model) or read_rows.batch_problem(positions.shape[0], model.dtype(), forward_batch)
        if reason is None and kwargs:
            reason = f"the model was called with {', '.join(sorted(kwargs))}"
        if reason is not None:
            note("yoco", f"a prefill goes through all layers: {reason}")
        elif (part := fast.plan(positions, forward_batch)) is not None:
            return fast.forward(model, input_ids, input_embeds, per_layer_inputs, positions, forward_batch, part)
    return original(model, input_ids, positions, forward_batch, input_embeds, per_layer_inputs, pp_proxy_tensors, **kwargs)


PATCH = Patch(
    name="yoco",
    switch="SGLANG_GEMMA4_YOCO",
    why="20 of E2B's 35 layers, 18 of E4B's 42, write no KV: what they compute for a prompt's rows is read at its last row only.",
    evidence="srt/models/gemma4_causal.py:540 · srt/layers/logits_processor.py:668 (a prefill is pruned after the last layer)",
    remove_when="Gemma4TextModel.forward prunes a prefill where its layers begin to share KV.",
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.forward", "around", fast_prefill, "e83830e23e96"),),
)
