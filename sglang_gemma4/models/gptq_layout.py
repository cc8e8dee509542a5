"""Reads checkpoints in GPTQ's or AWQ's layout as compressed-tensors' ``pack-quantized``.

The quantised values and scales are the same, but transposed:

- GPTQ and compressed-tensors keep the values of consecutive inputs in an int32, the first in its lowest bits. A stored
  v means v - 8 (8 bits: v - 128). GPTQ has ``qweight [inputs / 8, outputs]`` and ``scales [groups, outputs]``.
  compressed-tensors has ``weight_packed [outputs, inputs / 8]`` and ``weight_scale [outputs, groups]``.
- AWQ keeps the values of eight outputs, in another order (:data:`AWQ_ORDER`), as ``qweight [inputs, outputs / 8]``. Its
  zero points are ``qzeros [groups, outputs / 8]`` likewise; compressed-tensors has ``weight_zero_point [outputs / 8,
  groups]``.

So all layouts use the same code: routers and towers that stay as they are, K = V layers, experts with GELU, this
package's kernels. AutoRound writes the same tensors (``packing_format`` ``auto_round:auto_gptq``,
``auto_round:auto_awq``). If groups do not divide the inputs, the last one is shorter (groups of 128 on 26B-A4B's 704
and 2,112 inputs). Such scales are repeated for groups of 32.

Format: GPTQModel's ``nn_modules/qlinear``, SGLang's ``layers/quantization/utils.py:369`` (``pack_rows``) and
``moe_wna16.py:415`` (``convert_awq_tensor``).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.models.gptq_config import FLAGS, UNREAD, as_compressed, layout_of, reason_against, reason_against_layers
from sglang_gemma4.patching import decline

PARTS = ("qweight", "qzeros", "scales", "g_idx")
ZEROS = {4: (0x77777777, 0x88888888), 8: (0x7F7F7F7F, 0x80808080)}
"""int32 words of symmetric zero points, by bits: half of the range, and one less in version 1 of the format."""
WORD = 32
"""Bits of an int32."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position of each of eight consecutive outputs in AWQ's int32 word, counted from its lowest bits."""
INDEX = "model.safetensors.index.json"
_PART = re.compile(rf"(.*)\.({'|'.join(PARTS)})$")


def tensor_names(model: str, revision: str | None) -> list[str] | None:
    """Names in a checkpoint's safetensors files, on disk or in the hub's cache; None if there are no files yet."""
    from safetensors import safe_open

    folder = Path(model) if Path(model).is_dir() else _cached(model, revision)
    if folder is None:
        return None
    if (index := folder / INDEX).is_file():  # it is complete even if some files are not there yet
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
    """Before SGLang reads a ``ModelConfig``'s quantisation: turn GPTQ's or AWQ's of a Gemma 4 into compressed-tensors'.

    Args:
        is_read: whether the patch quantised_names is on, which regroups the tensors. Without it they would be skipped
            silently.
    """
    found = model_config.hf_config
    given: Any = getattr(found, "quantization_config", None)
    if hasattr(given, "to_dict"):
        given = given.to_dict()
    if not isinstance(given, Mapping) or not str((found.architectures or [""])[0]).startswith("Gemma4"):
        return
    if layout_of(given) is None:
        return
    reason = reason_against(given) or (None if is_read else "quantised_names, which reads the tensors, is left out")
    if reason is None:
        names = tensor_names(model_config.model_path, model_config.revision)
        if (reason := reason_against_layers(given, names)) is None:
            if str(model_config.quantization).lower() in FLAGS:
                model_config.quantization = None  # it named the checkpoint's old method, and SGLang compares the two
            found.quantization_config = as_compressed(given, names, found.get_text_config().to_dict())
            return
        found.quantization_config = {**given, UNREAD: reason}
    decline("gptq_layout", reason)


