"""Tensors that must survive when a server releases the memory of its weights and resumes later.

``/release_memory_occupation`` discards all that loading a model allocated. A trainer loads the parameters again; of
the tensors that no checkpoint has, SGLang saves only the target's buffers. The MTP assistant's buffers and plain
tensors would be lost.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sglang_gemma4.models.derived import scratch

PLAIN = ("per_layer_input_scale", "per_layer_projection_scale")
"""Tensors of a ``Gemma4TextModel`` with per-layer embeddings that are neither parameters nor buffers."""
DRAFTS = "sglang_gemma4_drafts"


def keep_constants(_result: None, model: torch.nn.Module, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``: its plain tensors become buffers."""
    for name in PLAIN:
        value = model.__dict__.get(name)
        if isinstance(value, torch.Tensor):
            del model.__dict__[name]
            scratch(model, name, value)


def are_weights(tags: Sequence[str] | None) -> bool:
    """Whether a release or resume with these tags includes the weights; without tags it includes everything."""
    return not tags or "weights" in tags


def release(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around ``release_memory_occupation`` of the scheduler's weight updater: copy the draft models' buffers.

    The copies are kept beside SGLang's own copy of the target's.
    """
    from sglang.srt.managers.scheduler_components.weight_updater import _export_static_state

    drafts = [runner.model for _, runner in manager._select_runners("draft")] if are_weights(request.tags) else []
    kept = [(model, _export_static_state(model)) for model in drafts]
    reply = original(manager, request)
    if kept:
        manager.stashed_model_static_state[DRAFTS] = kept
    return reply


def resume(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around ``resume_memory_occupation``, which discards the copies: restore the draft models' buffers from theirs."""
    from sglang.srt.managers.scheduler_components.weight_updater import _import_static_state

    stash = getattr(manager, "stashed_model_static_state", None) or {}
    kept = stash.get(DRAFTS, []) if are_weights(request.tags) else []
    reply = original(manager, request)
    for model, state in kept:
        _import_static_state(model, state)
    return reply
