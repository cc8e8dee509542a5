"""Makes a pipeline stage hold the KV of its own layers only.

SGLang asks the model class for ``start_layer`` and ``end_layer``. Gemma 4's classes have them on the inner text model,
so every stage gets buffers for the KV of all layers. All stages must have a full and a sliding pool of the same number
of tokens, since each schedules by its own pools. A stage without a layer of one type therefore gets buffers for one
such layer, which nothing reads.
"""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.models.config_files import named_gemma4


def text_model(model: Any) -> Any:
    """The ``Gemma4TextModel`` of a Gemma 4 target's model, or None for another model and for a draft."""
    inner = getattr(model, "language_model", None) or getattr(model, "model", None)
    return inner if type(inner).__name__ == "Gemma4TextModel" else None


def own_range(original: Callable[..., Any], *, model: Any, model_num_layers: int) -> Any:
    """Around ``_resolve_pp_layer_range``: the range of the text model.

    The unified pool keeps all layers: it counts a layer's place among its type from the stage's first
    (unified_memory_pool.py:1902).
    """
    from sglang.srt.runtime_context import get_memory

    inner = None if get_memory().enable_unified_memory else text_model(model)
    return original(model=model if inner is None else inner, model_num_layers=model_num_layers)


def with_both_types(found: tuple[Any, Any], *, model_config: Any, owned_layers: range) -> tuple[Any, Any]:
    """After ``_resolve_local_hybrid_swa_layer_ids``: the sliding and the full layers of a stage, at least one of each.

    Args:
        found: ids of the stage's sliding and full layers; both None for a model without the split.
        model_config: SGLang's, with the ids of all layers.
    """
    if not any(found) or not named_gemma4(model_config.hf_config):
        return found
    every = model_config.swa_attention_layer_ids, model_config.full_attention_layer_ids
    sliding, full = (own or all_of_type[:1] for own, all_of_type in zip(found, every, strict=True))
    return sliding, full
