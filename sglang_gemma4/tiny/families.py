"""Configurations of the three tiny families and their assistants, as keyword arguments of transformers' classes.

Each has what makes the released size hard to serve: `tiny-26b-a4b` experts beside a dense FFN, K = V and fewer, wider
heads on full layers; `tiny-e2b` per-layer embeddings, KV-shared layers with a double-wide FFN, a centroid draft head,
clipped vision linears; `tiny-31b` a dense stack with K = V on full layers.
"""

from typing import Any

VOCABULARY = 1024
MAX_SOFT_TOKENS = 70  # the least that transformers' image processor accepts
PATCH, POOL = 4, 3
DRAFT_STEPS = 3
IMAGE = {"patch_size": PATCH, "pooling_kernel_size": POOL, "max_soft_tokens": MAX_SOFT_TOKENS}
PAD, EOS, BOS = 0, 1, 2
TINY = ("tiny-26b-a4b", "tiny-e2b", "tiny-31b")
LAYER_SCALARS = (0.9, 0.8, 1.1, 0.95, 0.85, 1.05, 0.9, 1.1, 0.8, 0.95)  # buffers, fixed before training: never all ones
CLIP_INPUT, CLIP_OUTPUT = 3.5, 5.0


def layers(period: int, number: int) -> list[str]:
    """Types of ``number`` layers, of which every ``period``-th is a full one."""
    return ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(number)]


COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "head_dim": 32,
    "global_head_dim": 64,
    "max_position_embeddings": 4096,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCABULARY,
    "tie_word_embeddings": True,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
}

TEXT: dict[str, dict[str, Any]] = {
    "tiny-26b-a4b": dict(
        COMMON,
        intermediate_size=96,
        num_hidden_layers=6,
        layer_types=layers(6, 6),
        num_attention_heads=4,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=64,
        enable_moe_block=True,
        num_experts=16,
        top_k_experts=4,
        moe_intermediate_size=32,
        use_bidirectional_attention="vision",
    ),
    "tiny-e2b": dict(
        COMMON,
        intermediate_size=256,
        num_hidden_layers=10,
        layer_types=layers(5, 10),
        num_attention_heads=4,
        num_key_value_heads=1,
        attention_k_eq_v=False,
        sliding_window=32,
        num_kv_shared_layers=5,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=16,
    ),
    "tiny-31b": dict(
        COMMON,
        intermediate_size=384,
        num_hidden_layers=6,
        layer_types=layers(6, 6),
        num_attention_heads=8,
        num_key_value_heads=4,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=64,
        use_bidirectional_attention="vision",
    ),
}


def vision(name: str) -> dict[str, Any]:
    """Two layers of 64; E2B clips its linears, the larger models standardise their soft tokens, as released."""
    return {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "patch_size": PATCH,
        "pooling_kernel_size": POOL,
        "position_embedding_size": 256,
        "use_clipped_linears": name == "tiny-e2b",
        "standardize": name != "tiny-e2b",
    }


ASSISTANT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 4,
    "layer_types": layers(4, 4),
}
"""What differs between an assistant's layers, which read the target's KV, and the target's."""


def assistant_text(name: str) -> dict[str, Any]:
    """Four layers (3 sliding, 1 full) of 64 that read the target's KV: same head sizes and KV heads."""
    attention = ("num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v", "sliding_window")
    same = {**COMMON, **{key: value for key, value in TEXT[name].items() if key in attention}}
    del same["final_logit_softcapping"]
    return {**same, **ASSISTANT, "num_attention_heads": 4, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}


def assistant(name: str) -> dict[str, Any]:
    """Keywords of Gemma4AssistantConfig besides `text_config`."""
    out: dict[str, Any] = {"backbone_hidden_size": TEXT[name]["hidden_size"], "tie_word_embeddings": True}
    if name == "tiny-e2b":
        out.update(use_ordered_embeddings=True, num_centroids=64, centroid_intermediate_top_k=8)
    return out