def regrouped(weights: Iterable[tuple[str, torch.Tensor]], schemes: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, with GPTQ's and AWQ's under compressed-tensors' names and in its shapes; others are unchanged.

    Args:
        schemes: SGLang's ``target_scheme_map``, in which a layer's name or "Linear" has ``weights``. Schemes that are
            not symmetric are AWQ's.

    Raises:
        ValueError: zero points do not fit symmetric values, inputs are not in order, scales have other groups than the
            config says, or values have no scales.
    """
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in weights:
        part = _PART.match(name)
        if part is None:
            yield name, tensor
            continue
        layer = part[1]
        scheme = (schemes.get(layer) or schemes["Linear"])["weights"]
        if scheme.symmetric and part[2] == "qzeros" and not any(bool((tensor == _signed(zeros)).all()) for zeros in ZEROS[scheme.num_bits]):
            half = 1 << (scheme.num_bits - 1)
            raise ValueError(
                f"{name} holds zero points other than {half}, though quantization_config says that quantised values are symmetric"
            )
        if part[2] == "g_idx" and not _counts_up(tensor):
            raise ValueError(f"{name} does not go through the inputs in order, though quantization_config has no desc_act")
        needed = ("qweight", "scales") if scheme.symmetric else ("qweight", "scales", "qzeros")
        if part[2] not in needed:
            continue
        parts = waiting.setdefault(layer, {})
        parts[part[2]] = tensor
        if len(parts) == len(needed):
            yield from _as_compressed(layer, waiting.pop(layer), scheme)
    if waiting:
        layer, parts = next(iter(waiting.items()))
        raise ValueError(
            f"of the quantised {layer} the checkpoint has {', '.join(parts)} only; qweight, scales and AWQ's qzeros are needed"
        )


def _as_compressed(layer: str, parts: Mapping[str, torch.Tensor], scheme: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A layer's tensors under compressed-tensors' names."""
    levels, group = parts["qweight"], scheme.group_size
    if scheme.symmetric:
        inputs, packed = levels.shape[0] * (WORD // scheme.num_bits), levels.T.contiguous()
    else:
        inputs, packed = levels.shape[0], _words(awq_levels(levels).T)
        zeros = _finer(f"{layer}.qzeros", awq_levels(parts["qzeros"]), inputs, group)
        yield f"{layer}.weight_zero_point", _words(zeros).T.contiguous()
    yield f"{layer}.weight_packed", packed
    yield f"{layer}.weight_shape", torch.tensor([len(packed), inputs])
    yield f"{layer}.weight_scale", _finer(f"{layer}.scales", parts["scales"], inputs, group).T.contiguous()


def awq_levels(words: torch.Tensor) -> torch.Tensor:
    """``[rows, outputs]`` uint8, 0 to 15, from AWQ's words ``[rows, outputs / 8]``."""
    return torch.stack([(words >> (4 * place)) & 15 for place in AWQ_ORDER], dim=-1).flatten(-2).to(torch.uint8)


def _words(levels: torch.Tensor) -> torch.Tensor:
    """Pack 4-bit values ``[rows, values]`` to int32 ``[rows, values / 8]``, the first of eight in the lowest bits."""
    pairs = levels[:, ::2] | levels[:, 1::2] << 4
    return pairs.contiguous().view(torch.int32)


def _finer(name: str, scales: torch.Tensor, inputs: int, group: int) -> torch.Tensor:
    """``scales [groups, outputs]`` for groups of ``group`` inputs.

    Each is repeated if the checkpoint's groups are 2, 4, ... times larger.
    """
    wanted, repeats = inputs // group, 1
    while -(-wanted // repeats) > len(scales):
        repeats *= 2
    if inputs % group or -(-wanted // repeats) != len(scales):
        raise ValueError(f"{name} has {len(scales)} groups for {inputs} inputs, and quantization_config says groups of {group}")
    return scales if repeats == 1 else scales.repeat_interleave(repeats, 0)[:wanted]


def _counts_up(groups: torch.Tensor) -> bool:
    """Whether inputs in order have groups 0, 1, ... of equal size, except the last."""
    size = int((groups == 0).sum())
    return size > 0 and bool((groups == torch.arange(len(groups), dtype=groups.dtype, device=groups.device) // size).all())


def _signed(bits: int) -> int:
    """The signed int32 with these 32 bits."""
    return bits - (1 << 32) if bits >= 1 << 31 else bits
