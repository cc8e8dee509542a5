"""config.json of the four released Gemma 4 sizes and their MTP assistants, for serving with random weights.

Laid out as the released checkpoints are: `global_head_dim` and `num_global_key_value_heads` beside the sliding values,
which transformers turns into a per-layer config. What equals transformers' defaults is left out. Sources: transformers
5.19 models/gemma4/configuration_gemma4.py and what is public of the released config.json files. Not compared with the
released files: the 31B assistant's shape, E4B's `use_double_wide_mlp`, and parts of the vision and audio configs.
"""

from typing import Any

from sglang_gemma4.tiny import families

VOCABULARY = 262_144
TOKENS = {
    "boi_token_id": 255_999,
    "boa_token_id": 256_000,
    "image_token_id": 258_880,
    "audio_token_id": 258_881,
    "eoi_token_id": 258_882,
    "eoa_token_id": 258_883,
    "eoa_token_index": 258_883,
    "video_token_id": 258_884,
}
GENERATION: dict[str, Any] = {
    "bos_token_id": 2,
    "do_sample": True,
    "eos_token_id": [1, 106, 50],
    "pad_token_id": 0,
    "temperature": 1.0,
    "top_k": 64,
    "top_p": 0.95,
}
_SMALL_VISION: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "use_clipped_linears": True,
    "standardize": False,
}
_LARGE_VISION: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "use_clipped_linears": False,
    "standardize": True,
}
_EDGE: dict[str, Any] = {
    "num_attention_heads": 8,
    "sliding_window": 512,
    "max_position_embeddings": 131_072,
    "hidden_size_per_layer_input": 256,
}
_LARGE: dict[str, Any] = {
    "sliding_window": 1024,
    "max_position_embeddings": 262_144,
    "attention_k_eq_v": True,
    "use_bidirectional_attention": "vision",
}
# What differs from `_text`: the language model; then sliding layers per full one, the vision tower, whether there is audio.
SIZES: dict[str, dict[str, Any]] = {
    "e2b": {
        "period": 5,
        "vision": _SMALL_VISION,
        "audio": True,
        "assistant": {"hidden_size": 256, "intermediate_size": 2048, "num_attention_heads": 4},
        "text": dict(
            _EDGE,
            hidden_size=1536,
            intermediate_size=6144,
            num_hidden_layers=35,
            num_key_value_heads=1,
            num_kv_shared_layers=20,
            use_double_wide_mlp=True,
        ),
    },
    "e4b": {
        "period": 6,
        "vision": _SMALL_VISION,
        "audio": True,
        "assistant": {"hidden_size": 256, "intermediate_size": 2048, "num_attention_heads": 4},
        "text": dict(
            _EDGE, hidden_size=2560, intermediate_size=10_240, num_hidden_layers=42, num_key_value_heads=2, num_kv_shared_layers=18
        ),
    },
    "26b-a4b": {
        "period": 6,
        "vision": _LARGE_VISION,
        "audio": False,
        "assistant": {"hidden_size": 1024, "intermediate_size": 8192, "num_attention_heads": 16},
        "text": dict(
            _LARGE,
            hidden_size=2816,
            intermediate_size=2112,
            num_hidden_layers=30,
            num_attention_heads=16,
            num_key_value_heads=8,
            num_global_key_value_heads=2,
            enable_moe_block=True,
            num_experts=128,
            top_k_experts=8,
            moe_intermediate_size=704,
        ),
    },
    "31b": {
        "period": 6,
        "vision": _LARGE_VISION,
        "audio": False,
        "assistant": {"hidden_size": 1024, "intermediate_size": 8192, "num_attention_heads": 32},
        "text": dict(
            _LARGE,
            hidden_size=5376,
            intermediate_size=21_504,
            num_hidden_layers=60,
            num_attention_heads=32,
            num_key_value_heads=16,
            num_global_key_value_heads=4,
        ),
    },
}


def _text(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model_type": "gemma4_text",
        "vocab_size": VOCABULARY,
        "vocab_size_per_layer_input": VOCABULARY,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": None,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "enable_moe_block": False,
        "num_experts": None,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
    return {**base, **more}


def target(name: str) -> dict[str, Any]:
    """config.json of `google/gemma-4-<name>-it`."""
    size = SIZES[name]
    layers = families.layers(size["period"], size["text"]["num_hidden_layers"])
    return dict(
        TOKENS,
        architectures=["Gemma4ForConditionalGeneration"],
        model_type="gemma4",
        dtype="bfloat16",
        eos_token_id=[1, 106],
        tie_word_embeddings=True,
        vision_soft_tokens_per_image=280,
        vision_config=dict(size["vision"], model_type="gemma4_vision", dtype="bfloat16"),
        audio_config={"model_type": "gemma4_audio", "dtype": "bfloat16"} if size["audio"] else None,
        text_config=_text(**size["text"], layer_types=layers),
    )


def assistant(name: str) -> dict[str, Any]:
    """config.json of the size's MTP assistant: three sliding layers, one full, all reading the target's KV."""
    size, text = SIZES[name], SIZES[name]["text"]
    keep = ("num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v", "sliding_window", "max_position_embeddings")
    small = _text(
        **{k: text[k] for k in keep if k in text},
        **size["assistant"],
        num_hidden_layers=4,
        num_kv_shared_layers=4,
        vocab_size_per_layer_input=0,
        final_logit_softcapping=None,
        layer_types=families.layers(4, 4),
    )
    out = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": text["hidden_size"],
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "use_ordered_embeddings": size["audio"],
        "text_config": small,
    }
    return dict(out, num_centroids=2048, centroid_intermediate_top_k=32) if size["audio"] else out
