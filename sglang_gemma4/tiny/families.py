"""Configurations of the four tiny families and their assistants, as keyword arguments of transformers' classes.

Each has what makes the released size hard to serve. `tiny-26b-a4b` has experts in parallel with a dense FFN, and
K = V with fewer, wider heads on full layers. `tiny-e2b` has per-layer embeddings, KV-shared layers with a
double-wide FFN, a centroid draft head and clipped vision linears. `tiny-31b` is a dense stack with K = V on full
layers. `tiny-12b` is the unified model: 16 / 8 / 1 heads, images and audio projected without towers. The text
models' sizes are in families.toml.
"""

import tomllib
from pathlib import Path
from typing import Any

_NUMBERS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("families.toml").read_text())
COMMON = _NUMBERS.pop("common")
VOCABULARY: int = COMMON["vocab_size"]
PAD, EOS, BOS = (int(COMMON[f"{name}_token_id"]) for name in ("pad", "eos", "bos"))
TINY = tuple(_NUMBERS)
MAX_SOFT_TOKENS = 70  # the fewest that transformers' image processor accepts
PATCH, POOL = 4, 3
DRAFT_STEPS = 3
IMAGE = {"patch_size": PATCH, "pooling_kernel_size": POOL, "max_soft_tokens": MAX_SOFT_TOKENS}
LAYER_SCALARS = (0.9, 0.8, 1.1, 0.95, 0.85, 1.05, 0.9, 1.1, 0.8, 0.95)  # buffers, fixed before training: never all ones
CLIP_INPUT, CLIP_OUTPUT = 3.5, 5.0


def layers(period: int, number: int) -> list[str]:
    """Types of ``number`` layers; every ``period``-th is a full-attention layer."""
    return ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(number)]


def _text(period: int, **own: Any) -> dict[str, Any]:
    return {**COMMON, **own, "layer_types": layers(period, own["num_hidden_layers"])}


TEXT: dict[str, dict[str, Any]] = {name: _text(**own) for name, own in _NUMBERS.items()}


def is_unified(name: str) -> bool:
    """Whether a family is Gemma 4 unified (12B), which has classes of its own in transformers."""
    return name == "tiny-12b"


def vision(name: str) -> dict[str, Any]:
    """The vision config: two layers of width 64. As released, E2B clips its linears and the larger models standardise soft tokens."""
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
"""Fields in which an assistant's layers, which read the target's KV, differ from the target's."""


def assistant_text(name: str) -> dict[str, Any]:
    """The assistant's text config: four layers (3 sliding, 1 full) of width 64, with head sizes and KV heads of the target."""
    attention = ("num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v", "sliding_window")
    same = {**COMMON, **{key: value for key, value in TEXT[name].items() if key in attention}}
    del same["final_logit_softcapping"]
    heads = TEXT[name]["num_attention_heads"] if is_unified(name) else 4
    return {**same, **ASSISTANT, "num_attention_heads": heads, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}


def assistant(name: str) -> dict[str, Any]:
    """Keywords of Gemma4AssistantConfig, or of its unified counterpart, besides `text_config`."""
    out: dict[str, Any] = {"backbone_hidden_size": TEXT[name]["hidden_size"], "tie_word_embeddings": True}
    if name == "tiny-e2b":
        out.update(use_ordered_embeddings=True, num_centroids=64, centroid_intermediate_top_k=8)
    return out
