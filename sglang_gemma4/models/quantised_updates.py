"""Which models with quantised weights cannot take weight updates while they are served.

After loading, SGLang transposes fp8 weights with a scale for each output or tensor, and the result lacks the loaders of
the parameters. It repacks 4-bit weights. Another checkpoint's tensors then no longer fit: the first weight of another
shape ends an update, after square ones before it were overwritten. ``end_weight_update`` would rearrange weights again
that no trainer has sent. Weights in blocks stay as they are loaded, which trainers rely on.
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
