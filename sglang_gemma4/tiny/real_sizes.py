"""config.json of the four released Gemma 4 sizes and their MTP assistants, for serving with random weights.

Laid out as the released checkpoints are: `global_head_dim` and `num_global_key_value_heads` beside the sliding values,
which transformers turns into a per-layer config. Sources: transformers 5.19 models/gemma4/configuration_gemma4.py and what
is public of the released config.json files. Not compared with the released files: the 31B assistant's shape, E4B's
`use_double_wide_mlp`, and parts of the vision and audio configs.
"""

from __future__ import annotations

import copy
from typing import Any

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
_ROPE = {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"},
    "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
}
_AUDIO: dict[str, Any] = {
    "model_type": "gemma4_audio",
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "hidden_act": "silu",
    "subsampling_conv_channels": [128, 32],
    "conv_kernel_size": 5,
    "residual_weight": 0.5,
    "attention_chunk_size": 12,
    "attention_context_left": 13,
    "attention_context_right": 0,
    "attention_logit_cap": 50.0,
    "attention_invalid_logits_value": -1.0e9,
    "use_clipped_linears": True,
    "rms_norm_eps": 1e-6,
    "gradient_clipping": 1e10,
    "output_proj_dims": 1536,
    "initializer_range": 0.02,
    "dtype": "bfloat16",
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
        "attention_k_eq_v": False,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "num_experts": None,
        "top_k_experts": None,
        "moe_intermediate_size": None,
        "use_bidirectional_attention": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "dtype": "bfloat16",
        "rope_parameters": copy.deepcopy(_ROPE),
    }
    return {**base, **more}


def target(name: str) -> dict[str, Any]:
    """config.json of `google/gemma-4-<name>-it`."""
    size = SIZES[name]
    layers = ["full_attention" if (i + 1) % size["period"] == 0 else "sliding_attention" for i in range(size["text"]["num_hidden_layers"])]
    vision = dict(
        size["vision"],
        model_type="gemma4_vision",
        patch_size=16,
        pooling_kernel_size=3,
        position_embedding_size=10_240,
        hidden_activation="gelu_pytorch_tanh",
        rms_norm_eps=1e-6,
        max_position_embeddings=131_072,
        attention_bias=False,
        attention_dropout=0.0,
        rope_parameters={"rope_theta": 100.0, "rope_type": "axial"},
        initializer_range=0.02,
        dtype="bfloat16",
    )
    return dict(
        TOKENS,
        architectures=["Gemma4ForConditionalGeneration"],
        model_type="gemma4",
        dtype="bfloat16",
        eos_token_id=[1, 106],
        initializer_range=0.02,
        tie_word_embeddings=True,
        vision_soft_tokens_per_image=280,
        vision_config=vision,
        audio_config=copy.deepcopy(_AUDIO) if size["audio"] else None,
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
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
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
