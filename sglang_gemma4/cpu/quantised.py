"""Quantised checkpoints on the CPU reference engine: SGLang's loaders fill its layers, which then compute in float32.

After loading, a layer's quantised values and scales become one float32 weight. Activations are rounded through float8
as the format does on a GPU (by token, by tensor or by group; with 4-bit weights not at all). So answers have the
format's error, but not a kernel's. SGLang's own methods keep the layers' names, shapes and loaders, which are what is
tested. Weights cannot be updated afterwards.
"""

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod, UnquantizedLinearMethod

from sglang_gemma4.cpu.experts import Rounding, exact, gated_sum
from sglang_gemma4.kernels.dequantise import by_group, float8_weight, packed_weight, through_float8


class DequantisedLinear(UnquantizedLinearMethod):
    """A linear layer whose ``weight`` has been dequantised to float32; ``rounding`` is applied to its input."""

    dequantised = True

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self.rounding = rounding

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x @ weight.T + bias``."""
        weight: Any = layer.weight
        return torch.nn.functional.linear(self.rounding(x), weight, bias)


class DequantisedExperts(UnquantizedFusedMoEMethod):
    """Gated experts with weights dequantised to float32; ``roundings`` are applied to the inputs of their two GEMMs."""

    dequantised = True

    def __init__(self, roundings: tuple[Rounding, Rounding], moe_runner_config: Any) -> None:
        super().__init__()
        self.roundings, self.moe_runner_config = roundings, moe_runner_config

    def apply(self, layer: torch.nn.Module, dispatch_output: Any) -> Any:
        """Each token's experts, weighted and added up; gelu uses tanh, as every Gemma 4's config says."""
        x = dispatch_output.hidden_states
        w13: Any = layer.w13_weight
        w2: Any = layer.w2_weight
        out = gated_sum(x, dispatch_output.topk_output, w13, w2, self.moe_runner_config.activation, *self.roundings)
        return StandardCombineInput(hidden_states=out)


def every_dtype(original: Callable[..., list[torch.dtype]], *owner: Any) -> list[torch.dtype]:
    """Around a quantisation config's supported dtypes: float32 too."""
    return [*original(*owner), torch.float32]


def no_card_needed(_original: Callable[..., bool], _config: Any, _capability: int, error: bool = True) -> bool:
    """Replaces the check of the GPU's compute capability: float32 can hold every format."""
    return True


def linear_of_checkpoint(_original: Callable[..., None], _method: Any, layer: Any) -> None:
    """Replaces compressed-tensors' rearrangement of a linear layer."""
    scheme = layer.scheme
    if hasattr(layer, "weight_packed"):
        if scheme.has_g_idx:
            raise NotImplementedError("the CPU reference engine has 4-bit and 8-bit weights without activation order only")
        zeros = None if scheme.symmetric else layer.weight_zero_point.data
        weight = packed_weight(layer.weight_packed.data, layer.weight_scale.data, 32 // scheme.pack_factor, zeros)
        _drop(layer, "weight_zero_point")
        _finish_linear(layer, weight, exact)
        return
    block = getattr(scheme, "weight_block_size", None)
    weight = float8_weight(layer.weight.data, layer.weight_scale.data, layer.logical_widths, block)
    _finish_linear(layer, weight, _rounding(getattr(layer, "input_scale", None), block))


def experts_of_checkpoint(_original: Callable[..., None], _method: Any, layer: Any) -> None:
    """Replaces compressed-tensors' rearrangement of experts."""
    if hasattr(layer, "w13_weight_packed"):
        for part in ("w13", "w2"):  # kept [experts, inputs / 8, outputs]
            packed, scale = (getattr(layer, f"{part}_{name}").data.mT for name in ("weight_packed", "weight_scale"))
            zeros = None if layer.scheme.sym else getattr(layer, f"{part}_weight_zero_point").data.mT
            _replace(layer, f"{part}_weight", packed_weight(packed, scale, zeros=zeros))
            _drop(layer, f"{part}_weight_packed", f"{part}_weight_zero_point")
        roundings: tuple[Rounding, Rounding] = (exact, exact)
    else:
        block = layer.scheme.weight_block_size
        for part, parts in (("w13", 2), ("w2", 1)):
            levels = getattr(layer, f"{part}_weight").data
            widths = [levels.shape[1] // parts] * parts
            _replace(layer, f"{part}_weight", float8_weight(levels, getattr(layer, f"{part}_weight_scale").data, widths, block))
        roundings = (_rounding(layer.w13_input_scale, block), _rounding(layer.w2_input_scale, block))
    layer.quant_method = DequantisedExperts(roundings, layer.moe_runner_config)


def linear_at_load(original: Callable[..., None], method: Any, layer: Any) -> None:
    """Replaces ``--quantization fp8``'s quantisation of a linear layer: one scale per output, as on a GPU."""
    if method.is_checkpoint_fp8_serialized:
        raise NotImplementedError("the CPU reference engine reads fp8 checkpoints of compressed-tensors, not of quant_method fp8")
    _finish_linear(layer, by_group(layer.weight.data, 0), _rounding(None, None))


def experts_at_load(original: Callable[..., None], method: Any, layer: Any) -> None:
    """The same for experts: one scale per expert and GEMM."""
    if method.quant_config.is_checkpoint_fp8_serialized:
        raise NotImplementedError("the CPU reference engine reads fp8 checkpoints of compressed-tensors, not of quant_method fp8")
    for part in ("w13", "w2"):
        weight = getattr(layer, f"{part}_weight").data
        _replace(layer, f"{part}_weight", by_group(weight.flatten(1), 0).view(weight.shape))
    layer.quant_method = DequantisedExperts((_rounding(None, None),) * 2, layer.moe_runner_config)


def _finish_linear(layer: Any, weight: torch.Tensor, rounding: Rounding) -> None:
    _drop(layer, "weight_packed", "weight_shape")
    _replace(layer, "weight", weight)
    layer.quant_method = DequantisedLinear(rounding)


def _rounding(input_scale: Any, block: Any) -> Rounding:
    """Rounding of activations: static if the checkpoint has a scale, else by token, or by a block's inputs."""
    if input_scale is None:
        return lambda values: by_group(values, block[1] if block is not None else 0)
    scale = input_scale.data.float().max()
    return lambda values: through_float8(values, scale)


def _replace(layer: Any, name: str, weight: torch.Tensor) -> None:
    if name in layer._parameters:
        del layer._parameters[name]
    layer.register_parameter(name, torch.nn.Parameter(weight.contiguous(), requires_grad=False))


def _drop(layer: Any, *names: str) -> None:
    for name in names:
        layer._parameters.pop(name, None)
