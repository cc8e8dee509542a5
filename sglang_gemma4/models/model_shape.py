"""Sizes of a Gemma 4 model or assistant from its config.json.

Layers, parameters, KV bytes per token, and the experts and keys that tokens read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ConfigJson = Mapping[str, Any]


@dataclass(frozen=True)
class Layer:
    """A decoder layer's shape.

    ``window`` is None on full attention; ``owns_kv`` is False on layers that read another layer's KV.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    owns_kv: bool
    k_equals_v: bool  # one projection gives both; the cache still holds both, because their norms and RoPE differ
    ffn: int
    rotated: int  # leading dimensions of a head that RoPE rotates

    def projections(self, hidden: int) -> list[tuple[int, int]]:
        """(inputs, outputs) of the fused q/k/v projection and of the output projection."""
        kv = self.kv_heads * self.head_dim * (0 if not self.owns_kv else 1 if self.k_equals_v else 2)
        return [(hidden, self.heads * self.head_dim + kv), (self.heads * self.head_dim, hidden)]


def text_config(config: ConfigJson) -> Any:
    """The language model's configuration as transformers reads it, from the dict of a config.json.

    Raises:
        ValueError: it is not a Gemma 4 configuration.
    """
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

    text = dict(config.get("text_config") or config)
    if text.get("model_type") == "gemma4_unified_text":  # 12B's: the same layers, other defaults
        from sglang_gemma4.models import unified_config

        text = {**unified_config.text(text), "model_type": "gemma4_text"}
    if text.get("model_type") != "gemma4_text":
        raise ValueError(
            f"model_type {text.get('model_type')!r} is not gemma4_text or gemma4_unified_text; give the config.json of a Gemma 4 model"
        )
    return Gemma4TextConfig(**text)


def layers(text: Any, all_shared: bool = False) -> list[Layer]:
    """Every decoder layer of a :func:`text_config`; ``all_shared``: an assistant's layers, which read a target's KV."""
    first_shared = 0 if all_shared else text.num_hidden_layers - text.num_kv_shared_layers
    found = []
    for index, kind in enumerate(text.layer_types):
        own = text.per_layer_config[index]
        sliding = kind == "sliding_attention"
        wide = text.use_double_wide_mlp and index >= first_shared > 0
        factor = text.rope_parameters[kind].get("partial_rotary_factor", 1.0)
        found.append(
            Layer(
                heads=text.num_attention_heads,
                kv_heads=own.num_key_value_heads,
                head_dim=own.head_dim,
                window=text.sliding_window if sliding else None,
                owns_kv=index < first_shared,
                k_equals_v=text.attention_k_eq_v and not sliding,
                ffn=text.intermediate_size * (2 if wide else 1),
                rotated=int(own.head_dim * factor),
            )
        )
    return found


def parameters(config: ConfigJson, text: Any = None) -> dict[str, int]:
    """Parameters of the language model (or assistant) by group, without vision and audio.

    The groups are "embedding" (tied to the LM head), "per-layer embedding", "dense gemm" without the head, "moe
    experts" and "norm" (scales included). ``text``: its :func:`text_config`, if the caller has it.
    """
    draft = "backbone_hidden_size" in config
    text = text_config(config) if text is None else text
    hidden, experts, ple = text.hidden_size, text.num_experts if text.enable_moe_block else 0, text.hidden_size_per_layer_input
    count = {
        "embedding": text.vocab_size * hidden,
        "per-layer embedding": (text.vocab_size_per_layer_input if ple else 0) * text.num_hidden_layers * ple,
        "dense gemm": hidden * text.num_hidden_layers * ple,
        "moe experts": 3 * hidden * (text.moe_intermediate_size or 0) * experts * text.num_hidden_layers,
        "norm": hidden + ple,
    }
    for layer in layers(text, all_shared=draft):
        count["dense gemm"] += (
            sum(k * n for k, n in layer.projections(hidden)) + 3 * hidden * layer.ffn + hidden * experts + 2 * hidden * ple
        )
        count["norm"] += 4 * hidden + layer.head_dim * (2 if layer.owns_kv else 1) + (hidden if ple else 0)
        count["norm"] += 4 * hidden + experts if experts else 0
    if draft:
        count["dense gemm"] += 3 * config["backbone_hidden_size"] * hidden
        count["dense gemm"] += config["num_centroids"] * hidden if config.get("use_ordered_embeddings") else 0
    return count


def kv_bytes_per_token(config: ConfigJson, kv_bytes: float = 2, scale_bytes: float = 0) -> dict[str, float]:
    """KV cache that one token takes in the layers that own theirs: {"full": bytes, "sliding": bytes}.

    ``scale_bytes``: bytes of scales per token and head, in a cache that has them.
    """
    count = {"full": 0.0, "sliding": 0.0}
    for layer in layers(text_config(config)):
        if layer.owns_kv:
            count["full" if layer.window is None else "sliding"] += 2 * layer.kv_heads * (layer.head_dim * kv_bytes + scale_bytes)
    return count


def distinct(choices: int, picks: int, tokens: int) -> float:
    """Expected number of different ``choices`` (experts) of ``tokens`` that each pick ``picks`` uniformly.

    It is E·(1 − (1 − k/E)^T). Real routing is not uniform and hits fewer.
    """
    return choices * (1 - (1 - picks / choices) ** tokens)


def keys_read(context: int, queries: int, window: int | None) -> int:
    """Keys that at least one of the last ``queries`` of ``context`` tokens sees.

    A ``window`` includes the query's own key.
    """
    return context if window is None else min(context, window + queries - 1)


def keys_attended(context: int, queries: int, window: int | None) -> int:
    """Query-key pairs of the last ``queries`` of ``context`` tokens, causally masked: Σ min(position + 1, window)."""
    first = context - queries + 1
    limit = context if window is None else min(window, context)
    growing = max(0, min(queries, limit - first + 1))  # queries that still see every key before them
    return growing * first + growing * (growing - 1) // 2 + (queries - growing) * limit
