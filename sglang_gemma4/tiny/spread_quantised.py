"""Random values for quantised weights: dequantised they have the spread that ``spread_weights`` gives unquantised ones.

A format keeps a weight as quantised values and scales in two or more tensors of one module, under names that SGLang
and vLLM share. The values are drawn normal around zero and rounded as a quantiser does; a mean would grow from layer
to layer until every token is the same. Scales differ a little, so that a kernel which takes another row's or group's
scale is found out.

| format | quantised values | scales |
| --- | --- | --- |
| fp8 (compressed-tensors, SGLang's own) | ``weight``, ``w13_weight``: float8 | ``…weight_scale``,
``…weight_scale_inv`` |
| int4, compressed-tensors pack-quantized | ``weight_packed``: int32, 8 values along the inputs, value + 8 |
``weight_scale`` |
| int4, AWQ and GPTQ | ``qweight``: int32, 8 values along the outputs or the inputs | ``scales``, zero points
``qzeros`` |
"""

from collections.abc import Mapping
from typing import Any

FLOAT8_SPREAD = 100.0
"""Standard deviation of the float8 values: a row's largest, about four times this, is near e4m3's largest value, 448."""
INT4_SPREAD = 2.8
"""Standard deviation of int4 values before rounding and clamping to ±7. The largest of 32 is about 2.2 times this, of 128 about 2.7."""
INT4_ROUNDED = 2.7845
"""Standard deviation of the int4 values after rounding (``tests/unit/test_spread_quantised.py`` measures it)."""
INPUT_SCALE = 1 / 64
"""Static scale of activations: float8 then holds up to 7, while normed activations have unit spread."""
SCALE_NOISE = 0.1

_PACKED, _QWEIGHT = "weight_packed", "qweight"
_AS_THEY_ARE = ("weight_shape", "g_idx", "g_idx_sort_indices")
_SAME_ZERO = -2004318072  # 0x88888888: eight zero points of 8
_GPTQ_ZERO = 0x77777777  # GPTQ stores a zero point minus one


def fill(name: str, tensor: Any, beside: Mapping[str, Any], generator: Any) -> bool:
    """Fill ``tensor`` in place if it is part of a quantised weight; returns whether it is.

    Args:
        name: the tensor's name in the model.
        beside: every tensor of the model by name.
        generator: a torch generator on the tensor's device.
    """
    import torch

    if name.endswith(_AS_THEY_ARE):
        return True
    if name.endswith(("input_scale", "w13_input_scale", "w2_input_scale")):
        tensor.fill_(INPUT_SCALE)
        return True
    if name.endswith((_PACKED, _QWEIGHT)) and tensor.dtype == torch.int32:
        _fill_int4(tensor, generator)
        return True
    if name.endswith(("qzeros", "zero_point")):
        tensor.fill_(_GPTQ_ZERO if _packs_inputs(name.replace("qzeros", _QWEIGHT), beside) and name.endswith("qzeros") else _SAME_ZERO)
        return True
    if _holds_levels(tensor) and scale_of(name, beside) is not None:
        _fill_float8(tensor, generator)
        return True
    levels = levels_of(name, beside)
    if levels is None and name.endswith(("weight_scale", "weight_scale_inv")):
        tensor.fill_(1.0)  # a weight that is quantised after loading (--quantization fp8), which also writes its scale
        return True
    if levels is None:
        return False
    inputs, spread = _inputs_and_spread(levels, beside)
    noise = torch.rand(tensor.shape, generator=generator, device=tensor.device)
    tensor.copy_((1 - SCALE_NOISE + 2 * SCALE_NOISE * noise) * (inputs**-0.5 / spread))
    return True


def scale_of(name: str, beside: Mapping[str, Any]) -> str | None:
    """The name of a float8 weight's scales, or None if it has none."""
    return next((found for end in ("_scale", "_scale_inv") if (found := name + end) in beside), None)


def levels_of(name: str, beside: Mapping[str, Any]) -> str | None:
    """The name of the quantised values that these scales belong to, or None if they belong to none."""
    if name.endswith("scales"):
        found = name.removesuffix("scales") + _QWEIGHT
        return found if found in beside else None
    for end in ("_scale_inv", "_scale"):
        if name.endswith(f"weight{end}"):
            weight = name.removesuffix(end)
            candidates = (weight, f"{weight}_packed")
            return next((one for one in candidates if one in beside and _holds_levels(beside[one])), None)
    return None


def _holds_levels(tensor: Any) -> bool:
    import torch

    return bool(tensor.dtype == torch.int32 or (torch.is_floating_point(tensor) and tensor.element_size() == 1))


def _packs_inputs(qweight: str, beside: Mapping[str, Any]) -> bool:
    """Whether ``qweight`` packs 8 inputs of one output (GPTQ) rather than 8 outputs of one input (AWQ)."""
    scales = beside.get(qweight.removesuffix(_QWEIGHT) + "scales")
    return scales is not None and qweight in beside and beside[qweight].shape[-1] == scales.shape[-1]


def _inputs_and_spread(levels: str, beside: Mapping[str, Any]) -> tuple[int, float]:
    """Inputs of the linear layer, and the standard deviation of its quantised values."""
    shape = beside[levels].shape
    if levels.endswith(_QWEIGHT):
        return (shape[-2] * 8 if _packs_inputs(levels, beside) else shape[-2]), INT4_ROUNDED
    if levels.endswith(_PACKED):
        return (shape[-2] if len(shape) == 3 else shape[-1]) * 8, INT4_ROUNDED  # experts are kept [experts, inputs / 8, outputs]
    return shape[-1], FLOAT8_SPREAD


def _fill_float8(tensor: Any, generator: Any) -> None:
    """Fill expert by expert: a layer's experts have a billion values, for which float32 copies would not fit next to the model."""
    import torch

    most = torch.finfo(tensor.dtype).max
    for part in tensor if tensor.dim() == 3 else (tensor,):
        normal = torch.randn(part.shape, generator=generator, device=part.device, dtype=torch.float32)
        part.copy_((normal * FLOAT8_SPREAD).clamp_(-most, most).to(tensor.dtype))


def _fill_int4(tensor: Any, generator: Any) -> None:
    import torch

    for part in tensor if tensor.dim() == 3 else (tensor,):
        packed = torch.zeros(part.shape, device=part.device, dtype=torch.int64)
        for place in range(8):
            normal = torch.randn(part.shape, generator=generator, device=part.device, dtype=torch.float32)
            level = (normal * INT4_SPREAD).round_().clamp_(-7, 7).to(torch.int64) + 8
            packed |= level << (4 * place)
        part.copy_(torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32))
