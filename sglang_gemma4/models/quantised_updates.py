"""Weight updates of a running server whose weights are quantised: which models cannot take one.

When SGLang has loaded fp8 weights with a scale for each output or tensor it transposes them, without the loaders of their parameters, and
it repacks 4-bit ones. Another checkpoint's tensors do not fit those any more: the first product of another shape ends an update, with
square ones before it written over, and ``end_weight_update`` would rearrange once more what no trainer has sent. Weights in blocks stay as
they are loaded, which trainers rely on.
"""

from typing import Any

from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsFusedMoEMethod,
    CompressedTensorsLinearMethod,
)
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod, Fp8MoEMethod

REMEDY = "start a server with the new checkpoint, or serve an unquantised one, whose weights can be updated"


def reason_against_update(model: Any) -> str | None:
    """Why this model takes no other weights while it is served, or None."""
    if getattr(model, "quant_config", None) is None:
        return None
    for name, layer in model.named_modules():
        if _rearranged(layer):
            return f"{name} is quantised, and was rearranged when it was loaded; {REMEDY}"
    return None


def _rearranged(layer: Any) -> bool:
    method = getattr(layer, "quant_method", None)
    if isinstance(method, Fp8LinearMethod | Fp8MoEMethod):
        return not method.block_quant
    if isinstance(method, CompressedTensorsLinearMethod | CompressedTensorsFusedMoEMethod):
        return getattr(layer.scheme, "weight_block_size", None) is None
    return getattr(method, "dequantised", False)  # by the CPU reference engine
