"""Checkpoints in GPTQ's layout, read as compressed-tensors' ``pack-quantized``: the same levels and scales, transposed.

Both keep eight levels of consecutive inputs in an int32, the first in its lowest bits, and mean level - 8. GPTQ has them as
``qweight [inputs / 8, outputs]`` and ``scales [groups, outputs]``, compressed-tensors as ``weight_packed [outputs, inputs / 8]`` and
``weight_scale [outputs, groups]``. So what serves the one serves the other: routers and towers that stay as they are, K = V layers, experts
with gelu, this package's kernels. AutoRound writes the same tensors (``packing_format`` ``auto_round:auto_gptq``).

Format: GPTQModel's ``nn_modules/qlinear`` and SGLang's ``layers/quantization/utils.py:369`` (``pack_rows``).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.models.gptq_config import FLAGS, as_compressed, is_gptq, reason_against
from sglang_gemma4.patching import decline

PARTS = ("qweight", "qzeros", "scales", "g_idx")
ZEROS = (0x77777777, 0x88888888)
"""Zero points of symmetric levels: 8, which version 1 of the format stores as 7."""
LEVELS = 8
"""In an int32."""
INDEX = "model.safetensors.index.json"
_PART = re.compile(rf"(.*)\.({'|'.join(PARTS)})$")


def tensor_names(model: str, revision: str | None) -> list[str] | None:
    """Of a checkpoint's safetensors files, on disk or in the hub's cache; None where there are none yet."""
    from safetensors import safe_open

    folder = Path(model) if Path(model).is_dir() else _cached(model, revision)
    if folder is None:
        return None
    if (index := folder / INDEX).is_file():  # whole, though not all files may be there yet
        return list(json.loads(index.read_text())["weight_map"])
    names: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            names += tensors.keys()
    return names or None


def _cached(model: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True, allow_patterns="*.safetensors*"))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def translate(model_config: Any, is_read: bool) -> None:
    """Before SGLang reads a ``ModelConfig``'s quantisation: that of a Gemma 4 checkpoint in GPTQ's layout becomes compressed-tensors'.

    Args:
        is_read: the patch quantised_names is on, which regroups the tensors. Without it they would be left unread without a word.
    """
    found = model_config.hf_config
    given: Any = getattr(found, "quantization_config", None)
    if hasattr(given, "to_dict"):
        given = given.to_dict()
    if not isinstance(given, Mapping) or not str((found.architectures or [""])[0]).startswith("Gemma4"):
        return
    if not is_gptq(given):
        return
    reason = reason_against(given) or (None if is_read else "quantised_names, which reads the tensors, is left out")
    if reason is not None:
        decline("gptq_layout", reason)
    else:
        if str(model_config.quantization).lower() in FLAGS:
            model_config.quantization = None  # what the checkpoint said of itself; SGLang compares the two
        found.quantization_config = as_compressed(given, tensor_names(model_config.model_path, model_config.revision))


def regrouped(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, GPTQ's by compressed-tensors' names and in its shapes; others as they are.

    Raises:
        ValueError: zero points that are not those of symmetric levels, or inputs that are not in order, though the config said so.
    """
    for name, tensor in weights:
        part = _PART.match(name)
        if part is None:
            yield name, tensor
        elif part[2] == "qweight":
            yield f"{part[1]}.weight_packed", tensor.T.contiguous()
            yield f"{part[1]}.weight_shape", torch.tensor([tensor.shape[1], tensor.shape[0] * LEVELS])
        elif part[2] == "scales":
            yield f"{part[1]}.weight_scale", tensor.T.contiguous()
        elif part[2] == "qzeros" and not any(bool((tensor == _signed(zeros)).all()) for zeros in ZEROS):
            raise ValueError(f"{name} holds zero points other than 8, though quantization_config says that levels are symmetric")
        elif part[2] == "g_idx" and not _counts_up(tensor):
            raise ValueError(f"{name} does not go through the inputs in order, though quantization_config has no desc_act")


def _counts_up(groups: torch.Tensor) -> bool:
    """Whether inputs in order have groups 0, 1, ..., each as many of them."""
    inputs = groups.numel()
    if not inputs or inputs % (int(groups.max()) + 1):
        return False
    size = inputs // (int(groups.max()) + 1)
    return bool((groups == torch.arange(inputs, dtype=groups.dtype, device=groups.device) // size).all())


def _signed(bits: int) -> int:
    """The int32 of these 32 bits."""
    return bits - (1 << 32) if bits >= 1 << 31 else bits
