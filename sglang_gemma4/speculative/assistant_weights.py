"""Weight updates of a running server with MTP: which of its two models an update is for, and the row order of the assistant's head.

A trainer sends the target's weights, and may send the assistant's. SGLang loads either into both models, which is right for EAGLE heads:
they are part of the target's checkpoint. Gemma 4's assistant is a checkpoint of its own whose tensors have the target's names but other
shapes: SGLang's scheduler would end on the first tensor that does not fit, with some already written.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch

from sglang_gemma4.models.config_files import ARCHITECTURES, ASSISTANTS
from sglang_gemma4.models.quantised_updates import reason_against_update
from sglang_gemma4.patching import note
from sglang_gemma4.speculative import views

logger = logging.getLogger(__name__)
ONLY_ASSISTANTS = ("pre_projection.", "post_projection.", "masked_embedding.")
"""Prefixes of tensor names that only assistants have."""
ORDER = "_sglang_gemma4_head_order"
CARD_ERRORS = (torch.OutOfMemoryError, torch.AcceleratorError)
"""After these errors the weights on the GPU cannot be trusted; they are raised again."""
Reply = tuple[bool, str]
Load = Callable[..., Any]


def is_assistant(model: Any) -> bool:
    """Whether a served model is an MTP assistant."""
    return type(model).__name__ in ASSISTANTS


def is_gemma4(model: Any) -> bool:
    """Whether a served model is a Gemma 4; updates of other models are left to SGLang."""
    return type(model).__name__.startswith("Gemma4")


def architectures(path: str) -> list[str]:
    """Class names in a checkpoint's config.json (folder or hub name); empty if it has none."""
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(path)
    except (OSError, ValueError):
        return []
    return list(config.get("architectures") or ())


def path_holds_assistant(path: str) -> bool | None:
    """Whether a checkpoint (folder or hub name) is an MTP assistant; None if it has no config.json."""
    found = architectures(path)
    return bool(set(ASSISTANTS) & set(found)) if found else None


def has_assistant(manager: Any) -> bool:
    """Whether the draft model behind a scheduler's weight updater is an MTP assistant."""
    return any(is_assistant(runner.model) for _, runner in manager._select_runners("draft"))


