"""A 4-bit 26B-A4B checkpoint as published ones are laid out: experts in one tensor a layer, inputs ordered for the calibration alone.

Quantisers that do not take transformers' two tensors of experts apart write ``experts.gate_up_proj_packed [experts, outputs, inputs / 8]``
and ``…_scale``. llm-compressor's GPTQ has ``actorder: static`` by default, which later releases of compressed-tensors call ``weight``.
"""

import json
import re
import shutil
from pathlib import Path

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight_(packed|scale|shape)$")


def write(source: Path, folder: Path, actorder: str | None = "static") -> Path:
    """``source``, whose experts are one by one, as such a checkpoint; its assistant is put beside it."""
    import safetensors.torch
    import torch

    shutil.copytree(source, folder)
    shutil.copytree(source.with_name(f"{source.name}-assistant"), folder.with_name(f"{folder.name}-assistant"))
    settings = json.loads((source / "config.json").read_text())
    settings["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = actorder
    (folder / "config.json").write_text(json.dumps(settings))
    tensors: dict[str, torch.Tensor] = {}
    experts: dict[tuple[str, str], dict[tuple[str, int], torch.Tensor]] = {}
    for name, tensor in safetensors.torch.load_file(source / "model.safetensors").items():
        if (found := _EXPERT.match(name)) is None:
            tensors[name] = tensor
        elif found[4] != "shape":
            experts.setdefault((found[1], found[4]), {})[found[3], int(found[2])] = tensor
    for (layer, part), one in experts.items():
        numbers = range(len(one) // 3)
        tensors[f"{layer}.gate_up_proj_{part}"] = torch.stack([torch.cat([one["gate", n], one["up", n]]) for n in numbers])
        tensors[f"{layer}.down_proj_{part}"] = torch.stack([one["down", n] for n in numbers])
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
