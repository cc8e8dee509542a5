"""One module per change to SGLang, in the order they are applied. A module declares ``PATCH`` and imports neither torch nor sglang."""

from importlib import import_module

from sglang_gemma4.patching import Patch

ORDER = (
    "report",
    "patch_metrics",
    "preflight",
    "mtp_defaults",
    "force_eagle",
    "text_only_config",
    "router_scale",
    "expert_gelu",
    "moe_tiles",
    "grouped_experts",
    "few_token_experts",
    "triton_window",
    "verify_attention",
    "decode_attention",
    "prefill_attention",
    "sync_mtp",
    "worker_v1",
    "frozen_views",
    "frozen_chain",
    "draft_argmax",
    "draft_graph",
    "shared_query",
    "yoco",
    "triple_norm",
    "layer_tail",
    "few_row_linear",
    "dense_beside_experts",
    "ple_tail",
    "qkv_rope",
    "prefill_graph",
    "sharded_head",
    "draft_phase",
    "adaptive_draft",
    "verify_penalties",
    "verify_cuts",
    "stop_order",
    "pd_draft",
    "image_masks",
    "image_padding",
    "language_model_only",
    "batched_vision",
    "media_errors",
    "tool_call_index",
    "page_table_rows",
    "swa_ratio",
    "swa_sizing",
    "swa_admission",
    "shared_kv",
    "pool_checks",
    "draft_budget",
    "dummy_weights",
    "bounds_traps",
    "trtllm_mha_traps",
    "cpu_engine",
    "cpu_sampling",
    "cpu_images",
)


def load_all() -> list[Patch]:
    """Every declared patch, in the order they are applied."""
    return [import_module(f"{__name__}.{name}").PATCH for name in ORDER]
