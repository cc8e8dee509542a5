"""A checkpoint of compressed-tensors in symmetric 4 bits, written as GPTQModel or AutoRound would: packed by SGLang's own function."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

LEVELS = 8
ZEROS = {"v1": 0x77777777, "v2": -0x77777778}
"""Eight times 7, and 8."""


def write(source: Path, folder: Path, zeros: str = "v1", auto_round: bool = False, **changes: Any) -> Path:
    """``source`` in GPTQ's layout; its assistant is put beside it. ``changes`` go into the quantization_config."""
    import safetensors.torch

    shutil.copytree(source, folder)
    if (assistant := source.with_name(f"{source.name}-assistant")).exists():
        shutil.copytree(assistant, folder.with_name(f"{folder.name}-assistant"))
    settings = json.loads((source / "config.json").read_text())
    group = settings["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"]
    method = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"} if auto_round else {"quant_method": "gptq"}
    settings["quantization_config"] = {**method, "bits": 4, "group_size": group, "sym": True, "desc_act": False, **changes}
    (folder / "config.json").write_text(json.dumps(settings))
    given = safetensors.torch.load_file(source / "model.safetensors")
    tensors = {}
    for name, tensor in given.items():
        layer, _, part = name.rpartition(".")
        if part == "weight_packed":
            scales, inputs = given[f"{layer}.weight_scale"].T.contiguous(), tensor.shape[1] * LEVELS
            tensors[f"{layer}.qweight"] = packed(tensor)
            tensors[f"{layer}.scales"] = scales
            tensors[f"{layer}.qzeros"] = torch.full((scales.shape[0], scales.shape[1] // LEVELS), ZEROS[zeros], dtype=torch.int32)
            tensors[f"{layer}.g_idx"] = torch.arange(inputs, dtype=torch.int32) // group
        elif part not in ("weight_scale", "weight_shape"):
            tensors[name] = tensor
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def packed(weight: torch.Tensor) -> torch.Tensor:
    """Levels of ``weight_packed [outputs, inputs / 8]``, unpacked by compressed-tensors, as ``qweight [inputs / 8, outputs]``."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from sglang.srt.layers.quantization.utils import pack_rows

    outputs, inputs = weight.shape[0], weight.shape[1] * LEVELS
    levels = unpack_from_int32(weight, 4, torch.Size([outputs, inputs])).int() + 8
    found: torch.Tensor = pack_rows(levels.T.contiguous(), 4, inputs, outputs)
    return found
