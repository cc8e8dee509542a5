"""Switches of version 0.1 that are parts of others now, or gone. All of this goes in 0.3.0."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class OldName:
    """A switch that is part of another now: 0 still leaves its one patch out. Removed in 0.3.0."""

    patch: str
    switch: str
    also_on: tuple[str, ...] = ()


def _old(switch: str, **patches: str) -> dict[str, OldName]:
    return {f"SGLANG_GEMMA4_{name}": OldName(patch, f"SGLANG_GEMMA4_{switch}") for name, patch in patches.items()}


OLD_NAMES: dict[str, OldName] = {
    **_old("CONFIGS", TEXT_ONLY_CONFIG="text_only_config", UNIFIED_CONFIG="unified_config"),
    **_old("MODEL_FIXES", ROUTER_SCALE="router_scale", EXPERT_GELU="expert_gelu"),
    **_old("MODEL_FIXES", TRITON_WINDOW="triton_window", PAGE_TABLE="page_table_rows"),
    **_old("WEIGHT_UPDATES", RELEASED_MEMORY="released_memory", IMAGE_CACHE="image_cache"),
    **_old("ANSWER_PARSER", TOOL_CALL_INDEX="answer_parser", PARSER_DEFAULTS="parser_defaults"),
    **_old("LORA", LORA_MTP="lora_mtp"),
    **_old("ATTENTION", VERIFY_ATTENTION="verify_attention", DECODE_ATTENTION="decode_attention", PREFILL_ATTENTION="prefill_attention"),
    **_old("QKV", QKV_ROPE="qkv_rope", KV_WRITE="kv_write", SHARED_QUERY="shared_query"),
    **_old("EXPERTS", MOE_TILES="moe_tiles", GROUPED_EXPERTS="grouped_experts", FEW_TOKEN_EXPERTS="few_token_experts"),
    **_old("EXPERTS", ROUTER_CHOICE="router_choice", PREFILL_EXPERTS="prefill_experts"),
    **_old("NORMS", TRIPLE_NORM="triple_norm", LAYER_TAIL="layer_tail", PLE_TAIL="ple_tail"),
    **_old("FROZEN_VIEWS", SYNC_MTP="sync_mtp", PD_DRAFT="pd_draft", ADAPTIVE_DRAFT="adaptive_draft"),
    **_old("FROZEN_CHAIN", DRAFT_GRAPH="draft_graph", DRAFT_ARGMAX="draft_argmax"),
    **_old("VERIFY_RULES", VERIFY_PENALTIES="verify_penalties", VERIFY_CUTS="verify_cuts", STOP_ORDER="stop_order"),
    **_old("YOCO", YOCO_GRAPH="yoco_graph"),
    **_old("MEDIA_FIXES", IMAGE_MASKS="image_masks", IMAGE_PADDING="image_padding"),
    **_old("MEDIA_FIXES", AUDIO_PADDING="audio_padding", MEDIA_ERRORS="media_errors", LANGUAGE_MODEL_ONLY="language_model_only"),
    **_old("BATCHED_VISION", IMAGE_TRANSPORT="image_transport"),
    **_old("POOL_SIZES", SWA_RATIO="swa_ratio", SHARED_KV="shared_kv", DRAFT_BUDGET="draft_budget"),
    "SGLANG_GEMMA4_SWA_SIZING": OldName("swa_sizing", "SGLANG_GEMMA4_POOL_SIZES", also_on=("auto",)),
    **_old("PREFLIGHT", POOL_CHECKS="pool_checks"),
    **_old("REPORT", PATCH_METRICS="patch_metrics"),
}
GONE = ("SGLANG_GEMMA4_ATTENTION_JOIN", "SGLANG_GEMMA4_LEAN_VERIFY", "SGLANG_GEMMA4_EARLY_WEIGHTS")
"""Switches of version 0.1 whose code was measured to gain nothing and is gone. Setting one changes nothing, and is refused from 0.3.0."""


def names_in(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One line for each old name that is set, with what to set instead."""
    return [
        f"{name} is an old name, which goes in 0.3.0: {old.patch} is a part of {old.switch} now; "
        f"SGLANG_GEMMA4_WITHOUT={old.patch} leaves it out alone"
        for name, old in OLD_NAMES.items()
        if environ.get(name, "").strip()
    ] + [f"{name} is gone, since no step got shorter with it; unset it" for name in GONE if environ.get(name, "").strip()]
