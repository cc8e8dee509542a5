"""A released size's text and vision config as plain values: those of transformers' classes, without importing torch.

``capacity`` answers at once with these. ``tests/unit/test_plain_config.py`` compares every value with transformers.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

TEXT: dict[str, Any] = {
    "num_attention_heads": 8,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "num_experts": None,
    "top_k_experts": None,
    "moe_intermediate_size": None,
    "rope_parameters": {"sliding_attention": {}, "full_attention": {"partial_rotary_factor": 0.25}},
}
VISION: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "head_dim": 64,
    "patch_size": 16,
    "pooling_kernel_size": 3,
}
"""transformers' defaults of the values that are read here (models/gemma4/configuration_gemma4.py)."""


def text(config: Mapping[str, Any]) -> SimpleNamespace:
    """The language model's config of a config.json as ``tiny.real_sizes`` writes it, with each layer's heads."""
    given = {**TEXT, **config["text_config"]}
    sliding = SimpleNamespace(num_key_value_heads=given["num_key_value_heads"], head_dim=given["head_dim"])
    wide = given["num_global_key_value_heads"] if given["attention_k_eq_v"] else None
    full = SimpleNamespace(num_key_value_heads=wide or sliding.num_key_value_heads, head_dim=given["global_head_dim"])
    by_layer = [full if kind == "full_attention" else sliding for kind in given["layer_types"]]
    return SimpleNamespace(**given, per_layer_config=by_layer)


def vision(config: Mapping[str, Any]) -> SimpleNamespace:
    """The vision tower's config, or the projection's of a unified model."""
    return SimpleNamespace(**{**VISION, **config["vision_config"]})