def ask_for_assistant(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around the scheduler's ``update_weights_from_disk``: refuse an assistant's checkpoint if the server has none,
    and a checkpoint of another model. SGLang would write tensors of the latter into the target where names are the
    same, as with a draft that has its own keys."""
    target = next((runner.model for _, runner in manager._select_runners("target") if is_gemma4(runner.model)), None)
    refused = None if target is None else _of_another(request.model_path, target, has_assistant(manager))
    if refused is None:
        return share_scales(original(manager, request), manager)
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqOutput

    return UpdateWeightFromDiskReqOutput(success=False, message=f"{request.model_path} {refused}", num_paused_requests=0)


def _of_another(path: str, target: Any, drafts: bool) -> str | None:
    """Why a checkpoint is neither the target's nor, if an assistant ``drafts``, the assistant's; or None."""
    held = architectures(path)
    if not held or set(held) & {*ARCHITECTURES, *(ASSISTANTS if drafts else ())}:
        return None
    if set(held) & set(ASSISTANTS):
        return "holds an MTP assistant, and this server has none: start it with --speculative-draft-model-path"
    return (
        f"holds {', '.join(held)}, and the served model is {type(target).__name__}: give a checkpoint of that; a draft takes weights by "
        "/update_weights_from_tensor with selector 'draft'"
    )


def begin(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around the scheduler's ``begin_weight_update``: refuse a session for a model that accepts no other weights.

    The end of the session would rearrange that model's layers again, though no tensor came.
    """
    for role, runner in manager._select_runners(request.selector):
        if is_gemma4(runner.model) and (reason := reason_against_update(runner.model)) is not None:
            from sglang.srt.managers.io_struct import BeginWeightUpdateReqOutput

            other = "" if request.selector == role else f" (selector '{request.selector}' names the {role} too)"
            return BeginWeightUpdateReqOutput(success=False, message=f"the {role}'s {reason}{other}")
    return original(manager, request)


def share_scales(reply: Any, manager: Any, *_args: Any) -> Any:
    """After ``end_weight_update``: share the KV scales again, because the target's checkpoint was read again."""
    if has_assistant(manager):
        views.share_all_kv_scales(manager.draft_worker.draft_worker)
    return reply


def name_target(original: Callable[..., None], manager: Any, model_path: str, load_format: str) -> None:
    """Around ``TokenizerManager._update_model_path_info``: keep the served model's name when an assistant's weights
    were loaded."""
    if not path_holds_assistant(model_path):
        original(manager, model_path, load_format)


def update_from_disk(update: Callable[..., Reply], updater: Any, model_path: str, *args: Any, **kwargs: Any) -> Reply:
    """Around ``WeightUpdater.update_weights_from_disk``, which SGLang calls for the target and then for the
    assistant.

    Returns:
        Success and a message. Success also if the checkpoint is for the other model. After a checkpoint that does not
            fit, the previous one is loaded again.
    """
    if not is_gemma4(updater.get_model()):
        return update(updater, model_path, *args, **kwargs)
    held = path_holds_assistant(model_path)
    assistant = is_assistant(updater.get_model())
    if assistant != bool(held):  # without config.json it comes from a trainer, for the target
        kept, given = ("assistant", "target") if assistant else ("target", "assistant")
        logger.info("sglang-gemma4: the %s keeps its weights, %s holds the %s's", kept, model_path, given)
        return True, f"Succeeded to update the {given}'s weights; the {kept} keeps its own."
    if (reason := reason_against_update(updater.get_model())) is not None:
        return False, f"{model_path} was not loaded: {reason}"
    before = updater.model_config.model_path
    try:
        success, message = update(updater, model_path, *args, **kwargs)
    except CARD_ERRORS:
        raise
    except Exception as error:  # SGLang's own recovery loads the same path again
        success, message = False, f"{model_path} does not fit this model: {error}"
        updater.model_config.model_path = before
        back, why = update(updater, before, *args, **kwargs)
        message += f"; the weights of {before} are back" if back else f"; {before} could not be loaded again ({why}): send all weights"
    if not success:
        updater.model_config.model_path = before
    return success, message


def for_one_model(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around the scheduler's ``update_weights_from_tensor`` and ``_from_distributed``: where the draft is an assistant, SGLang's default
    selector "all" means the target."""
    if request.selector == "all" and has_assistant(manager):
        note("weight_updates", "weight updates with selector 'all' go to the target only; send the assistant's with selector 'draft'")
        request = msgspec.structs.replace(request, selector="target")
    return original(manager, request)


def refusal(selector: str, names: Iterable[str]) -> str | None:
    """Why tensors with these names cannot belong to the models that ``selector`` names, or None."""
    found = next((name for name in names if name.startswith(ONLY_ASSISTANTS)), None)
    if found is None or selector == "draft":
        return None
    return f"{found} is a weight of the MTP assistant: send the assistant's weights with selector 'draft', the target's with 'target'"


def update_from_tensors(update: Callable[..., Reply], updater: Any, named_tensors: Any, *args: Any, **kwargs: Any) -> Reply:
    """Around ``WeightUpdater.update_weights_from_tensor``: a tensor that does not fit is refused; in stock it ends the scheduler.

    Flattened buckets come as one dict, any other format as (name, tensor) pairs.
    """
    given = [meta.name for meta in named_tensors["metadata"]] if isinstance(named_tensors, dict) else [name for name, _ in named_tensors]
    return _fitting(update, updater, given, named_tensors, *args, **kwargs)


def update_from_received(update: Callable[..., Reply], updater: Any, named_tensors: Any) -> Reply:
    """Around ``WeightUpdater.load_weights_from_distributed``, which gets the received tensors."""
    return _fitting(update, updater, [name for name, _ in named_tensors], named_tensors)


def update_from_ipc(update: Callable[..., Reply], updater: Any, request: Any) -> Reply:
    """Around ``WeightUpdater.update_weights_from_ipc``, which needs no session."""
    reason = reason_against_update(updater.get_model()) if is_gemma4(updater.get_model()) else None
    return update(updater, request) if reason is None else (False, reason)


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
    """Around an assistant's ``load_weights``: put the head back into checkpoint order first.

    SGLang sorts the head by centroid after each call; a partial update would otherwise sort a sorted head again.
    """
    order = model.__dict__.pop(ORDER, None)
    if order is not None:
        head = model.lm_head.weight.data
        head[order.to(head.device)] = head.clone()
    return load(model, weights)


@torch.no_grad()
def sort_head(sort: Callable[[Any], None], model: Any) -> None:
    """Around ``_reorder_embedding_to_centroid_order``: keep the order on the host, where weight updates and pauses do
    not change it.

    On a server that started with random weights ``token_ordering`` is not a permutation until it is loaded; the head
    is sorted then.

    Raises:
        ValueError: an entry is not a token of the vocabulary. Drafting that token would read past the target's
            embeddings.
    """
    order = model.token_ordering.long()
    least, most = order.aminmax()
    if least < 0 or most >= len(order):
        raise ValueError(
            f"the assistant's token_ordering has token {int(least if least < 0 else most)}, its vocabulary {len(order)} tokens; "
            "download or convert the assistant again"
        )
    if not bool((order.sort().values == torch.arange(len(order), device=order.device)).all()):
        logger.info("sglang-gemma4: the assistant's token_ordering is not loaded yet; its head is sorted when it is")
        return
    sort(model)
    model.__dict__[ORDER] = order.to("cpu", copy=True)
