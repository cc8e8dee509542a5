"""KV-shared layers (E2B: 20 of 35, E4B: 18 of 42) get no KV buffers of their own."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch

MODULE = "sglang.srt.model_executor.model_runner_components.layer_setup"


def drop_unread_layers(info: Any, *, model: Any, model_config: Any, is_draft_worker: bool, **_kwargs: Any) -> Any:
    """After ``resolve_layer_indices``: the full and sliding layer ids that the pools are built and priced from."""
    if (
        is_draft_worker
        or not getattr(model_config.hf_text_config, "num_kv_shared_layers", 0)
        or not type(model).__name__.startswith("Gemma4")
    ):
        return info
    from sglang.srt.layers.radix_attention import RadixAttention

    from sglang_gemma4.memory import kv_layers

    return kv_layers.without_unread(info, model, RadixAttention)


def name_stored_pages(name: str | None, _model_name: str | None, _host_pool: Any) -> str | None:
    """After ``storage_model_name``: HiCache's storage finds pages by this name and does not know how many layers they hold."""
    from sglang_gemma4.memory import kv_layers

    tag = kv_layers.layout_tag()
    return name if tag is None else f"{name}-{tag}" if name else tag


def tell_peer(_result: None, kv_args: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``setup_state_kv_args``: both servers of a disaggregated pair must hold the same layers; SGLang compares this string."""
    from sglang_gemma4.memory import kv_layers

    tag = kv_layers.layout_tag()
    if tag is not None:
        kv_args.kv_cache_dtype_str = f"{kv_args.kv_cache_dtype_str} {tag}"


PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="KV-shared layers never write KV, and stock gives each of them buffers: E2B wastes 20 of 35, E4B 18 of 42.",
    evidence="srt/configs/model_config.py:2752 (every layer is listed) · srt/models/gemma4_causal.py:432, 540",
    remove_when="get_hybrid_layer_ids leaves KV-shared layers out.",
    uses=(uses.shared_kv,),
    hooks=(
        Hook(f"{MODULE}.resolve_layer_indices", "after", drop_unread_layers, "7d45ac85c73c"),
        Hook("sglang.srt.managers.cache_controller.storage_model_name", "after", name_stored_pages, "19f82ce7ca2e"),
        Hook("sglang.srt.disaggregation.utils.setup_state_kv_args", "after", tell_peer, "51324cc29389"),
    ),
)
