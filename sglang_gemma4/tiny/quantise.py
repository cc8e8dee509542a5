"""Quantises a tiny checkpoint with compressed-tensors' own library, tensor by tensor, and lays it out as llm-compressor does.

Scales come from compressed-tensors' ``calculate_qparams`` over the extremes of each channel, group, block or tensor;
its compressor of the format makes the quantised values. Experts, which transformers keeps in two tensors per layer,
are written one by one (``experts.3.gate_proj.weight``). ``ignore`` names every linear layer that is not quantised, as
``QuantizationConfig.from_pretrained`` lists them. llm-compressor 0.14 is not used: it needs other versions of
transformers and compressed-tensors than SGLang 0.5.23.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compressed_tensors
import torch

from sglang_gemma4.checkpoint.tensor_layout import UNIFIED_NAMES
from sglang_gemma4.diagnostics.text_geometry import is_unified
from sglang_gemma4.tiny.quantisation import Format, config

_EXPERTS = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)$")
_LINEAR = re.compile(r"(?:.*\.)?(linear|[a-z_]*proj|[a-z_]*projection|per_layer_input_gate|patch_dense)\.weight$")
_QUANTISED = re.compile(r"(model\.)?language_model\.(?!.*\.router\.).*")


def is_chosen(layer: str) -> bool:
    """Whether a linear layer is quantised by default: it belongs to the language model and is not a router."""
    return _QUANTISED.match(f"{layer}.weight") is not None


def is_linear(name: str) -> bool:
    """Whether a tensor of this name is a linear layer's weight."""
    return _LINEAR.match(name) is not None


def ignored_names(layers: list[str], model: dict[str, Any]) -> list[str]:
    """``layers`` for an ``ignore`` list; a unified ``model``'s also under transformers' own names, which it does not save."""
    if not is_unified(model):
        return layers
    saved_as = {f"model.{saved}": f"model.{own}" for own, saved in UNIFIED_NAMES.items()}
    return [*layers, *(saved_as[layer] for layer in layers if layer in saved_as)]


def is_experts(name: str) -> bool:
    """Whether a tensor of this name holds one projection of all experts of a layer."""
    return _EXPERTS.match(name) is not None


def divides(weight: torch.Tensor, form: Format) -> bool:
    """Whether the format's blocks divide a weight ``[outputs, inputs]``."""
    return not any(size % max(part, 1) for size, part in zip(weight.shape, form.block, strict=True))


def quantised(
    folder: Path, form: Format, input_scales: dict[str, float] | None = None, chosen: Callable[[str], bool] = is_chosen
) -> dict[str, bytes]:
    """``config.json`` and ``model.safetensors`` of the checkpoint in ``folder``, quantised.

    Args:
        form: its blocks must divide the model's sizes (``quantisation.check_sizes``).
        input_scales: activation scales by linear layer, for a static format (``calibration.input_scales``).
        chosen: whether a linear layer of this name is quantised.
    """
    import safetensors.torch

    tensors: dict[str, torch.Tensor] = {}
    ignored = ["lm_head"]
    for name, tensor in one_by_one(safetensors.torch.load_file(folder / "model.safetensors")):
        layer = name.removesuffix(".weight")
        if not is_linear(name):
            tensors[name] = tensor
        elif chosen(layer) and divides(tensor, form):
            parts = compress(tensor, form)
            if input_scales is not None:
                parts["input_scale"] = torch.tensor([input_scales[layer]], dtype=tensor.dtype)
            tensors.update({f"{layer}.{part}": value.contiguous() for part, value in parts.items()})
        else:
            tensors[name] = tensor
            ignored.append(layer)
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {**config(form, ignored_names(ignored, settings)), "version": str(compressed_tensors.__version__)}
    return {
        "config.json": (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode(),
        "model.safetensors": safetensors.torch.save(tensors, metadata={"format": "pt"}),
    }


def compress(weight: torch.Tensor, form: Format, on_grid: bool = False) -> dict[str, torch.Tensor]:
    """The quantised values and scales of a weight ``[outputs, inputs]``, under compressed-tensors' names.

    Args:
        on_grid: at 4 bits, use Q4_0's scale for the groups that it reproduces better.
    """
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    group = config(form)["config_groups"]["group_0"]
    scheme = QuantizationScheme.model_validate(group)
    low, high = _extremes(weight, form.block)
    scale, zero_point = calculate_qparams(low, high, scheme.weights)
    if on_grid and form.weights["num_bits"] == 4:
        scale = _better(weight, scale, low, high)
    if form.weights["strategy"] == "tensor":
        scale, zero_point = scale.reshape(1), zero_point.reshape(1)
    parts = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    compressed: dict[str, torch.Tensor] = BaseCompressor.get_value_from_registry(form.layout).compress(parts, scheme)
    return compressed


def decompress(parts: dict[str, torch.Tensor], form: Format) -> torch.Tensor:
    """The dequantised weight of :func:`compress`'s parts, by compressed-tensors."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    scheme = QuantizationScheme.model_validate(config(form)["config_groups"]["group_0"])
    weight: torch.Tensor = BaseCompressor.get_value_from_registry(form.layout).decompress(parts, scheme)["weight"]
    return weight


def _better(weight: torch.Tensor, scale: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """``scale [outputs, groups]``, replaced where Q4_0's has less error; Q4_0's maps a group's value of largest magnitude to -8."""
    groups = weight.float().unflatten(1, (scale.shape[1], -1))
    largest = torch.where(high >= -low, high, low)
    other = torch.where(largest == 0, scale, largest / -8)

    def error(one: torch.Tensor) -> torch.Tensor:
        wide = one.float()[..., None]
        return (groups / wide).round_().clamp_(-8, 7).mul_(wide).sub_(groups).square_().sum(2)

    return torch.where(error(other) < error(scale), other, scale)


def _extremes(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimum and maximum of each block of (outputs, inputs), 0 for all: ``[outputs / block, inputs / block]`` each."""
    rows, columns = (size if part == 0 else part for part, size in zip(block, weight.shape, strict=True))
    blocks = weight.reshape(weight.shape[0] // rows, rows, weight.shape[1] // columns, columns)
    return blocks.amin((1, 3)), blocks.amax((1, 3))


def one_by_one(state: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """The tensors, with each expert's projections as separate ones."""
    found = []
    for name, tensor in sorted(state.items()):
        if not (experts := _EXPERTS.match(name)):
            found.append((name, tensor))
            continue
        for number, one in enumerate(tensor):
            parts = one.chunk(2) if experts[2] == "gate_up_proj" else (one,)
            names = ("gate_proj", "up_proj") if experts[2] == "gate_up_proj" else ("down_proj",)
            found += [(f"{experts[1]}.{number}.{part}.weight", value) for part, value in zip(names, parts, strict=True)]
    return found
