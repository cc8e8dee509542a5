"""LoRA adapters with random weights for a checkpoint of any size, laid out as PEFT saves them."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

DENSE = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Layers that are usually adapted: attention and the dense FFN. A MoE model's experts are parameters, not linear layers."""


def sizes_of(model: torch.nn.Module, leaves: Collection[str] = DENSE) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) by full name of the decoder's linear layers whose name ends in one of ``leaves``."""
    return {
        name: (module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.split(".")[-1] in leaves and ".layers." in name and "_tower" not in name
    }


def sizes_of_checkpoint(folder: Path) -> dict[str, tuple[int, int]]:
    """:func:`sizes_of` from a folder's config.json, without allocating weights."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    with torch.device("meta"):
        return sizes_of(AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)))


def weights(
    sizes: Mapping[str, tuple[int, int]], rank: int, seed: int, spread: float = 0.02, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """``A`` ``[rank, inputs]`` and ``B`` ``[outputs, rank]`` of every layer, under PEFT's names; both are random.

    Args:
        spread: standard deviation of the elements of ``B @ A``.
    """
    maker = torch.Generator().manual_seed(seed)
    found = {}
    for name, (inputs, outputs) in sizes.items():
        found[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=maker).to(dtype)
        found[f"base_model.model.{name}.lora_B.weight"] = (torch.randn(outputs, rank, generator=maker) * spread / rank**0.5).to(dtype)
    return found


def write(folder: Path, sizes: Mapping[str, tuple[int, int]], rank: int = 16, **options: Any) -> Path:
    """Save :func:`weights`, which takes ``options``, with a config whose scale is 1."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(sizes, rank, **options), folder / "adapter_model.safetensors")
    modules = sorted({name.split(".")[-1] for name in sizes})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merge(model: torch.nn.Module, found: Mapping[str, torch.Tensor]) -> None:
    """Add an adapter of scale 1 to a transformers model's weights."""
    for name, a in found.items():
        if name.endswith(".lora_A.weight"):
            stem = name.removesuffix(".lora_A.weight")
            module: Any = model.get_submodule(stem.removeprefix("base_model.model."))
            module.weight.data += found[f"{stem}.lora_B.weight"] @ a
