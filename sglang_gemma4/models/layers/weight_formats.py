"""How SGLang's layers hold their weights, in the form that the package's kernels read: plain, or fp8 with scales.

fp8 as SGLang keeps it after loading: ``--quantization fp8`` (a scale for each output of a linear layer, one for each expert and product)
and compressed-tensors' FP8 (per channel or per tensor). A linear layer's weight is then a transposed view, ``[width, outputs]``. Scales of
activations (a static scheme) are not read: our kernels multiply the activation as it is, which is closer to the checkpoint's unquantised
model than SGLang's own products, and used up to a number of rows only: prefills stay SGLang's, on the tensor cores' fp8 path.
"""

from typing import Any

import torch
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsFusedMoEMethod,
    CompressedTensorsLinearMethod,
)
from sglang.srt.layers.quantization.compressed_tensors.schemes import CompressedTensorsW8A8Fp8, CompressedTensorsW8A8Fp8MoE
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod, Fp8MoEMethod
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod, UnquantizedLinearMethod

from sglang_gemma4.kernels.weights import FP8, Weight, scaled


def is_plain(layer: Any) -> bool:
    """Whether a linear or expert layer's weights are those of an unquantised checkpoint."""
    return isinstance(layer.quant_method, UnquantizedLinearMethod | UnquantizedFusedMoEMethod)


def linear_problem(layer: Any) -> str | None:
    """Why a linear layer's weights are in none of the forms above, or None; may be asked before they are loaded."""
    method = layer.quant_method
    if isinstance(method, UnquantizedLinearMethod):
        return None
    if isinstance(method, Fp8LinearMethod):
        if method.use_marlin:
            return "its fp8 weights are repacked for Marlin"
        return "its fp8 weights have a scale for each block" if method.block_quant else None
    if isinstance(method, CompressedTensorsLinearMethod) and type(layer.scheme) is CompressedTensorsW8A8Fp8:
        return "its fp8 weights have a scale for each block" if layer.scheme.weight_block_size is not None else None
    scheme = f", {type(layer.scheme).__name__}" if isinstance(method, CompressedTensorsLinearMethod) else ""
    return f"it is quantised ({type(method).__name__}{scheme})"


def linear_weight(layer: Any) -> Weight:
    """A loaded linear layer's weight, ``[outputs, width]``: views of its parameters; for a layer without :func:`linear_problem`.

    Raises:
        ValueError: its parameters are not what its method leaves after loading.
    """
    if is_plain(layer):
        plain: torch.Tensor = layer.weight
        return plain
    if layer.weight.dtype != FP8:
        raise ValueError(f"an fp8 layer's weight is {layer.weight.dtype}: it has not been loaded")
    return scaled(layer.weight.data.t(), layer.weight_scale.data)


def experts_problem(layer: Any) -> str | None:
    """Why a ``FusedMoE``'s weights are in none of the forms above, or None; may be asked before they are loaded."""
    method = layer.quant_method
    if isinstance(method, UnquantizedFusedMoEMethod):
        return None
    if isinstance(method, Fp8MoEMethod):
        return "the experts' fp8 weights have a scale for each block" if method.block_quant or method.is_fp4_expert else None
    if isinstance(method, CompressedTensorsFusedMoEMethod) and type(layer.scheme) is CompressedTensorsW8A8Fp8MoE:
        return "the experts' fp8 weights have a scale for each block" if layer.scheme.block_quant else None
    scheme = f", {type(layer.scheme).__name__}" if isinstance(method, CompressedTensorsFusedMoEMethod) else ""
    return f"the weights are quantised ({type(method).__name__}{scheme})"


def experts_weights(layer: Any) -> tuple[Weight, Weight]:
    """A loaded ``FusedMoE``'s two products; for a layer without :func:`experts_problem`."""
    if is_plain(layer):
        return layer.w13_weight, layer.w2_weight
    return scaled(layer.w13_weight.data, layer.w13_weight_scale.data), scaled(layer.w2_weight.data, layer.w2_weight_scale.data)


def backend_problem(layer: Any) -> str | None:
    """Why a ``FusedMoE``'s runner is not SGLang's Triton one, which leaves weights as they were loaded; or None."""
    backend = layer.quant_method.get_moe_runner_backend(layer)
    if backend is None or not backend.is_triton():
        return f"--moe-runner-backend {backend.value if backend is not None else 'none'}"
    return None
