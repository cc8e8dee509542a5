"""The shapes of a Gemma 4 text model that target and assistant must agree on, from any spelling of its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LayerGeometry:
    """KV shape of one layer type: heads and head dimension."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class TextGeometry:
    """The shapes that target and assistant must agree on."""

    hidden_size: int
    vocab_size: int
    layers: dict[str, LayerGeometry]  # by layer type: sliding_attention, full_attention
    last_types: tuple[str, ...]  # of the last two layers, whose KV a draft reads; empty if the config does not say
    sliding_window: int  # keys, the query's own included


def is_unified(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is a Gemma 4 Unified model's, or its assistant's."""
    return str(config.get("model_type")).startswith("gemma4_unified")


def text_geometry(config: dict[str, Any]) -> TextGeometry:
    """Geometry of a Gemma 4 text model from any of the spellings in use.

    transformers 5.19 writes ``head_dim`` for the sliding layers and ``per_layer_config`` for the full ones, the
    released checkpoints ``global_head_dim`` and ``num_global_key_value_heads``, SGLang's own text-only form the
    full layers' values under the plain names and the sliding ones under ``swa_*``.
    """
    text = config.get("text_config") or config
    head_dim, kv_heads = text.get("head_dim", 256), text.get("num_key_value_heads", 4)
    if "swa_head_dim" in text:
        sliding = LayerGeometry(text.get("swa_num_key_value_heads", kv_heads), text["swa_head_dim"])
        full = LayerGeometry(kv_heads, head_dim)
    else:
        sliding = LayerGeometry(kv_heads, head_dim)
        override = next(iter((text.get("per_layer_config") or {}).values()), None)
        if override is None:
            global_heads = text.get("num_global_key_value_heads") if text.get("attention_k_eq_v") else None
            override = {"head_dim": text.get("global_head_dim", 512), "num_key_value_heads": global_heads}
        full = LayerGeometry(override.get("num_key_value_heads") or kv_heads, override.get("head_dim", head_dim))
    by_type = {"sliding_attention": sliding, "full_attention": full}
    named = text.get("layer_types") or ()
    layer_types = set(named or by_type)
    return TextGeometry(
        hidden_size=text.get("hidden_size", 2304),
        vocab_size=text.get("vocab_size", 262_144),
        layers={name: geometry for name, geometry in by_type.items() if name in layer_types},
        last_types=tuple(dict.fromkeys(named[-2:])),
        sliding_window=text.get("sliding_window", 1024 if is_unified(text) else 512),
    )
