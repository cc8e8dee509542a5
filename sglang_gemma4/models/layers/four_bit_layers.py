"""4-bit linear layers of compressed-tensors whose weights stay in the checkpoint's layout: inputs are contiguous.

SGLang repacks such weights for Marlin, in a layout that only Marlin's kernel reads. On Hopper, or where
``SGLANG_GEMMA4_FOUR_BIT_ROWS`` asks for it, they stay as they are. Our kernel then multiplies few rows
(``few_row_linear.py`` replaces the layer's method). For more rows a weight is first dequantised to bfloat16, and
cuBLAS multiplies it. If :func:`want_copies` asks for it, a model's weights are dequantised once, when they are loaded,
and kept in both forms.
"""

import os
from collections.abc import Callable
from typing import Any

import torch

from sglang_gemma4.kernels.card import reason_against_device
from sglang_gemma4.kernels.four_bits import PLACES
from sglang_gemma4.kernels.kept_bytes import COPIED_SHARE
from sglang_gemma4.kernels.weights import GROUPS, Grouped
from sglang_gemma4.kernels.written_out import write_out
from sglang_gemma4.models.layers import weight_formats
from sglang_gemma4.models.layers.room import shared_room
from sglang_gemma4.patching import decline, switches, takes, tell

COPIES = "dense_copies"

FINISHED_LAST = ("auto", "safetensors", "fastsafetensors", "instanttensor", "pt", "npcache", "mistral", "runai_streamer", "dummy")
"""Values of ``--load-format`` with which a layer is finished after its tensors have arrived.

With others, such as sharded_state, they may arrive afterwards, and copies would be made of uninitialised memory.
"""

_largest: dict[tuple[torch.dtype, torch.device], int] = {}
"""Number of weights of the largest layer that stays as loaded, by dtype and device."""


def want_copies(model: torch.nn.Module, load_format: str, fraction: float) -> None:
    """Ask for copies of the dequantised weights of a built model that is not loaded yet.

    Declined if ``load_format`` does not allow it, or if the copies are more than a small part of the memory.

    Args:
        load_format: ``--load-format``.
        fraction: ``--mem-fraction-static``, of the device's memory.
    """
    kept = [layer for layer in model.modules() if getattr(getattr(layer, "scheme", None), "as_loaded", False)]
    if not kept:
        return
    if load_format not in FINISHED_LAST:
        decline(COPIES, f"--load-format {load_format}, with which tensors may come after layers were finished")
        return
    needed = sum(PLACES * layer.weight_packed.numel() * layer.weight_scale.element_size() for layer in kept)
    there = fraction * _memory(kept[0].weight_packed.device)
    size = f"bfloat16 copies of all 4-bit dense weights take {needed / 2**30:,.1f} GiB"
    if needed > COPIED_SHARE * there:
        decline(COPIES, f"{size}, more than 1/{1 / COPIED_SHARE:.0f} of this server's {there / 2**30:,.1f} GiB of the GPU")
        return
    tell(COPIES, f"{size} of the GPU")
    for layer in kept:
        layer.scheme.copies = True


def keep(_result: None, scheme: Any, layer: Any, **_named: Any) -> None:
    """After ``CompressedTensorsWNA16.create_weights``: decide whether a layer's weight will stay as loaded."""
    packed, scale = layer.weight_packed, layer.weight_scale
    capability = torch.cuda.get_device_capability(packed.device) if packed.is_cuda else None
    scheme.most_rows = switches.four_bit_rows(capability)
    runs = scheme.most_rows > 0 and reason_against_device(packed.device) is None
    scheme.as_loaded = runs and takes("four_bit_linear", reason_against(scheme, layer), "Marlin multiplies")
    if scheme.as_loaded:
        key = (scale.dtype, packed.device)
        _largest[key] = max(_largest.get(key, 0), PLACES * packed.numel())


def reason_against(scheme: Any, layer: Any) -> str | None:
    """Why a layer's weight is for Marlin, or None."""
    width, groups = PLACES * layer.weight_packed.shape[1], layer.weight_scale.shape[1]
    if scheme.pack_factor != PLACES:
        return f"weights of {32 // scheme.pack_factor} bits"
    if scheme.has_g_idx:
        return "inputs in another order"
    if scheme.group_size not in GROUPS or width != groups * scheme.group_size:
        return f"groups of {scheme.group_size} in {width} inputs; {', '.join(map(str, GROUPS))} are supported"
    if layer.weight_packed.is_cuda and layer.weight_scale.dtype != torch.bfloat16:
        return f"activations of {layer.weight_scale.dtype}; bfloat16 is supported"
    return None


def finish(original: Callable[[Any, Any], None], scheme: Any, layer: Any) -> None:
    """Around ``CompressedTensorsWNA16.process_weights_after_loading``: keep the values, and make scratch or a copy.

    KV pools are sized for what these leave.
    """
    if not getattr(scheme, "as_loaded", False):
        original(scheme, layer)
        return
    if not scheme.symmetric:
        layer.weight_zero_point = torch.nn.Parameter(weight_formats.zeros_in_pairs(layer.weight_zero_point.data), requires_grad=False)
    dtype, device = layer.weight_scale.dtype, layer.weight_packed.device
    scheme.copy = scheme.room = None
    if getattr(scheme, "copies", False):
        weight: Any = weight_formats.linear_weight(layer)
        scheme.copy = write_out(weight, torch.empty(weight.shape.numel(), dtype=dtype, device=device))
    else:
        scheme.room = shared_room("dense", _largest[dtype, device], dtype, device)


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def multiply(
    original: Callable[..., torch.Tensor], scheme: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Around ``CompressedTensorsWNA16.apply_weights``: ``x @ weight.T + bias`` for any number of rows."""
    if not getattr(scheme, "as_loaded", False):
        return original(scheme, layer, x, bias)
    weight: Any = weight_formats.linear_weight(layer)
    return product(scheme, x, weight, bias)


def product(scheme: Any, x: torch.Tensor, weight: Grouped, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias`` for any number of rows; ``weight``: the layer's first outputs, or all."""
    if scheme.copy is not None:
        return torch.nn.functional.linear(x, scheme.copy[: weight.shape[0]], bias)
    return torch.nn.functional.linear(x, write_out(weight, scheme.room), bias)
