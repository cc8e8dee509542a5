"""How SGLang's layers hold their weights, in the form that our kernels read: plain, fp8 with scales, or 4 bits.

fp8 is read as SGLang keeps it after loading. ``--quantization fp8`` has a scale for each output of a linear layer, and
one for each expert and GEMM. compressed-tensors' FP8 has scales per channel or per tensor, in linear layers also for
blocks of 128. A linear layer's weight is a transposed view, ``[width, outputs]``, except in blocks. Scales of
activations (a static scheme) are not read: our kernels multiply the unquantised activation, which is closer to the
unquantised model than SGLang's GEMMs. They take a limited number of rows. Prefills use SGLang's fp8 path on the tensor
cores.

4-bit experts are read as SGLang's Triton runner holds them (``expert_activation.py`` chooses it): an output's inputs
are contiguous. So are 4-bit linear layers that ``four_bit_layers.py`` keeps as loaded. Others are repacked for Marlin,
whose kernels multiply them.
"""

from typing import Any

import torch
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsFusedMoEMethod,
    CompressedTensorsLinearMethod,
)
from sglang.srt.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsW8A8Fp8,
    CompressedTensorsW8A8Fp8MoE,
    CompressedTensorsWNA16,
    CompressedTensorsWNA16TritonMoE,
)
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod, Fp8MoEMethod
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod, UnquantizedLinearMethod

from sglang_gemma4.kernels.weights import BLOCK, FP8, GROUPS, Grouped, Scaled, Weight, scaled


def is_plain(layer: Any) -> bool:
    """Whether a linear or expert layer's weights are those of an unquantised checkpoint."""
    return isinstance(layer.quant_method, UnquantizedLinearMethod | UnquantizedFusedMoEMethod)


def reason_against_linear(layer: Any) -> str | None:
    """Why a linear layer's weights are in none of the forms above, or None; may be asked before they are loaded."""
    method = layer.quant_method
    if isinstance(method, UnquantizedLinearMethod):
        return None
    if isinstance(method, Fp8LinearMethod):
        if method.use_marlin:
            return "its fp8 weights are repacked for Marlin"
        if method.use_mxfp8 or method.block_fp8_as_mxfp8:
            return "its fp8 weights have MXFP8's scales"
        return _reason_against_block(method.weight_block_size)
    if isinstance(method, CompressedTensorsLinearMethod) and type(layer.scheme) is CompressedTensorsW8A8Fp8:
        return _reason_against_block(layer.scheme.weight_block_size)
    if is_grouped(layer):
        return None
    scheme = f", {type(layer.scheme).__name__}" if isinstance(method, CompressedTensorsLinearMethod) else ""
    return f"it is quantised ({type(method).__name__}{scheme})"


def is_grouped(layer: Any) -> bool:
    """Whether a linear layer's weight has 4 bits and stays in the checkpoint's layout; may be asked before loading."""
    return isinstance(layer.quant_method, CompressedTensorsLinearMethod) and getattr(layer.scheme, "as_loaded", False)


def _reason_against_block(block: Any) -> str | None:
    return None if block is None or list(block) == [BLOCK, BLOCK] else f"its fp8 weights have a scale for each block of {list(block)}"


def linear_weight(layer: Any) -> Weight:
    """A loaded linear layer's weight, ``[outputs, width]``: views of its parameters.

    For a layer without :func:`reason_against_linear`.
    Raises:
        ValueError: its parameters are not what its method leaves after loading.
    """
    if is_plain(layer):
        plain: torch.Tensor = layer.weight
        return plain
    if is_grouped(layer):
        zeros = None if layer.scheme.symmetric else layer.weight_zero_point.data
        if zeros is not None and zeros.dtype == torch.int32:
            zeros = zeros_in_pairs(zeros)  # not loaded yet: only the shape matters, which kernels check
        return Grouped(layer.weight_packed.data.view(torch.uint8), layer.weight_scale.data, zeros)
    if layer.weight.dtype != FP8:
        raise ValueError(f"an fp8 layer's weight is {layer.weight.dtype}: it has not been loaded")
    if isinstance(layer.quant_method, Fp8LinearMethod):
        blocks = layer.weight_scale_inv if layer.quant_method.block_quant else None
    else:
        blocks = layer.weight_scale if layer.scheme.weight_block_size is not None else None
    if blocks is not None:  # not transposed
        return Scaled(layer.weight.data, blocks.data, BLOCK)
    return scaled(layer.weight.data.t(), layer.weight_scale.data)


