"""Names and shapes of the tensors of a Gemma 4 target or assistant, from its configuration.

Names are the model's own without the leading ``model.``: ``language_model.layers.0.mlp.up_proj.weight``,
``vision_tower.…``, ``lm_head.weight``. Names of clipped layers omit ``linear.``. ``tests/unit/test_tensor_layout.py``
compares them with transformers' modules.

SGLang is not imported.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sglang_gemma4.diagnostics.text_geometry import LayerGeometry, TextGeometry, is_unified, text_geometry

Shape = tuple[int, ...]
Config = Mapping[str, Any]
PERIOD = 6
"""By default every sixth layer has full attention."""
TEXT_PARTS = "layers|embed_tokens|embed_tokens_per_layer|norm|per_layer_model_projection|per_layer_projection_norm"
_TEXT = re.compile(rf"(?:model\.|language_model\.)*((?:{TEXT_PARTS})\..*)$")
_HEAD = re.compile(r"(?:model\.|language_model\.)*(lm_head\..*)$")
UNIFIED_NAMES = {
    **{
        f"embed_vision.{part}": f"vision_embedder.{part}" for part in ("patch_ln1", "patch_dense", "patch_ln2", "pos_embedding", "pos_norm")
    },
    "embed_vision.multimodal_embedder.embedding_projection": "embed_vision.embedding_projection",
}
"""Names of a 12B's modules as transformers saves them without renaming, and the names that SGLang reads.

Both lack the leading ``model.``.
"""


def mapped(name: str) -> str:
    """The name that SGLang reads for a tensor of a text-only, older or released checkpoint; other names stay."""
    if (text := _TEXT.match(name)) is not None:
        return f"model.language_model.{text[1]}"
    if (head := _HEAD.match(name)) is not None:
        return head[1]
    bare = name.removeprefix("model.")
    return next((f"model.{new}{bare.removeprefix(old)}" for old, new in UNIFIED_NAMES.items() if bare.startswith(old)), name)


def plain(name: str) -> str:
    """The name that :func:`tensors` uses for a checkpoint's tensor."""
    short = mapped(name).removeprefix("model.")
    if "_tower." in short:
        short = short.replace(".linear.", ".")
    short = short.replace(".moe.experts.", ".experts.").replace(".moe.per_expert_scale", ".router.per_expert_scale")  # SGLang takes both
    return short.removeprefix("masked_embedding.")


def is_assistant(config: Config) -> bool:
    """Whether a configuration is an MTP assistant's."""
    return "backbone_hidden_size" in config


def is_tied(config: Config) -> bool:
    """Whether the head is the embedding. Like transformers, this reads only the top level of the config."""
    return bool(config.get("tie_word_embeddings", True))


def tensors(config: Config, towers: bool = True) -> dict[str, Shape | None]:
    """Every tensor that a model needs, by name, with its shape; None where the shape is not checked.

    Args:
        config: a config.json, or its transformers object's ``to_dict()``.
        towers: whether images and audio are served, too.
    """
    text = config.get("text_config") or config
    geometry = text_geometry(dict(config))
    found: dict[str, Shape | None] = {f"language_model.{name}": shape for name, shape in _text(text, geometry, is_assistant(config))}
    if not is_tied(config):
        found["lm_head.weight"] = (geometry.vocab_size, geometry.hidden_size)
    if is_assistant(config):
        found.update(_assistant(config, geometry))
    elif towers:
        found.update(_unified(config, geometry.hidden_size) if is_unified(config) else _towers(config, geometry.hidden_size))
    return found


def _text(text: Config, geometry: TextGeometry, is_draft: bool) -> Iterator[tuple[str, Shape]]:
    hidden, layers = geometry.hidden_size, int(text.get("num_hidden_layers", 30))
    per_layer = 0 if is_unified(text) or is_draft else text.get("hidden_size_per_layer_input", 256) or 0
    yield "embed_tokens.weight", (geometry.vocab_size, hidden)
    yield "norm.weight", (hidden,)
    if per_layer:
        yield "embed_tokens_per_layer.weight", (text.get("vocab_size_per_layer_input", 262_144), layers * per_layer)
        yield "per_layer_model_projection.weight", (layers * per_layer, hidden)
        yield "per_layer_projection_norm.weight", (per_layer,)
    shared = layers if is_draft else text.get("num_kv_shared_layers", 0) or 0
    for number in range(layers):
        for name, shape in _layer(text, geometry, number, number >= layers - shared, is_draft, per_layer):
            yield f"layers.{number}.{name}", shape


def kind_of(text: Config, number: int) -> str:
    """The attention type of a layer."""
    named = text.get("layer_types")
    if named:
        return str(named[number])
    last = number == int(text.get("num_hidden_layers", 30)) - 1
    return "full_attention" if last or (number + 1) % PERIOD == 0 else "sliding_attention"


def _layer(
    text: Config, geometry: TextGeometry, number: int, is_shared: bool, is_draft: bool, per_layer: int
) -> Iterator[tuple[str, Shape]]:
    hidden, kind = geometry.hidden_size, kind_of(text, number)
    has_experts = bool(text.get("enable_moe_block"))
    for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
        yield f"{norm}.weight", (hidden,)
    k_is_v = bool(text.get("attention_k_eq_v")) and kind == "full_attention"
    yield from _attention(text, geometry.layers[kind], hidden, is_shared, k_is_v)
    wide = bool(text.get("use_double_wide_mlp")) and is_shared and not is_draft
    yield from _mlp("mlp", hidden, text.get("intermediate_size", 9216) * (2 if wide else 1))
    if has_experts:
        yield from _experts(text, hidden)
    if per_layer:
        yield "per_layer_input_gate.weight", (per_layer, hidden)
        yield "per_layer_projection.weight", (hidden, per_layer)
        yield "post_per_layer_input_norm.weight", (hidden,)


