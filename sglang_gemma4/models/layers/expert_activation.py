"""Makes SGLang's kernels for Gemma 4's experts compute GELU by tanh, as the config says, for each weight format."""

from collections.abc import Callable
from typing import Any

import torch
from compressed_tensors.quantization import ActivationOrdering
from sglang.srt.layers.moe.utils import get_moe_runner_backend
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsFusedMoEMethod
from sglang.srt.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsW8A8Fp8MoE,
    CompressedTensorsWNA16MoE,
    CompressedTensorsWNA16TritonMoE,
)
from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

GELU = ("gelu", "gelu_tanh")


def use_tanh_gelu(layer: Any, activation: str) -> str | None:
    """Make SGLang's kernels of this ``FusedMoE`` compute GELU by tanh instead of erf.

    Returns why they stay as they are, or None.
    """
    from sglang.srt.runtime_context import get_flags

    config = layer.moe_runner_config
    if activation != "gelu_pytorch_tanh" or config.activation != "gelu":
        return f"activation {activation}, {config.activation} in the runner"
    method = layer.quant_method
    if isinstance(method, UnquantizedFusedMoEMethod):
        if getattr(method._resolve_forward_method(), "__func__", None) is not UnquantizedFusedMoEMethod.forward_cuda:
            return None  # the native path computes tanh under the name gelu
        backend = method.get_moe_runner_backend(layer)
    else:
        runner = _runner_of(layer, method)
        if runner is None:
            return f"the weights are quantised ({_name(layer, method)}), for which no runner with gelu_tanh is known"
        backend = runner.runner_backend
    if backend is None or not backend.is_triton():
        return f"--moe-runner-backend {backend.value if backend is not None else 'none'}"
    if get_flags().capture.enable_torch_compile:
        return "--enable-torch-compile computes one token's experts in torch, where gelu_tanh is unknown"
    config.activation = "gelu_tanh"
    return None


def _runner_of(layer: Any, method: Any) -> Any:
    """The runner of quantised experts whose kernels ask the config for their activation at each call, or None."""
    if isinstance(method, Fp8MoEMethod):
        return getattr(method, "runner", None)
    if isinstance(method, CompressedTensorsFusedMoEMethod) and isinstance(
        layer.scheme, (CompressedTensorsW8A8Fp8MoE, CompressedTensorsWNA16TritonMoE)
    ):
        return getattr(layer.scheme, "runner", None)
    return None


def _name(layer: Any, method: Any) -> str:
    scheme = getattr(layer, "scheme", None)
    return type(scheme if scheme is not None else method).__name__


def for_gelu(scheme: Any, config: Any, layer: Any, layer_name: str | None = None) -> Any:
    """After ``get_moe_scheme``: SGLang's Triton kernel for 4-bit experts with GELU, where its Marlin kernel was chosen.

    Marlin's has SiLU only. The Triton runner knows GELU; only its scheme refuses it (:func:`run_gelu`).
    """
    if type(scheme) is not CompressedTensorsWNA16MoE or layer.moe_runner_config.activation not in GELU:
        return scheme
    weights = in_order(config.get_scheme_dict(layer, f"{layer_name}.0.gate_proj")["weights"])
    levels = weights.model_copy(update={"symmetric": True})  # the kernel takes zero points too
    if not get_moe_runner_backend().is_auto() or not config._is_wna16_triton_moe_supported(levels):
        return scheme  # refused before weights load (diagnostics/quantised_limits.py)
    return CompressedTensorsWNA16TritonMoE(scheme.quant_config, weight_quant=weights)


def finish_zeros(_result: None, scheme: Any, layer: Any) -> None:
    """After ``process_weights_after_loading`` of the Triton scheme: rearrange zero points for its kernel.

    The scheme itself rearranges quantised values and scales only. Zero points are loaded as
    ``[experts, groups, outputs / 8]`` int32, and the kernel reads ``[experts, outputs / 2, groups]`` uint8.
    """
    for name in ("w13_weight_zero_point", "w2_weight_zero_point"):
        loaded = getattr(layer, name, None)
        if not scheme.sym and loaded is not None and loaded.dtype == torch.int32:
            pairs = loaded.data.view(torch.uint8).transpose(1, 2).contiguous()
            setattr(layer, name, torch.nn.Parameter(pairs, requires_grad=False))


def with_zeros(info: Any, scheme: Any, layer: Any) -> Any:
    """After ``get_triton_quant_info``: add the zero points, which it leaves out."""
    if not scheme.sym:
        info.w13_zp, info.w2_zp = layer.w13_weight_zero_point, layer.w2_weight_zero_point
    return info


def in_order(weights: Any) -> Any:
    """compressed-tensors' ``QuantizationArgs`` without an activation order that only the calibration used.

    GPTQ visits inputs in the order of their activations. Under ``actorder`` ``weight`` (``static``), llm-compressor's
    default, groups still follow the order of the inputs. ``group`` (``dynamic``) stores each input's group with the
    weights.
    """
    return weights if weights.actorder in (None, ActivationOrdering.GROUP) else weights.model_copy(update={"actorder": None})


def run_gelu(original: Callable[..., Any], scheme: Any, layer: Any, dispatch_output: Any) -> Any:
    """Around ``CompressedTensorsWNA16TritonMoE.apply_weights``, which asserts SiLU though its runner takes GELU too."""
    if scheme.moe_runner_config.activation not in GELU:
        return original(scheme, layer, dispatch_output)
    return scheme.runner.run(dispatch_output, scheme.get_triton_quant_info(layer))
