"""Weights that come to a server with MTP while it runs: which of its two models they are for, and the order of the assistant's head.

A trainer sends the target's weights, and may send the assistant's. SGLang gives either to both models, as it fits EAGLE's heads, which ride
in the target's checkpoint. Gemma 4's assistant is a checkpoint of its own whose tensors have the target's names and other shapes: SGLang's
scheduler ends on the first that does not fit, after writing those that happen to.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sglang_gemma4.models.config_files import ASSISTANTS
from sglang_gemma4.patching import note

logger = logging.getLogger(__name__)
ONLY_ASSISTANTS = ("pre_projection.", "post_projection.", "masked_embedding.")
"""How names of tensors begin that no target has."""
ORDER = "_sglang_gemma4_head_order"
CARD_ERRORS = (torch.OutOfMemoryError, torch.AcceleratorError)
"""After these a process cannot go on with the weights it has."""
Reply = tuple[bool, str]
Load = Callable[..., Any]


def is_assistant(model: Any) -> bool:
    """Whether a served model is an MTP assistant."""
    return type(model).__name__ in ASSISTANTS


def is_gemma4(model: Any) -> bool:
    """Whether a served model is of this family; others' updates are left to SGLang."""
    return type(model).__name__.startswith("Gemma4")


def path_holds_assistant(path: str) -> bool | None:
    """Whether a checkpoint (a folder or a name on the hub) is an MTP assistant's; None where it has no configuration."""
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(path)
    except (OSError, ValueError):
        return None
    architectures = config.get("architectures")
    return bool(set(ASSISTANTS) & set(architectures)) if architectures else None


def has_assistant(manager: Any) -> bool:
    """Whether the draft of a scheduler, given by its weight updater, is an MTP assistant."""
    return any(is_assistant(runner.model) for _, runner in manager._select_runners("draft"))


def no_such_draft(manager: Any, model_path: str) -> str | None:
    """Why a checkpoint is for no model of this server, or None."""
    if has_assistant(manager) or not any(is_gemma4(runner.model) for _, runner in manager._select_runners("target")):
        return None
    if not path_holds_assistant(model_path):
        return None
    return f"{model_path} holds an MTP assistant, and this server has none: start it with --speculative-draft-model-path"


def update_from_disk(update: Callable[..., Reply], updater: Any, model_path: str, *args: Any, **kwargs: Any) -> Reply:
    """In place of ``WeightUpdater.update_weights_from_disk``, which SGLang calls for the target and then for the assistant.

    Returns:
        Whether the model has the weights or does not want them, and a message. A checkpoint that does not fit leaves the weights that the
        model's last checkpoint has.
    """
    if not is_gemma4(updater.get_model()):
        return update(updater, model_path, *args, **kwargs)
    held = path_holds_assistant(model_path)
    assistant = is_assistant(updater.get_model())
    if assistant != bool(held):  # what has no configuration is a trainer's: the target's
        kept, given = ("assistant", "target") if assistant else ("target", "assistant")
        logger.info("sglang-gemma4: the %s keeps its weights, %s holds the %s's", kept, model_path, given)
        return True, f"Succeeded to update the {given}'s weights; the {kept} keeps its own."
    before = updater.model_config.model_path
    try:
        success, message = update(updater, model_path, *args, **kwargs)
    except CARD_ERRORS:
        raise
    except Exception as error:  # SGLang's own way back loads the same path again
        success, message = False, f"{model_path} does not fit this model: {error}"
        updater.model_config.model_path = before
        back, why = update(updater, before, *args, **kwargs)
        message += f"; the weights of {before} are back" if back else f"; neither are the weights of {before} back ({why}): load them again"
    if not success:
        updater.model_config.model_path = before
    return success, message


def target_alone(manager: Any, request: Any) -> Any:
    """An update whose ``selector`` is "all", SGLang's default, as one of the target where the draft is an assistant."""
    from msgspec import structs

    if request.selector != "all" or not has_assistant(manager):
        return request
    note("weight_updates", "selector 'all' of an update is the target alone: the assistant's own weights go to selector 'draft'")
    return structs.replace(request, selector="target")


def refusal(selector: str, names: Iterable[str]) -> str | None:
    """Why tensors of these names cannot be for the models that ``selector`` names, or None."""
    found = next((name for name in names if name.startswith(ONLY_ASSISTANTS)), None)
    if found is None or selector == "draft":
        return None
    return f"{found} is a weight of the MTP assistant: send the assistant's weights with selector 'draft', the target's with 'target'"


def update_from_tensors(update: Callable[..., Reply], updater: Any, named_tensors: Any, *args: Any, **kwargs: Any) -> Reply:
    """In place of ``WeightUpdater.update_weights_from_tensor``, which raises, and so ends the scheduler, where a tensor does not fit.

    Flattened buckets come as one dict, any other format as pairs of name and tensor.
    """
    given = [meta.name for meta in named_tensors["metadata"]] if isinstance(named_tensors, dict) else [name for name, _ in named_tensors]
    return _fitting(update, updater, given, named_tensors, *args, **kwargs)


def update_from_received(update: Callable[..., Reply], updater: Any, named_tensors: Any) -> Reply:
    """In place of ``WeightUpdater.load_weights_from_distributed``, after the tensors have come."""
    return _fitting(update, updater, [name for name, _ in named_tensors], named_tensors)


def _fitting(update: Callable[..., Reply], updater: Any, names: list[str], *args: Any, **kwargs: Any) -> Reply:
    if not is_gemma4(updater.get_model()):
        return update(updater, *args, **kwargs)
    reason = refusal("draft" if is_assistant(updater.get_model()) else "target", names)
    if reason is not None:
        return False, reason
    try:
        return update(updater, *args, **kwargs)
    except CARD_ERRORS:
        raise
    except Exception as error:
        return False, f"the tensors do not fit this model: {error}. Some of them may have been written: load all weights again"


def load_in_order(load: Load, model: Any, weights: Any) -> Any:
    """In place of an assistant's ``load_weights``: its head lies in the order of its centroids whatever part of the weights comes.

    SGLang sorts the head after each call, also what it has sorted before and what no call brought.
    """
    order = model.__dict__.pop(ORDER, None)
    if order is not None:
        head = model.lm_head.weight.data
        head[order.to(head.device)] = head.clone()
    return load(model, weights)


@torch.no_grad()
def sort_head(sort: Callable[[Any], None], model: Any) -> None:
    """In place of ``_reorder_embedding_to_centroid_order``; what it sorted by is kept on the host, beyond the reach of updates and pauses.

    Until ``token_ordering`` has come (a server that started with random weights), it is no permutation, and the head waits.
    """
    order = model.token_ordering.long()
    if not bool((order.sort().values == torch.arange(len(order), device=order.device)).all()):
        logger.info("sglang-gemma4: the assistant's token_ordering is no permutation yet; its head is sorted when it has come")
        return
    sort(model)
    model.__dict__[ORDER] = order.to("cpu", copy=True)
