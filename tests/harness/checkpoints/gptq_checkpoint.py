"""A checkpoint of compressed-tensors in 4 bits, written as GPTQModel, AutoRound or AutoAWQ would; GPTQ's by SGLang's own packer."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ZEROS = {"v1": {4: 0x77777777, 8: 0x7F7F7F7F}, "v2": {4: -0x77777778, 8: -0x7F7F7F80}}
"""Packed zero points: v1 stores eight times 7 (4 bits) or four times 127 (8 bits), v2 8 or 128."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight consecutive outputs AutoAWQ's packer puts in a word's first, second, ... four bits."""
EIGHT = re.compile(r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj")
"""What Intel's mixed 26B-A4B has in 8 bits: all but the experts."""


def write(source: Path, folder: Path, zeros: str = "v1", auto_round: bool = False, group: int | None = None, **changes: Any) -> Path:
    """``source`` in GPTQ's layout; its assistant is put beside it. ``changes`` go into the quantization_config.

    Args:
        group: inputs of the groups, the last of which may be shorter; ``source`` is :func:`coarse` with them. None: those of ``source``.
    """
    import safetensors.torch

    _copy(source, folder)
    settings = json.loads((source / "config.json").read_text())
    own = settings["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"]
    size = group or own
    method = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"} if auto_round else {"quant_method": "gptq"}
    settings["quantization_config"] = {**method, "bits": 4, "group_size": size, "sym": True, "desc_act": False, **changes}
    (folder / "config.json").write_text(json.dumps(settings))
    given = safetensors.torch.load_file(source / "model.safetensors")
    tensors = {}
    for name, tensor in given.items():
        layer, _, part = name.rpartition(".")
        if part == "weight_packed":
            inputs = int(given[f"{layer}.weight_shape"][1])
            bits = 32 * tensor.shape[1] // inputs
            scales = given[f"{layer}.weight_scale"].T[:: size // own].contiguous()
            tensors[f"{layer}.qweight"] = packed(tensor, bits)
            tensors[f"{layer}.scales"] = scales
            tensors[f"{layer}.qzeros"] = torch.full((len(scales), scales.shape[1] * bits // 32), ZEROS[zeros][bits], dtype=torch.int32)
            tensors[f"{layer}.g_idx"] = torch.arange(inputs, dtype=torch.int32) // size
        elif part not in ("weight_scale", "weight_shape"):
            tensors[name] = tensor
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_awq(source: Path, folder: Path, **changes: Any) -> Path:
    """``source``, of int4 values with zero points, in AWQ's layout; its assistant is put next to it. ``changes`` go
    into the config."""
    import safetensors.torch

    _copy(source, folder)
    settings = json.loads((source / "config.json").read_text())
    size = settings["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"]
    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    settings["quantization_config"] = {**config, "modules_to_not_convert": ["lm_head", "vision_tower"], **changes}
    (folder / "config.json").write_text(json.dumps(settings))
    given = safetensors.torch.load_file(source / "model.safetensors")
    layers = {name.removesuffix(".weight_packed") for name in given if name.endswith(".weight_packed")}
    tensors = {name: tensor for name, tensor in given.items() if name.rpartition(".")[0] not in layers}
    for layer in layers:
        parts = {name: given[f"{layer}.{name}"] for name in ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")}
        tensors.update({f"{layer}.{name}": tensor for name, tensor in awq(parts, *parts["weight_shape"].tolist()).items()})
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def awq(parts: dict[str, torch.Tensor], outputs: int, inputs: int) -> dict[str, torch.Tensor]:
    """``qweight``, ``qzeros`` and ``scales`` of compressed-tensors' ``parts``, which its own function unpacks."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    groups = parts["weight_scale"].shape[1]
    levels = unpack_from_int32(parts["weight_packed"], 4, torch.Size([outputs, inputs])).long() + 8
    zeros = unpack_from_int32(parts["weight_zero_point"], 4, torch.Size([outputs, groups]), packed_dim=0).long() + 8
    return {"qweight": _awq_words(levels.T), "qzeros": _awq_words(zeros.T), "scales": parts["weight_scale"].T.contiguous()}


def _awq_words(levels: torch.Tensor) -> torch.Tensor:
    rows, outputs = levels.shape
    words = torch.zeros(rows, outputs // 8, dtype=torch.long)
    for word in range(outputs // 8):
        for place, one in enumerate(AWQ_ORDER):
            words[:, word] |= levels[:, 8 * word + one] << 4 * place
    return words.where(words < 2**31, words - 2**32).int()


def packed(weight: torch.Tensor, bits: int = 4) -> torch.Tensor:
    """Quantised values of ``weight_packed [outputs, words]``, unpacked by compressed-tensors, as ``qweight [words,
    outputs]``."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from sglang.srt.layers.quantization.utils import pack_rows

    outputs, inputs = weight.shape[0], weight.shape[1] * (32 // bits)
    levels = unpack_from_int32(weight, bits, torch.Size([outputs, inputs])).int() + (1 << (bits - 1))
    found: torch.Tensor = pack_rows(levels.T.contiguous(), bits, inputs, outputs)
    return found


def coarse(source: Path, folder: Path, group: int) -> Path:
    """``source`` with one scale, the largest, for all its groups within ``group`` inputs, the last of which may be fewer."""
    import safetensors.torch

    _copy(source, folder)
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    own = json.loads((source / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"]
    for name, scale in tensors.items():
        if name.endswith(".weight_scale"):
            parts = [part.amax(1, keepdim=True).expand_as(part) for part in scale.split(group // own, dim=1)]
            tensors[name] = torch.cat(parts, 1).contiguous()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def mixed(family: str, source: Path, folder: Path) -> Path:
    """``source``, a family's checkpoint in 4 bits, with the layers of :data:`EIGHT` in 8, as compressed-tensors has it."""
    import safetensors.torch

    from sglang_gemma4.tiny import checkpoints, quantise
    from sglang_gemma4.tiny.quantisation import FORMATS

    _copy(source, folder)
    settings = json.loads((source / "config.json").read_text())
    groups = settings["quantization_config"]["config_groups"]
    weights = {**groups["group_0"]["weights"], "num_bits": 8}
    groups["group_1"] = {**groups["group_0"], "weights": weights, "targets": [f"re:{EIGHT.pattern}"]}
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    form = replace(FORMATS["w4a16-g32"], weights=weights)
    for name, weight in safetensors.torch.load_file(checkpoints.SHIPPED / family / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if EIGHT.fullmatch(layer):
            tensors.update({f"{layer}.{part}": value.contiguous() for part, value in quantise.compress(weight, form).items()})
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def eight_bit_layers(folder: Path) -> list[str]:
    """Those of a checkpoint's layers that :func:`mixed` has in 8 bits."""
    import safetensors

    with safetensors.safe_open(folder / "model.safetensors", "pt") as tensors:
        return sorted({layer for name in tensors.keys() if EIGHT.fullmatch(layer := name.rpartition(".")[0])})  # noqa: SIM118


def _copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder)
    if (assistant := source.with_name(f"{source.name}-assistant")).exists():
        shutil.copytree(assistant, folder.with_name(f"{folder.name}-assistant"))
