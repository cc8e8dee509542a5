"""KV-shared layers (E2B: 20 of 35, E4B: 18 of 42) get no KV buffers of their own."""

from sglang_gemma4.patching import Hook, Patch, uses

MODULE = "sglang.srt.model_executor.model_runner_components.layer_setup"
OURS = "sglang_gemma4.memory.kv_layers"

PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="KV-shared layers never write KV, and stock gives each of them buffers: E2B wastes 20 of 35, E4B 18 of 42.",
    evidence="srt/configs/model_config.py:2752 (every layer is listed) · srt/models/gemma4_causal.py:432, 540",
    remove_when="get_hybrid_layer_ids leaves KV-shared layers out.",
    uses=(uses.shared_kv,),
    hooks=(
        Hook(f"{MODULE}.resolve_layer_indices", "after", f"{OURS}:drop_unread_layers", "7d45ac85c73c"),
        Hook("sglang.srt.managers.cache_controller.storage_model_name", "after", f"{OURS}:name_stored_pages", "19f82ce7ca2e"),
        Hook("sglang.srt.disaggregation.utils.setup_state_kv_args", "after", f"{OURS}:tell_peer", "51324cc29389"),
    ),
)
