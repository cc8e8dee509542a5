"""Tiny checkpoints in formats whose groups or blocks do not divide the shipped sizes, or a rank's part of them."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from sglang_gemma4.tiny import checkpoints, quantise
from sglang_gemma4.tiny.quantisation import FORMATS, Format

_FFN = re.compile(r".*language_model.*\.(gate_proj|up_proj|down_proj|gate_up_proj)(\.weight)?$")


def widened(name: str, folder: Path) -> Path:
    """Write a tiny model to ``folder`` whose FFNs and experts have each inner output twice, side by side; its answers stay.

    26B-A4B's parts on two ranks are then whole groups of 32: 96 inputs of the FFN's last product, no multiple of Marlin's 64, as its 1,056.
    """
    shutil.copytree(checkpoints.SHIPPED / name, folder)
    tensors = load_file(folder / "model.safetensors")
    for key, tensor in tensors.items():
        if (found := _FFN.match(key)) is None:
            continue
        if found[1] == "down_proj":
            tensors[key] = (tensor / 2).repeat_interleave(2, -1)
        elif found[1] == "gate_up_proj":
            tensors[key] = torch.cat([part.repeat_interleave(2, -2) for part in tensor.chunk(2, -2)], -2)
        else:
            tensors[key] = tensor.repeat_interleave(2, -2)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    for size in ("intermediate_size", "moe_intermediate_size"):
        config["text_config"][size] = 2 * config["text_config"][size]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def quantised(
    source: Path,
    form: Format,
    folder: Path,
    chosen: Callable[[str], bool] = quantise.is_chosen,
    input_scales: dict[str, float] | None = None,
) -> Path:
    """Write the checkpoint in ``source`` to ``folder`` in a format of which all parts are as given."""
    shutil.copytree(source, folder)
    for name, content in quantise.quantised(source, form, input_scales, chosen).items():
        (folder / name).write_bytes(content)
    return folder


def blocks_of_128(folder: Path) -> Path:
    """tiny-31b in fp8 by blocks of 128, as of the released sizes; its one full layer, whose keys are 64 wide, stays as it is."""
    whole = re.compile(r"(?!.*layers\.5\.self_attn\.).*")
    return quantised(
        checkpoints.SHIPPED / "tiny-31b",
        FORMATS["fp8-block"],
        folder,
        chosen=lambda layer: quantise.is_chosen(layer) and whole.match(layer) is not None,
    )
