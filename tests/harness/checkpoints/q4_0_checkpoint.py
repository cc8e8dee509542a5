"""A tiny checkpoint whose language model's linear layers lie on Q4_0's grid, in bfloat16, as Google's QAT releases do."""

import json
import shutil
from pathlib import Path

import torch

from sglang_gemma4.tiny import checkpoints, quantise

GROUP = 32


def on_grid(weight: torch.Tensor) -> torch.Tensor:
    """A weight ``[..., inputs]`` through ggml's Q4_0 and back, in bfloat16: d = max / -8, level = min(15, floor(x / d + 8.5)).

    It is scaled first, so that d, a float16, is no bfloat16 number.
    """
    blocks = weight.float().reshape(-1, GROUP) * 1.0037
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    d = largest / -8
    inverse = torch.where(d == 0, torch.zeros_like(d), 1 / d)
    levels = (blocks * inverse + 8.5).floor().clamp(0, 15)
    return ((levels - 8) * d.half().float()).reshape(weight.shape).to(torch.bfloat16)


def write(family: str, folder: Path, parts: int = 1) -> Path:
    """``family``'s shipped checkpoint with such weights, in so many files and an index; its assistant beside it."""
    import safetensors.torch

    shutil.copytree(checkpoints.SHIPPED / family, folder)
    shutil.copytree(checkpoints.SHIPPED / f"{family}-assistant", folder.with_name(f"{folder.name}-assistant"))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for name, tensor in tensors.items():
        fused = name.endswith((".experts.gate_up_proj", ".experts.down_proj"))
        if (fused or (quantise.is_linear(name) and quantise.is_chosen(name.removesuffix(".weight")))) and tensor.shape[-1] % GROUP == 0:
            tensors[name] = on_grid(tensor)
    where = {}
    for part in range(parts):
        names, file = sorted(tensors)[part::parts], f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        safetensors.torch.save_file({name: tensors[name] for name in names}, folder / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(names, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder
