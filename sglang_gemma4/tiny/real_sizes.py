"""config.json of the four released Gemma 4 sizes and their MTP assistants, for serving with random weights.

Laid out as the released checkpoints are: `global_head_dim` and `num_global_key_value_heads` beside the sliding values,
which transformers turns into a per-layer config. The numbers are in real_sizes.toml. Sources: transformers 5.19
models/gemma4/configuration_gemma4.py and what is public of the released config.json files. Not compared with the
released files: the 31B assistant's shape, E4B's `use_double_wide_mlp`, and parts of the vision and audio configs.
"""

import tomllib
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import families

_DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_name("real_sizes.toml").read_text())
TOKENS: dict[str, int] = _DATA["tokens"]
GENERATION: dict[str, Any] = _DATA["generation"]
SIZES: dict[str, dict[str, Any]] = _DATA["size"]
_TEXT: dict[str, Any] = {**_DATA["text"], "num_global_key_value_heads": None, "num_experts": None}


def _text(name: str) -> dict[str, Any]:
    """What a size's text config adds to ``_TEXT``."""
    return {**_DATA[SIZES[name]["kind"]]["text"], **SIZES[name]["text"]}


def _has_audio(name: str) -> bool:
    return bool(SIZES[name]["kind"] == "edge")


def target(name: str) -> dict[str, Any]:
    """config.json of `google/gemma-4-<name>-it`."""
    text = {**_TEXT, **_text(name)}
    return dict(
        TOKENS,
        architectures=["Gemma4ForConditionalGeneration"],
        model_type="gemma4",
        dtype="bfloat16",
        eos_token_id=[1, 106],
        tie_word_embeddings=True,
        vision_soft_tokens_per_image=280,
        vision_config=dict(_DATA[SIZES[name]["kind"]]["vision"], model_type="gemma4_vision", dtype="bfloat16"),
        audio_config={"model_type": "gemma4_audio", "dtype": "bfloat16"} if _has_audio(name) else None,
        text_config={**text, "layer_types": families.layers(SIZES[name]["period"], text["num_hidden_layers"])},
    )


def assistant(name: str) -> dict[str, Any]:
    """config.json of the size's MTP assistant: three sliding layers, one full, all reading the target's KV."""
    text = _text(name)
    keep = ("num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v", "sliding_window", "max_position_embeddings")
    small = {
        **_TEXT,
        **{key: text[key] for key in keep if key in text},
        **SIZES[name]["assistant"],
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 4,
        "vocab_size_per_layer_input": 0,
        "final_logit_softcapping": None,
        "layer_types": families.layers(4, 4),
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": text["hidden_size"],
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "use_ordered_embeddings": _has_audio(name),
        "text_config": small,
        **({"num_centroids": 2048, "centroid_intermediate_top_k": 32} if _has_audio(name) else {}),
    }