def zeros_in_pairs(zeros: torch.Tensor) -> torch.Tensor:
    """Zero points ``[outputs / 2, groups]`` uint8, as :class:`Grouped` has them.

    They come from compressed-tensors' int32 ``[outputs / 8, groups]``. Both hold consecutive outputs, from the lowest
    bits on.
    """
    words, groups = zeros.shape
    return zeros.view(torch.uint8).view(words, groups, 4).transpose(1, 2).reshape(4 * words, groups).contiguous()


def shares_memory(layer: Any) -> str | None:
    """Why a linear layer's GEMM may use memory of other layers; None for the forms above and 4 bits for Marlin."""
    if isinstance(layer.quant_method, CompressedTensorsLinearMethod) and type(layer.scheme) is CompressedTensorsWNA16:
        return None
    return reason_against_linear(layer)


def reason_against_experts(layer: Any) -> str | None:
    """Why a ``FusedMoE``'s weights are in none of the forms above, or None; may be asked before they are loaded."""
    method = layer.quant_method
    if isinstance(method, UnquantizedFusedMoEMethod):
        return None
    if isinstance(method, Fp8MoEMethod):
        return "the experts' fp8 weights have a scale for each block" if method.block_quant or method.is_fp4_expert else None
    if isinstance(method, CompressedTensorsFusedMoEMethod) and type(layer.scheme) is CompressedTensorsW8A8Fp8MoE:
        return "the experts' fp8 weights have a scale for each block" if layer.scheme.block_quant else None
    if isinstance(method, CompressedTensorsFusedMoEMethod) and type(layer.scheme) is CompressedTensorsWNA16TritonMoE:
        scheme = layer.scheme
        if scheme.num_bits == 4 and not scheme.actorder and scheme.group_size in GROUPS:
            return None
        return f"the experts have {scheme.num_bits} bits in groups of {scheme.group_size}, order: {scheme.actorder}"
    scheme = f", {type(layer.scheme).__name__}" if isinstance(method, CompressedTensorsFusedMoEMethod) else ""
    return f"the weights are quantised ({type(method).__name__}{scheme})"


def experts_weights(layer: Any) -> tuple[Weight, Weight]:
    """A loaded ``FusedMoE``'s two weights, w13 and w2; for a layer without :func:`reason_against_experts`."""
    if is_plain(layer):
        return layer.w13_weight, layer.w2_weight
    if experts_are_grouped(layer):
        return _grouped(layer, "w13"), _grouped(layer, "w2")
    return scaled(layer.w13_weight.data, layer.w13_weight_scale.data), scaled(layer.w2_weight.data, layer.w2_weight_scale.data)


def _grouped(layer: Any, product: str) -> Grouped:
    levels, scale, zeros = (getattr(layer, f"{product}_weight_{part}", None) for part in ("packed", "scale", "zero_point"))
    return Grouped(levels.data, scale.data, None if layer.scheme.sym else zeros.data)  # type: ignore[union-attr]


def experts_are_grouped(layer: Any) -> bool:
    """Whether a ``FusedMoE`` without :func:`reason_against_experts` has 4-bit weights; may be asked before they are loaded."""
    return type(getattr(layer, "scheme", None)) is CompressedTensorsWNA16TritonMoE


def reason_against_backend(layer: Any) -> str | None:
    """Why a ``FusedMoE``'s runner is not SGLang's Triton one, which leaves weights as they were loaded; or None."""
    backend = layer.quant_method.get_moe_runner_backend(layer)
    if backend is None or not backend.is_triton():
        return f"--moe-runner-backend {backend.value if backend is not None else 'none'}"
    return None
