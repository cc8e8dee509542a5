"""Names of switches that version 0.1 had and 0.3.0 refuses, with what to set instead."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OldName:
    """A former switch: the one patch that it switched, and the switch that it is part of."""

    patch: str
    switch: str


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
    "SGLANG_GEMMA4_SWA_SIZING": OldName("swa_sizing", "SGLANG_GEMMA4_POOL_SIZES"),
    **_old("PREFLIGHT", POOL_CHECKS="pool_checks"),
    **_old("REPORT", PATCH_METRICS="patch_metrics"),
}
GONE = ("SGLANG_GEMMA4_ATTENTION_JOIN", "SGLANG_GEMMA4_LEAN_VERIFY", "SGLANG_GEMMA4_EARLY_WEIGHTS")
"""Former switches whose code was removed, since it was measured to gain nothing."""


def refusal(name: str) -> str | None:
    """Why a former switch is refused, with the remedy; None for every other name."""
    if name in GONE:
        return f"{name} was removed, since no step got shorter with it; unset it"
    if (old := OLD_NAMES.get(name)) is None:
        return None
    return (
        f"{name} was removed in 0.3.0: {old.patch} is a part of {old.switch}; "
        f"unset it, or leave the patch out alone with SGLANG_GEMMA4_WITHOUT={old.patch}"
    )
