"""config.json of the five released Gemma 4 sizes and their MTP assistants, for serving with random weights.

Laid out as the released checkpoints are: `global_head_dim` and `num_global_key_value_heads` next to the sliding values,
which transformers turns into a per-layer config. The numbers are in real_sizes.toml. Sources: transformers 5.19
models/gemma4/configuration_gemma4.py and what is public of the released config.json files. Not compared with the
released files: the 31B assistant's shape, E4B's `use_double_wide_mlp`, and parts of the vision and audio configs.
12B is a unified model: `gemma4_unified`, without towers; its assistant is `gemma4_unified_assistant`.
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
    """The fields that a size's text config adds to ``_TEXT``."""
    return {**_DATA[SIZES[name]["kind"]]["text"], **SIZES[name]["text"]}


def is_unified(name: str) -> bool:
    """Whether a size is a unified model: images and audio are projected by linear layers, without towers."""
    return bool(SIZES[name]["kind"] == "unified")


def _has_centroids(name: str) -> bool:
    return bool(SIZES[name]["kind"] == "edge")


def _part(name: str, modality: str) -> dict[str, Any] | None:
    """The ``vision_config`` or ``audio_config`` of a size, or None if it has none."""
    family = "gemma4_unified" if is_unified(name) else "gemma4"
    given = _DATA[SIZES[name]["kind"]].get(modality)
    return None if given is None else dict(given, model_type=f"{family}_{modality}", dtype="bfloat16")


def target(name: str) -> dict[str, Any]:
    """config.json of `google/gemma-4-<name>-it`."""
    text = {**_TEXT, **_text(name)}
    unified = is_unified(name)
    return dict(
        TOKENS,
        architectures=[f"Gemma4{'Unified' * unified}ForConditionalGeneration"],
        model_type="gemma4_unified" if unified else "gemma4",
        dtype="bfloat16",
        eos_token_id=[1, 106],
        tie_word_embeddings=True,
        vision_soft_tokens_per_image=280,
        vision_config=_part(name, "vision"),
        audio_config=_part(name, "audio"),
        text_config={**text, "layer_types": families.layers(SIZES[name]["period"], text["num_hidden_layers"])},
    )


def generation(name: str) -> dict[str, Any]:
    """generation_config.json of a size; a unified model never writes the end tokens of images and audio."""
    never = {"suppress_tokens": [TOKENS["eoi_token_id"], TOKENS["eoa_token_id"]]} if is_unified(name) else {}
    return {**GENERATION, **never}


def assistant(name: str) -> dict[str, Any]:
    """config.json of the size's MTP assistant: three sliding layers, one full, all reading the target's KV."""
    text = _text(name)
    keep = (
        "model_type",
        "num_key_value_heads",
        "num_global_key_value_heads",
        "attention_k_eq_v",
        "sliding_window",
        "max_position_embeddings",
    )
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
    unified = is_unified(name)
    return {
        "architectures": [f"Gemma4{'Unified' * unified}AssistantForCausalLM"],
        "model_type": "gemma4_unified_assistant" if unified else "gemma4_assistant",
        "backbone_hidden_size": text["hidden_size"],
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "use_ordered_embeddings": _has_centroids(name),
        "text_config": small,
        **({"num_centroids": 2048, "centroid_intermediate_top_k": 32} if _has_centroids(name) else {}),
    }
