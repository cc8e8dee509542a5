"""Weight updates reach the model they are for, with MTP too; one that fits none is refused."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch

Loads = Callable[..., tuple[bool, str]]
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
ASSISTANT = "sglang.srt.models.gemma4_mtp.Gemma4AssistantForCausalLM"
MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


def from_disk(original: Loads, updater: Any, model_path: str, *args: Any, **kwargs: Any) -> tuple[bool, str]:
    """Around ``WeightUpdater.update_weights_from_disk``."""
    from sglang_gemma4.speculative import assistant_weights

    return assistant_weights.update_from_disk(original, updater, model_path, *args, **kwargs)


def ask_for_assistant(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around the scheduler's ``update_weights_from_disk``."""
    from sglang_gemma4.speculative import assistant_weights

    refused = assistant_weights.no_such_draft(manager, request.model_path)
    if refused is None:
        return share_scales(original(manager, request), manager)
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqOutput

    return UpdateWeightFromDiskReqOutput(success=False, message=refused, num_paused_requests=0)


def share_scales(reply: Any, manager: Any, *_args: Any) -> Any:
    """After ``end_weight_update``: the scales of the KV cache were read once more, from what the target's checkpoint says of them."""
    from sglang_gemma4.speculative import assistant_weights, views

    if assistant_weights.has_assistant(manager):
        views.share_all_kv_scales(manager.draft_worker.draft_worker)
    return reply


def from_tensors(
    original: Callable[..., tuple[bool, str]], updater: Any, named_tensors: Any, *args: Any, **kwargs: Any
) -> tuple[bool, str]:
    """Around ``WeightUpdater.update_weights_from_tensor``."""
    from sglang_gemma4.speculative import assistant_weights

    return assistant_weights.update_from_tensors(original, updater, named_tensors, *args, **kwargs)


def from_received(original: Loads, updater: Any, named_tensors: Any) -> tuple[bool, str]:
    """Around ``WeightUpdater.load_weights_from_distributed``."""
    from sglang_gemma4.speculative import assistant_weights

    return assistant_weights.update_from_received(original, updater, named_tensors)


def for_one_model(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around ``update_weights_from_tensor`` and ``update_weights_from_distributed`` of the scheduler."""
    from sglang_gemma4.speculative import assistant_weights

    return original(manager, assistant_weights.target_alone(manager, request))


def name_target(original: Callable[..., None], manager: Any, model_path: str, load_format: str) -> None:
    """Around ``TokenizerManager._update_model_path_info``: the served model is not an assistant whose weights came."""
    from sglang_gemma4.speculative import assistant_weights

    if not assistant_weights.path_holds_assistant(model_path):
        original(manager, model_path, load_format)


def load_in_order(original: Callable[..., Any], model: Any, weights: Any) -> Any:
    """Around ``Gemma4AssistantForCausalLM.load_weights``."""
    from sglang_gemma4.speculative import assistant_weights

    return assistant_weights.load_in_order(original, model, weights)


def sort_head(original: Callable[[Any], None], model: Any) -> None:
    """Around ``_reorder_embedding_to_centroid_order``."""
    from sglang_gemma4.speculative import assistant_weights

    assistant_weights.sort_head(original, model)


PATCH = Patch(
    switch="SGLANG_GEMMA4_WEIGHT_UPDATES",
    why="Stock loads an update's checkpoint into target and assistant alike, whose names are the same and whose shapes are not: the "
    "scheduler ends. Weights in several calls sort E2B's and E4B's draft head once for each: accept length 1.",
    evidence="srt/managers/scheduler_components/weight_updater.py:138, 245 · model_runner_components/weight_updater.py:190, 228 (goes back "
    "to the path that failed) · models/gemma4_mtp.py:380 · crash_repro/mtp_weight_update.py",
    remove_when="SGLang asks a checkpoint which model it is for, and sorts the assistant's head once.",
    hooks=(
        Hook(f"{UPDATER}.update_weights_from_disk", "around", from_disk, "d022aee84727"),
        Hook(f"{UPDATER}.update_weights_from_tensor", "around", from_tensors, "7917dc32f144"),
        Hook(f"{UPDATER}.load_weights_from_distributed", "around", from_received, "96b5dd21e878"),
        Hook(f"{MANAGER}.update_weights_from_disk", "around", ask_for_assistant, "b67dc2a5cf31"),
        Hook(f"{MANAGER}.end_weight_update", "after", share_scales, "7cd4623a8689"),
        Hook(f"{MANAGER}.update_weights_from_tensor", "around", for_one_model, "a4090c8ac4ac"),
        Hook(f"{MANAGER}.update_weights_from_distributed", "around", for_one_model, "b059149de4f9"),
        Hook("sglang.srt.managers.tokenizer_manager.TokenizerManager._update_model_path_info", "around", name_target, "3fbbc8dd191b"),
        Hook(f"{ASSISTANT}.load_weights", "around", load_in_order, "55cffd5e9a5c"),
        Hook(
            f"{ASSISTANT}._reorder_embedding_to_centroid_order",
            "around",
            sort_head,
            "022b8d179cfc",
        ),
    ),
)
