"""Tensors that must survive when a server releases the memory of its weights and resumes later.

``/release_memory_occupation`` discards all that loading a model allocated. A trainer loads the parameters again; of the tensors that no
checkpoint has, SGLang saves only the target's buffers. The MTP assistant's buffers and plain tensors would be lost.
"""

from collections.abc import Sequence
from typing import Any

import torch

from sglang_gemma4.models.derived import scratch

PLAIN = ("per_layer_input_scale", "per_layer_projection_scale")
"""Tensors of a ``Gemma4TextModel`` with per-layer embeddings that are neither parameters nor buffers."""
DRAFTS = "sglang_gemma4_drafts"


def keep_constants(model: torch.nn.Module) -> None:
    """Make the plain tensors of a ``Gemma4TextModel`` buffers."""
    for name in PLAIN:
        value = model.__dict__.get(name)
        if isinstance(value, torch.Tensor):
            del model.__dict__[name]
            scratch(model, name, value)


def are_weights(tags: Sequence[str] | None) -> bool:
    """Whether a release or resume with these tags includes the weights; without tags it includes everything."""
    return not tags or "weights" in tags


def keep_drafts(manager: Any) -> list[tuple[Any, Any]]:
    """Copy the buffers of each draft model before a release: (model, copies) pairs. ``manager`` is the scheduler's weight updater."""
    from sglang.srt.managers.scheduler_components.weight_updater import _export_static_state

    return [(runner.model, _export_static_state(runner.model)) for _, runner in manager._select_runners("draft")]


def restore_drafts(kept: Sequence[tuple[Any, Any]]) -> None:
    """Put the copies of :func:`keep_drafts` back after a resume."""
    from sglang.srt.managers.scheduler_components.weight_updater import _import_static_state

    for model, state in kept:
        _import_static_state(model, state)