def _attention(text: Config, kv: LayerGeometry, hidden: int, is_shared: bool, k_is_v: bool) -> Iterator[tuple[str, Shape]]:
    queries = text.get("num_attention_heads", 8) * kv.head_dim
    yield "self_attn.q_proj.weight", (queries, hidden)
    yield "self_attn.o_proj.weight", (hidden, queries)
    yield "self_attn.q_norm.weight", (kv.head_dim,)
    if not is_shared:
        yield "self_attn.k_norm.weight", (kv.head_dim,)
        yield "self_attn.k_proj.weight", (kv.kv_heads * kv.head_dim, hidden)
        if not k_is_v:
            yield "self_attn.v_proj.weight", (kv.kv_heads * kv.head_dim, hidden)


def _mlp(name: str, hidden: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.gate_proj.weight", (inner, hidden)
    yield f"{name}.up_proj.weight", (inner, hidden)
    yield f"{name}.down_proj.weight", (hidden, inner)


def _experts(text: Config, hidden: int) -> Iterator[tuple[str, Shape]]:
    experts, inner = int(text["num_experts"]), int(text["moe_intermediate_size"])
    yield "router.proj.weight", (experts, hidden)
    yield "router.scale", (hidden,)
    yield "router.per_expert_scale", (experts,)
    yield "experts.gate_up_proj", (experts, 2 * inner, hidden)
    yield "experts.down_proj", (experts, hidden, inner)
    for norm in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
        yield f"{norm}.weight", (hidden,)


def _assistant(config: Config, geometry: TextGeometry) -> Iterator[tuple[str, Shape]]:
    hidden, backbone = geometry.hidden_size, int(config["backbone_hidden_size"])
    yield "pre_projection.weight", (hidden, 2 * backbone)
    yield "post_projection.weight", (backbone, hidden)
    if config.get("use_ordered_embeddings"):
        yield "centroids.weight", (int(config.get("num_centroids", 2048)), hidden)
        yield "token_ordering", (geometry.vocab_size,)


def _unified(config: Config, hidden: int) -> Iterator[tuple[str, Shape | None]]:
    vision, audio = config.get("vision_config"), config.get("audio_config")
    if vision is not None:
        yield from (
            (f"vision_embedder.{norm}.{part}", None) for norm in ("patch_ln1", "patch_ln2", "pos_norm") for part in ("weight", "bias")
        )
        yield "vision_embedder.patch_dense.weight", None
        yield "vision_embedder.patch_dense.bias", None
        yield "vision_embedder.pos_embedding", None
        yield "embed_vision.embedding_projection.weight", (hidden, int(vision.get("output_proj_dims", 3840)))
    if audio is not None:
        yield "embed_audio.embedding_projection.weight", None


def _towers(config: Config, hidden: int) -> Iterator[tuple[str, Shape | None]]:
    vision, audio = config.get("vision_config"), config.get("audio_config")
    if vision is not None:
        yield "embed_vision.embedding_projection.weight", (hidden, int(vision.get("hidden_size", 768)))
        yield from ((f"vision_tower.{name}", shape) for name, shape in _vision(vision))
    if audio is not None:
        yield "embed_audio.embedding_projection.weight", (hidden, int(audio.get("output_proj_dims", 1536)))
        yield from ((f"audio_tower.{name}", None) for name in _audio(audio))


def _vision(vision: Config) -> Iterator[tuple[str, Shape | None]]:
    hidden, size, patch = vision.get("hidden_size", 768), vision.get("head_dim", 64), vision.get("patch_size", 16)
    yield "patch_embedder.input_proj.weight", (hidden, 3 * patch**2)
    yield "patch_embedder.position_embedding_table", (2, vision.get("position_embedding_size", 10_240), hidden)
    if vision.get("standardize"):
        yield "std_bias", (hidden,)
        yield "std_scale", (hidden,)
    queries, keys = vision.get("num_attention_heads", 12) * size, vision.get("num_key_value_heads", 12) * size
    for number in range(vision.get("num_hidden_layers", 16)):
        at = f"encoder.layers.{number}"
        yield from ((f"{at}.self_attn.{one}_proj.weight", (rows, hidden)) for one, rows in (("q", queries), ("k", keys), ("v", keys)))
        yield f"{at}.self_attn.o_proj.weight", (hidden, queries)
        yield from ((f"{at}.self_attn.{one}_norm.weight", (size,)) for one in "qk")
        yield from _mlp(f"{at}.mlp", hidden, vision.get("intermediate_size", 3072))
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield f"{at}.{norm}.weight", (hidden,)


_AUDIO_LAYER = (
    *(f"feed_forward{one}.{part}.weight" for one in "12" for part in ("ffw_layer_1", "ffw_layer_2", "pre_layer_norm", "post_layer_norm")),
    *(f"self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "post", "relative_k_proj")),
    "self_attn.per_dim_scale",
    *(f"lconv1d.{part}.weight" for part in ("linear_start", "linear_end", "depthwise_conv1d", "pre_layer_norm", "conv_norm")),
    *(f"{norm}.weight" for norm in ("norm_pre_attn", "norm_post_attn", "norm_out")),
)


def _audio(audio: Config) -> Iterator[str]:
    yield from (f"subsample_conv_projection.layer{one}.{part}.weight" for one in "01" for part in ("conv", "norm"))
    yield "subsample_conv_projection.input_proj_linear.weight"
    yield "output_proj.weight"
    yield "output_proj.bias"
    for number in range(audio.get("num_hidden_layers", 12)):
        yield from (f"layers.{number}.{name}" for name in _AUDIO_LAYER)
