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
    "triple_norm",
    "layer_tail",
    "ple_tail",
    "qkv_rope",
    "sharded_head",
    "draft_phase",
    "adaptive_draft",
    "verify_penalties",
    "verify_cuts",
    "stop_order",
    "pd_draft",
    "image_padding",
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
