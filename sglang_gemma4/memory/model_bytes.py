"""Bytes of GPU memory that a Gemma 4 model takes, from its config: weights, what is kept beside them, KV per token."""

from dataclasses import dataclass, field
from typing import Any

from sglang_gemma4.memory import reserve
from sglang_gemma4.models import model_shape, plain_config
from sglang_gemma4.tiny import quantisation, real_sizes
from sglang_gemma4.tiny.quantisation import Format

BUFFERS = 0.08 * reserve.GIB
"""Bytes that loading takes besides weights, the sine and cosine caches, and what :func:`_beside` counts.

0.07 to 0.1 GiB on E2B, E4B and 26B-A4B (weights_gb of runs).
"""
LARGE, ROUNDED_TO = 10 * reserve.MIB, 2 * reserve.MIB
"""PyTorch's allocator gives each tensor of at least ``LARGE`` bytes its own block, a multiple of ``ROUNDED_TO``."""


@dataclass(frozen=True)
class Need:
    """Bytes that a model takes: ``weights`` with buffers, ``towers``, ``draft``, and KV of one token by layer type.

    ``all_*`` counts every decoder layer, as stock does; ``own_*`` those that own their KV. ``full_layer`` is the KV of
    one full layer. ``text`` and ``vision`` are configs (``models.plain_config``). ``written_out``: scratch in which a
    layer's 4-bit weights are dequantised on Hopper. ``dense_copies``: all of a MoE's 4-bit dense weights in bfloat16,
    if the patch ``dense_copies`` has room for them.
    """

    weights: float
    towers: float
    draft: float
    all_full: float
    all_sliding: float
    own_full: float
    own_sliding: float
    full_layer: float
    window: int
    experts: int
    draft_layers: int
    text: Any = field(repr=False, compare=False)
    vision: Any = field(repr=False, compare=False)
    written_out: float = 0.0
    dense_copies: float = 0.0


def need(name: str, kv_bytes: float = 2, tp: int = 1, scale_bytes: float = 0, form: Format | None = None) -> Need:
    """What one of ``tp`` ranks needs for a real size, from its config.

    ``kv_bytes``: bytes per element of the KV cache. ``scale_bytes``: bytes of scales per token and head. ``form``:
    format of the language model's linear layers; routers, embeddings, norms, towers and the draft stay in bfloat16.

    Raises:
        ValueError: the size is unknown, the format does not divide it, or ``tp`` does not divide its query heads.
    """
    if name not in real_sizes.SIZES:
        raise ValueError(f"unknown size {name!r}; there are {', '.join(real_sizes.SIZES)}")
    config = real_sizes.target(name)
    if form is not None:
        quantisation.check_sizes(name, config["text_config"], form)
    text = plain_config.text(config)
    layers = model_shape.layers(text)
    if tp < 1 or layers[0].heads % tp:
        raise ValueError(f"--tp-size {tp} does not divide the {layers[0].heads} attention heads of {name}; choose a divisor")

    def per_token(full: bool, own: bool) -> float:
        kept = [layer for layer in layers if (layer.window is None) == full and (layer.owns_kv or not own)]
        return sum(2 * max(1, layer.kv_heads // tp) * (layer.head_dim * kv_bytes + scale_bytes) for layer in kept)

    full, sliding = ([layer for layer in layers if (layer.window is None) == wide] for wide in (True, False))
    draft = real_sizes.assistant(name)
    counted = model_shape.parameters(config, text)
    positions = text.max_position_embeddings
    return Need(
        weights=_weights(counted, text, form) / tp
        + _beside(layers, text, form, tp)
        + 4 * positions * (full[0].head_dim + sliding[0].head_dim)
        + BUFFERS,
        towers=2 * real_sizes.SIZES[name]["towers"] / tp,
        draft=2 * sum(model_shape.parameters(draft, plain_config.text(draft)).values()) / tp,
        all_full=per_token(True, False),
        all_sliding=per_token(False, False),
        own_full=per_token(True, True),
        own_sliding=per_token(False, True),
        full_layer=per_token(True, False) / len(full),
        window=int(text.sliding_window),
        experts=int(text.num_experts or 0) if text.enable_moe_block else 0,
        draft_layers=len(draft["text_config"]["layer_types"]),
        text=text,
        vision=plain_config.vision(config),
        written_out=_written_out(text, form) / tp,
        dense_copies=_dense_copies(counted, layers, text, form) / tp,
    )


def _written_out(text: Any, form: Format | None) -> float:
    """Bytes of the largest dense weight plus the larger weight of a layer's experts, in bfloat16.

    This is the scratch of ``kernels/written_out.py``; 0 for other than 4-bit weights.
    """
    if form is None or form.weights["num_bits"] != 4:
        return 0.0
    outputs = [(2 * layer.ffn, (layer.heads + 2 * layer.kv_heads) * layer.head_dim) for layer in model_shape.layers(text)]
    dense = max(map(max, outputs))
    experts = 2 * text.num_experts * text.moe_intermediate_size if text.enable_moe_block else 0
    return 2.0 * int(text.hidden_size * (dense + experts))


def _dense_copies(parameters: dict[str, int], layers: list[Any], text: Any, form: Format | None) -> float:
    """Bytes of a MoE's dense weights in bfloat16, without routers. K = V layers hold that projection twice."""
    if form is None or form.weights["num_bits"] != 4 or not text.enable_moe_block:
        return 0.0
    twice: int = sum(layer.kv_heads * layer.head_dim * text.hidden_size for layer in layers if layer.k_equals_v)
    return 2.0 * (parameters["dense gemm"] - _routers(text) + twice)


def _routers(text: Any) -> int:
    return int(text.hidden_size * text.num_experts * text.num_hidden_layers) if text.enable_moe_block else 0


def _weights(parameters: dict[str, int], text: Any, form: Format | None) -> float:
    """Bytes of the language model's weights and scales. Loading ``--quantization fp8`` takes the bfloat16 bytes."""
    if form is None:
        return 2.0 * sum(parameters.values())
    linear = parameters["dense gemm"] + parameters["moe experts"] - _routers(text)
    return linear * form.bytes_per_weight + 2.0 * (sum(parameters.values()) - linear)


def _beside(layers: list[Any], text: Any, form: Format | None, tp: int) -> float:
    """Bytes per rank that SGLang's linear layers take beyond the checkpoint's weights.

    In K = V layers ``qkv_proj`` holds that projection twice, and the allocator rounds large tensors up.
    """
    each, hidden = 2.0 if form is None else form.bytes_per_weight, text.hidden_size
    found = 0.0
    for layer in layers:
        kept = layer.head_dim * max(1, layer.kv_heads // tp)
        found += each * hidden * kept if layer.k_equals_v else 0
        query = layer.heads * layer.head_dim // tp
        outputs = [query + 2 * kept, query, 2 * layer.ffn // tp, layer.ffn // tp]
        if text.enable_moe_block:
            outputs += [share * text.num_experts * text.moe_intermediate_size // tp for share in (2, 1)]
        found += sum(-(each * hidden * size) % ROUNDED_TO for size in outputs if each * hidden * size >= LARGE)
    return found
