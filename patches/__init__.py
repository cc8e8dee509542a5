"""One module per change to SGLang, in the order they are applied. A module declares ``PATCH`` and imports neither torch nor sglang."""

import dataclasses
import functools
from importlib import import_module

from sglang_gemma4.patching import Patch

ORDER = (
    "report",
    "patch_metrics",
    "start_times",
    "compile_ahead",
    "preflight",
    "mtp_defaults",
    "force_eagle",
    "text_only_config",
    "unified_config",
    "router_scale",
    "weight_updates",
    "released_memory",
    "image_cache",
    "quantised_names",
    "quantised_experts",
    "expert_gelu",
    "moe_tiles",
    "grouped_experts",
    "few_token_experts",
    "prefill_experts",
    "triton_window",
    "one_chunk",
    "host_hits",
    "kv_formats",
    "fp8_cache",
    "verify_attention",
    "decode_attention",
    "balanced_parts",
    "prefill_attention",
    "flash_prefill",
    "sync_mtp",
    "worker_v1",
    "frozen_views",
    "unified_draft",
    "frozen_chain",
    "draft_argmax",
    "draft_graph",
    "shared_query",
    "yoco",
    "triple_norm",
    "layer_tail",
    "dependent_launch",
    "four_bit_linear",
    "few_row_linear",
    "router_choice",
    "dense_beside_experts",
    "ple_tail",
    "ple_gate",
    "qkv_rope",
    "kv_write",
    "fresh_kv",
    "graph_sizes",
    "memory_reserve",
    "prefill_graph",
    "yoco_graph",
    "sharded_head",
    "draft_phase",
    "adaptive_draft",
    "verify_penalties",
    "verify_cuts",
    "verify_argmax",
    "stop_order",
    "flash_in_graphs",
    "prefill_beside",
    "pd_draft",
    "hetero_tp",
    "lora",
    "lora_mtp",
    "image_masks",
    "image_padding",
    "image_transport",
    "language_model_only",
    "batched_vision",
    "audio_padding",
    "media_errors",
    "answer_parser",
    "parser_defaults",
    "tool_grammar",
    "page_table_rows",
    "swa_ratio",
    "swa_sizing",
    "own_window",
    "swa_admission",
    "pool_bound",
    "shared_kv",
    "pool_checks",
    "pool_hits",
    "draft_budget",
    "dummy_weights",
    "bounds_traps",
    "trtllm_mha_traps",
    "cpu_engine",
    "cpu_sampling",
    "cpu_images",
    "cpu_lora",
    "cpu_quantised",
)


@functools.cache
def load(name: str) -> Patch:
    """The patch of one module: it has the module's name, and does what the first line of the module's docstring says."""
    module = import_module(f"{__name__}.{name}")
    declared: Patch = module.PATCH
    return dataclasses.replace(declared, name=name, does=declared.does or str(module.__doc__).partition("\n")[0])


def load_all() -> list[Patch]:
    """Every declared patch, in the order they are applied."""
    return [load(name) for name in ORDER]
