"""Which gelu SGLang's kernels of the experts compute, by the format of their weights."""

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig, CompressedTensorsFusedMoEMethod
from sglang.srt.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsW8A8Fp8MoE,
    CompressedTensorsWNA16MoE,
    CompressedTensorsWNA16TritonMoE,
)
from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

from sglang_gemma4.models.layers import expert_activation
from sglang_gemma4.tiny import quantisation
from tests.unit.test_expert_declines import layer_with, method_with


@pytest.mark.parametrize(
    ("change", "activation", "said"),
    [
        ({}, "gelu_pytorch_tanh", None),
        ({}, "gelu", "activation gelu, gelu in the runner"),
        ({"activation": "silu"}, "gelu_pytorch_tanh", "silu in the runner"),
        ({"quant_method": object()}, "gelu_pytorch_tanh", "the weights are quantised"),
        (
            {"quant_method": method_with(MoeRunnerBackend.FLASHINFER_CUTLASS)},
            "gelu_pytorch_tanh",
            "--moe-runner-backend flashinfer_cutlass",
        ),
    ],
)
def test_the_gelu_of_a_card(change: dict[str, Any], activation: str, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's activation is the model's where the card's kernels run it, and SGLang's where the patch declines."""
    layer = layer_with(**change)
    name = layer.moe_runner_config.activation
    if isinstance(layer.quant_method, UnquantizedFusedMoEMethod):
        assert expert_activation.use_tanh_gelu(layer_with(), "gelu_pytorch_tanh") is None, "the native path computes tanh already"
        monkeypatch.setattr(UnquantizedFusedMoEMethod, "forward_cpu", UnquantizedFusedMoEMethod.forward_cuda)
        monkeypatch.setattr(UnquantizedFusedMoEMethod, "forward_native", UnquantizedFusedMoEMethod.forward_cuda)
    reason = expert_activation.use_tanh_gelu(layer, activation)
    assert (reason is None) if said is None else said in str(reason)
    assert layer.moe_runner_config.activation == ("gelu_tanh" if said is None else name)


def test_torch_compile_keeps_sglang_s_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnquantizedFusedMoEMethod, "forward_cpu", UnquantizedFusedMoEMethod.forward_cuda)
    monkeypatch.setattr(UnquantizedFusedMoEMethod, "forward_native", UnquantizedFusedMoEMethod.forward_cuda)
    flags = SimpleNamespace(capture=SimpleNamespace(enable_torch_compile=True))
    monkeypatch.setattr("sglang.srt.runtime_context.get_flags", lambda: flags)
    layer = layer_with()
    assert "--enable-torch-compile" in str(expert_activation.use_tanh_gelu(layer, "gelu_pytorch_tanh"))
    assert layer.moe_runner_config.activation == "gelu"


def of_format(kind: type, backend: MoeRunnerBackend = MoeRunnerBackend.TRITON) -> dict[str, Any]:
    """A layer whose experts are of a method or scheme of SGLang's."""
    made: Any = object.__new__(kind)
    made.runner = SimpleNamespace(runner_backend=backend)
    if kind is Fp8MoEMethod:
        return {"quant_method": made}
    return {"quant_method": object.__new__(CompressedTensorsFusedMoEMethod), "scheme": made}


@pytest.mark.parametrize("kind", [Fp8MoEMethod, CompressedTensorsW8A8Fp8MoE, CompressedTensorsWNA16TritonMoE])
def test_quantised_experts_of_triton_compute_the_model_s_gelu(kind: type) -> None:
    layer = layer_with(**of_format(kind))
    assert expert_activation.use_tanh_gelu(layer, "gelu_pytorch_tanh") is None
    assert layer.moe_runner_config.activation == "gelu_tanh"
    other = layer_with(**of_format(kind, MoeRunnerBackend.FLASHINFER_TRTLLM))
    assert "--moe-runner-backend flashinfer_trtllm" in str(expert_activation.use_tanh_gelu(other, "gelu_pytorch_tanh"))
    assert other.moe_runner_config.activation == "gelu"


def test_marlin_s_experts_are_named() -> None:
    layer = layer_with(**of_format(CompressedTensorsWNA16MoE, MoeRunnerBackend.MARLIN))
    said = str(expert_activation.use_tanh_gelu(layer, "gelu_pytorch_tanh"))
    assert "quantised (CompressedTensorsWNA16MoE), for which no runner with gelu_tanh is known" in said


@pytest.mark.parametrize(
    ("activation", "group", "taken"),
    [("gelu", 32, CompressedTensorsWNA16TritonMoE), ("silu", 32, CompressedTensorsWNA16MoE), ("gelu", 64, CompressedTensorsWNA16MoE)],
)
def test_4_bit_experts_with_gelu_leave_marlin_for_triton(activation: str, group: int, taken: type) -> None:
    given = quantisation.config(quantisation.FORMATS["w4a16-g32"])
    given["config_groups"]["group_0"]["weights"]["group_size"] = group
    config, name = CompressedTensorsConfig.from_config(given), "model.language_model.layers.0.moe.experts"
    config.target_scheme_map["FusedMoE"] = config.target_scheme_map["Linear"]
    marlin = CompressedTensorsWNA16MoE(config, weight_quant=config.target_scheme_map["Linear"]["weights"])
    layer: Any = type("FusedMoE", (), {})()
    layer.moe_runner_config = SimpleNamespace(activation=activation)
    assert type(expert_activation.for_gelu(marlin, config, layer, name)) is taken


def test_the_triton_scheme_runs_gelu_and_leaves_the_rest_to_sglang() -> None:
    scheme: Any = object.__new__(CompressedTensorsWNA16TritonMoE)
    scheme.runner = SimpleNamespace(run=lambda batch, weights: ("run", batch, weights))
    scheme.get_triton_quant_info = lambda layer: "weights"
    for activation, expected in (("gelu_tanh", ("run", "batch", "weights")), ("silu", "stock")):
        scheme.moe_runner_config = SimpleNamespace(activation=activation)
        assert expert_activation.run_gelu(lambda *_: "stock", scheme, object(), "batch") == expected
