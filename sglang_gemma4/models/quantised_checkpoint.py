"""Fits a quantised Gemma 4 checkpoint's names and tensors to SGLang's modules: ignored layers, routers and tables."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from sglang_gemma4.models import gptq_layout, quantised_names

_LISTS = ("ignore", "ignored_layers", "modules_to_not_convert")
_NEVER_QUANTISED = re.compile(r"(.*(?:router\.proj|embed_tokens|embed_tokens_per_layer|input_proj|pos_proj))\.(.+)")
"""Linear layers and embedding tables of Gemma 4 that SGLang builds without a quantisation config."""
_PARTS = ("weight", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "input_scale")
_EXPERTS_ZEROS = re.compile(r".*\.experts\.\d+\.\w+\.weight_zero_point$")


def map_names(quant_config: Any, model_config: Any, _load_config: Any) -> Any:
    """After ``_get_quantization_config``: add SGLang's names of the modules that the checkpoint names, in place.

    Returns the config.
    """
    if quant_config is None or not _is_gemma4(model_config):
        return quant_config
    from sglang.srt.models.gemma4_mm import Gemma4ForConditionalGeneration

    text = getattr(model_config.hf_config, "text_config", model_config.hf_config)
    attention = quantised_names.attention_of(text)
    for name in _LISTS:
        if isinstance(listed := getattr(quant_config, name, None), list):
            setattr(quant_config, name, quantised_names.mapped(listed, attention, Gemma4ForConditionalGeneration._remap_audio_tower_name))
    schemes = getattr(quant_config, "target_scheme_map", None)
    if isinstance(schemes, dict):
        for target, scheme in list(schemes.items()):
            for name in quantised_names.mapped([target], attention):
                schemes.setdefault(name, scheme)
    return quant_config


def _is_gemma4(model_config: Any) -> bool:
    return str((model_config.hf_config.architectures or [""])[0]).startswith("Gemma4")


def load(original: Callable[..., Any], model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
    """Around ``load_weights``: dequantise a quantised checkpoint's routers and tables, whose layers are not quantised.

    Tensors in GPTQ's layout are regrouped (``gptq_layout``).

    Raises:
        ValueError: some of a dequantised layer's tensors are missing.
    """
    config = getattr(model, "quant_config", None)
    if config is None:
        return original(model, weights)
    zeros = False
    if getattr(config, "ignore", None) is not None:  # compressed-tensors, or read as such
        weights = turned(gptq_layout.regrouped(weights, config.target_scheme_map))
        zeros = any(not scheme["weights"].symmetric for scheme in config.target_scheme_map.values() if scheme.get("weights") is not None)
    return original(model, dequantised(weights, getattr(config, "weight_block_size", None), zeros))


def turned(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, with zero points of experts transposed to ``[groups, outputs / 8]``, as SGLang holds them.

    SGLang itself transposes only values and scales (srt/layers/moe/fused_moe_triton/layer.py:1365).
    """
    for name, tensor in weights:
        yield name, tensor.T.contiguous() if _EXPERTS_ZEROS.match(name) else tensor


def dequantised(weights: Iterable[tuple[str, torch.Tensor]], block: Any = None, zeros: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, with quantised routers and tables as bfloat16 weights.

    SGLang would copy their quantised values and leave out the scales.

    Args:
        block: (outputs, inputs) that share an fp8 scale.
        zeros: whether integer values may have zero points.
    """
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in weights:
        found = _NEVER_QUANTISED.match(name)
        if found is None or found[2] not in _PARTS or (found[2] == "weight" and tensor.dtype != torch.float8_e4m3fn):
            yield name, tensor
            continue
        parts = waiting.setdefault(found[1], {})
        parts[found[2]] = tensor
        if (weight := _whole(parts, block, zeros)) is not None:
            del waiting[found[1]]
            yield f"{found[1]}.weight", weight
    for layer in list(waiting):  # symmetric layers, in a checkpoint that has others too
        if (weight := _whole(waiting[layer], block, False)) is not None:
            del waiting[layer]
            yield f"{layer}.weight", weight
    left = {layer: sorted(parts) for layer, parts in waiting.items() if set(parts) - {"input_scale", "weight_shape", "weight_zero_point"}}
    if left:
        layer, names = next(iter(left.items()))
        raise ValueError(
            f"of the quantised {layer} the checkpoint has {', '.join(names)} only; values and weight_scale are needed, of 4 and 8 bits "
            "weight_shape too"
        )


def _whole(parts: dict[str, torch.Tensor], block: Any, zeros: bool) -> torch.Tensor | None:
    """The bfloat16 weight, once its quantised values and scales have arrived; else None."""
    from sglang_gemma4.kernels.dequantise import float8_weight, packed_weight

    if "weight_scale" not in parts:
        return None
    scale = parts["weight_scale"]
    if "weight" in parts:
        return float8_weight(parts["weight"], scale, block=block).to(torch.bfloat16)
    if "weight_packed" in parts and "weight_shape" in parts and ("weight_zero_point" in parts or not zeros):
        packed = parts["weight_packed"]
        bits = 32 * packed.shape[-1] // int(parts["weight_shape"][-1])
        return packed_weight(packed, scale, bits, parts.get("weight_zero_point")).to(torch.bfloat16)
    return None
