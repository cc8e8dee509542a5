"""Memory of weights that a server gives away while it sleeps, and what it must hold again when it wakes.

``/release_memory_occupation`` discards whatever loading a model allocated. A trainer loads the parameters again; what no checkpoint has,
SGLang keeps only where it is a buffer of the target. The MTP assistant's buffers, and what a model keeps as plain tensors, are lost.
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
    """Whether a release or a resume with these tags is one of the weights; none are all."""
    return not tags or "weights" in tags


def keep_drafts(manager: Any) -> list[tuple[Any, Any]]:
    """Before a release: each draft model of the scheduler's weight updater with a copy of its buffers."""
    from sglang.srt.managers.scheduler_components.weight_updater import _export_static_state

    return [(runner.model, _export_static_state(runner.model)) for _, runner in manager._select_runners("draft")]


def restore_drafts(kept: Sequence[tuple[Any, Any]]) -> None:
    """After a resume."""
    from sglang.srt.managers.scheduler_components.weight_updater import _import_static_state

    for model, state in kept:
        _import_static_state(model, state)
