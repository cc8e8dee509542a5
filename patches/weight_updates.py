"""Weight updates reach the model they are for, with MTP too; one that fits none is refused."""

from sglang_gemma4.patching import Hook, Patch

OURS = "sglang_gemma4.speculative.assistant_weights"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
ASSISTANT = "sglang.srt.models.gemma4_mtp.Gemma4AssistantForCausalLM"
TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"

PATCH = Patch(
    switch="SGLANG_GEMMA4_WEIGHT_UPDATES",
    why="Stock loads an update's checkpoint into target and assistant alike, whose names are the same and whose shapes are not: the "
    "scheduler ends. Weights in several calls sort E2B's and E4B's draft head once for each: accept length 1. Quantised weights, which are "
    "rearranged after loading, are written over in part.",
    evidence="srt/managers/scheduler_components/weight_updater.py:138, 245 · model_runner_components/weight_updater.py:190, 228 (goes back "
    "to the path that failed) · models/gemma4_mtp.py:380 · crash_repro/mtp_weight_update.py",
    remove_when="SGLang asks a checkpoint which model it is for, and sorts the assistant's head once.",
    hooks=(
        Hook(f"{UPDATER}.update_weights_from_disk", "around", f"{OURS}:update_from_disk", "d022aee84727"),
        Hook(f"{UPDATER}.update_weights_from_tensor", "around", f"{OURS}:update_from_tensors", "7917dc32f144"),
        Hook(f"{UPDATER}.load_weights_from_distributed", "around", f"{OURS}:update_from_received", "96b5dd21e878"),
        Hook(f"{MANAGER}.update_weights_from_disk", "around", f"{OURS}:ask_for_assistant", "b67dc2a5cf31"),
        Hook(f"{UPDATER}.update_weights_from_ipc", "around", f"{OURS}:update_from_ipc", "ce5eafc3f707"),
        Hook(f"{MANAGER}.begin_weight_update", "around", f"{OURS}:begin", "6ee0a8bc31d8"),
        Hook(f"{MANAGER}.end_weight_update", "after", f"{OURS}:share_scales", "7cd4623a8689"),
        Hook(f"{MANAGER}.update_weights_from_tensor", "around", f"{OURS}:for_one_model", "a4090c8ac4ac"),
        Hook(f"{MANAGER}.update_weights_from_distributed", "around", f"{OURS}:for_one_model", "b059149de4f9"),
        Hook(f"{TOKENIZER}._update_model_path_info", "around", f"{OURS}:name_target", "3fbbc8dd191b"),
        Hook(f"{ASSISTANT}.load_weights", "around", f"{OURS}:load_in_order", "55cffd5e9a5c"),
        Hook(f"{ASSISTANT}._reorder_embedding_to_centroid_order", "around", f"{OURS}:sort_head", "022b8d179cfc"),
    ),
)
