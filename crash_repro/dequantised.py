"""A quantised checkpoint written out as an unquantised one in float32, in transformers' layout: what a quantised engine must equal.

compressed-tensors computes the weights; this package's loaders and CPU engine have no part in it.
"""

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)$")


def write(quantised: Path, folder: Path) -> Path:
    """Write the checkpoint in ``quantised`` to ``folder``; returns it."""
    import torch
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from safetensors.torch import load_file, save_file

    shutil.copytree(quantised, folder)
    config = json.loads((folder / "config.json").read_text())
    asked = config.pop("quantization_config")
    schemes = {name: QuantizationScheme.model_validate(group) for name, group in asked["config_groups"].items()}
    compressor = BaseCompressor.get_value_from_registry(asked["format"])
    layers: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, tensor in load_file(quantised / "model.safetensors").items():
        layer, _, part = name.rpartition(".")
        layers[layer][part] = tensor.float() if part == "weight_scale" else tensor
    plain: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    for layer, parts in layers.items():
        if "weight_scale" not in parts:
            plain.update({f"{layer}.{part}": tensor.float() for part, tensor in parts.items()})
            continue
        patterns = [(name, target[3:]) for name, one in schemes.items() for target in one.targets if target.startswith("re:")]
        group = next((name for name, pattern in patterns if re.match(pattern, layer)), "group_0")
        weight = compressor.decompress(parts, schemes[group])["weight"].float()
        if found := EXPERT.match(layer):
            experts[found[1]][found[3]][int(found[2])] = weight
        else:
            plain[f"{layer}.weight"] = weight
    for name, parts in experts.items():
        stacked = {part: torch.stack([by_number[n] for n in range(len(by_number))]) for part, by_number in parts.items()}
        plain[f"{name}.gate_up_proj"] = torch.cat((stacked["gate_proj"], stacked["up_proj"]), 1)
        plain[f"{name}.down_proj"] = stacked["down_proj"]
    save_file({name: tensor.contiguous() for name, tensor in plain.items()}, folder / "model.safetensors", {"format": "pt"})
    for part in (config, config["text_config"]):
        part["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config))
    return folder
