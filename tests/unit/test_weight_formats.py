"""Layers of SGLang with fp8 weights as loading leaves them: which form our kernels read, and what multiplies how many rows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.linear import QKVParallelLinear, ReplicatedLinear
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig, CompressedTensorsLinearMethod
from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
from torch.nn import Parameter

from sglang_gemma4.kernels.weights import FP8, Scaled, dequantised, scaled
from sglang_gemma4.models.layers import few_row_linear, shared_query, weight_formats

WIDTH, OUTPUTS = 64, 96
GROUP = {"num_bits": 8, "type": "float", "symmetric": True}
COMPRESSED = {
    "format": "float-quantized",
    "ignore": [],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**GROUP, "strategy": "channel", "dynamic": False},
            "input_activations": {**GROUP, "strategy": "token", "dynamic": True},
        }
    },
}


def config_of(kind: str) -> Any:
    """SGLang's configuration of a format."""
    if kind == "fp8":
        return Fp8Config()
    if kind == "fp8 blocks":
        return Fp8Config(is_checkpoint_fp8_serialized=True, weight_block_size=[32, 32])
    return CompressedTensorsConfig.from_config({**COMPRESSED, "quant_method": "compressed-tensors", "packed_modules_mapping": {}})


def load(layer: Any, per_output: bool = True) -> torch.Tensor:
    """Leave a linear layer's parameters as loading on a card does; its values in float32."""
    values = torch.randn(layer.weight.shape)
    scale = (values.abs().amax(1, keepdim=True) if per_output else values.abs().amax().view(1)) / 448
    weight = (values / scale).to(FP8)
    layer.weight = Parameter(weight.t(), requires_grad=False)
    online = isinstance(layer.quant_method, Fp8LinearMethod)
    layer.weight_scale = Parameter(scale.t().contiguous() if online and per_output else scale, requires_grad=False)
    layer.input_scale = None
    return dequantised(scaled(weight, scale))


def model_of(kind: str) -> Any:
    model = torch.nn.Module()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model.proj = ReplicatedLinear(WIDTH, OUTPUTS, bias=False, quant_config=config_of(kind), prefix="proj")
    finally:
        torch.set_default_dtype(torch.float32)
    return model


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """compressed-tensors' formats ask the card when a layer is built."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Any]]:
    """Rows and weight of each product of ours, which torch computes."""
    found: list[tuple[int, Any]] = []

    def product(x: torch.Tensor, weight: Any, done: torch.Tensor, gated: bool = False) -> torch.Tensor:
        found.append((x.shape[0], weight))
        return (x.float() @ dequantised(weight).T).to(x.dtype)

    monkeypatch.setattr(few_row_linear, "few_row_linear", product)
    return found


@pytest.mark.parametrize("per_output", [False, True], ids=["one scale", "a scale for each output"])
@pytest.mark.parametrize("kind", ["fp8", "compressed-tensors"])
def test_a_linear_layer(kind: str, per_output: bool, calls: list[tuple[int, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(kind)
    stock = type(model.proj.quant_method)
    assert few_row_linear.install(model) == []
    method = model.proj.quant_method
    assert isinstance(method, few_row_linear.FewRows)
    assert isinstance(method, stock)
    values = load(model.proj, per_output)
    left: list[Any] = []

    def theirs(_method: Any, layer: Any, _x: torch.Tensor, _bias: None = None) -> str:
        left.append(layer)
        return "SGLang's"

    monkeypatch.setattr(stock, "apply", theirs)
    x = torch.randn(few_row_linear.MOST_ROWS_OF_SMALL_FP8, WIDTH, dtype=torch.bfloat16)
    torch.testing.assert_close(model.proj(x)[0], (x.float() @ values.T).bfloat16())
    ((rows, weight),) = calls
    assert rows == len(x)
    assert isinstance(weight, Scaled)
    assert weight.levels.data_ptr() == model.proj.weight.data_ptr()
    assert model.proj(torch.cat([x, x]))[0] == "SGLang's"
    assert left == [model.proj]
    # The first outputs: ours, and SGLang's on a view.
    torch.testing.assert_close(method.first_outputs(model.proj, x, 32), (x.float() @ values[:32].T).bfloat16())
    assert method.first_outputs(model.proj, torch.cat([x, x]), 32) == "SGLang's"
    part = left[-1]
    assert part.weight.shape == (WIDTH, 32)
    torch.testing.assert_close(dequantised(scaled(part.weight.t(), part.weight_scale)), values[:32])


def test_what_keeps_sglang_s_product() -> None:
    blocks = model_of("fp8 blocks")
    assert few_row_linear.install(blocks) == ["proj: its fp8 weights have a scale for each block of [32, 32]"]
    marlin = model_of("fp8")
    marlin.proj.quant_method.use_marlin = True
    assert few_row_linear.install(marlin) == ["proj: its fp8 weights are repacked for Marlin"]
    other = SimpleNamespace(quant_method=object())
    assert weight_formats.reason_against_linear(other) == "it is quantised (object)"
    with pytest.raises(ValueError, match=r"it has not been loaded"):
        weight_formats.linear_weight(model_of("fp8").proj)


def test_a_linear_layer_in_blocks(calls: list[tuple[int, Any]]) -> None:
    """Its weight lies as it was loaded; some of its outputs are taken from the whole product where that is SGLang's."""
    with torch.device("cpu"):
        config = Fp8Config(is_checkpoint_fp8_serialized=True, weight_block_size=[128, 128])
        proj = ReplicatedLinear(256, 384, bias=False, quant_config=config, prefix="proj")
    model = torch.nn.Module()
    model.proj, proj.orig_dtype = proj, torch.bfloat16
    assert few_row_linear.install(model) == []
    proj.weight = Parameter(torch.randn(384, 256).to(FP8), requires_grad=False)
    proj.weight_scale_inv = Parameter(torch.rand(3, 2), requires_grad=False)
    x = torch.randn(3, 256, dtype=torch.bfloat16)
    values = proj.weight.float() * proj.weight_scale_inv.repeat_interleave(128, 0).repeat_interleave(128, 1)
    torch.testing.assert_close(proj(x)[0], (x.float() @ values.T).bfloat16())
    ((_, weight),) = calls
    assert weight.block == 128
    method: Any = proj.quant_method
    torch.testing.assert_close(method.first_outputs(proj, x, 200), (x.float() @ values[:200].T).bfloat16())
    method.w8a8_block_fp8_linear = lambda **given: given["input"].float() @ values.T
    many = x.repeat(30, 1)
    torch.testing.assert_close(method.first_outputs(proj, many, 200), many.float() @ values[:200].T)


@pytest.mark.parametrize(
    ("shape", "scales"), [((4, 96, 64), (4,)), ((4, 96, 64), (4, 96, 1))], ids=["a scale for each expert", "a scale for each output"]
)
def test_experts(shape: tuple[int, ...], scales: tuple[int, ...]) -> None:
    from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod

    method: Any = object.__new__(Fp8MoEMethod)
    method.block_quant, method.is_fp4_expert = False, False
    layer = SimpleNamespace(
        quant_method=method, w13_weight=torch.randn(shape).to(FP8), w2_weight=torch.randn(4, 64, 48).to(FP8),
        w13_weight_scale=torch.rand(scales), w2_weight_scale=torch.rand(4),
    )  # fmt: skip
    assert weight_formats.reason_against_experts(layer) is None
    w13, w2 = weight_formats.experts_weights(layer)
    torch.testing.assert_close(dequantised(w13), layer.w13_weight.float() * layer.w13_weight_scale.view(4, -1, 1))
    torch.testing.assert_close(dequantised(w2), layer.w2_weight.float() * layer.w2_weight_scale.view(4, 1, 1))
    method.block_quant = True
    assert weight_formats.reason_against_experts(layer) == "the experts' fp8 weights have a scale for each block"


def test_four_bit_experts() -> None:
    """As SGLang's Triton runner holds them, in groups of 32."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsFusedMoEMethod
    from sglang.srt.layers.quantization.compressed_tensors.schemes import CompressedTensorsWNA16MoE, CompressedTensorsWNA16TritonMoE

    scheme: Any = object.__new__(CompressedTensorsWNA16TritonMoE)
    scheme.num_bits, scheme.sym, scheme.actorder, scheme.group_size = 4, True, None, 32
    layer = SimpleNamespace(
        quant_method=object.__new__(CompressedTensorsFusedMoEMethod), scheme=scheme,
        w13_weight_packed=torch.zeros(4, 96, 32, dtype=torch.uint8), w13_weight_scale=torch.ones(4, 96, 2),
        w2_weight_packed=torch.zeros(4, 64, 32, dtype=torch.uint8), w2_weight_scale=torch.ones(4, 64, 2),
    )  # fmt: skip
    assert weight_formats.reason_against_experts(layer) is None
    found: Any = weight_formats.experts_weights(layer)
    assert [(weight.shape, weight.group) for weight in found] == [((4, 96, 64), 32), ((4, 64, 64), 32)]
    scheme.actorder = "group"
    assert "order: group" in str(weight_formats.reason_against_experts(layer))
    layer.scheme = object.__new__(CompressedTensorsWNA16MoE)
    said = "the weights are quantised (CompressedTensorsFusedMoEMethod, CompressedTensorsWNA16MoE)"
    assert weight_formats.reason_against_experts(layer) == said


def test_shared_queries_of_fp8() -> None:
    """They need the method that multiplies a part of a weight."""
    made: Any = object.__new__(QKVParallelLinear)
    torch.nn.Module.__init__(made)
    proj = model_of("fp8").proj
    made.quant_method, made.input_size = proj.quant_method, WIDTH
    made.weight = Parameter(torch.zeros(OUTPUTS, WIDTH).to(FP8).t(), requires_grad=False)
    attention = SimpleNamespace(qkv_proj=made, q_size=32, kv_size=32, q_norm=SimpleNamespace(scale_shift=0.0))
    assert shared_query.reason_against(attention) == "qkv_proj is quantised, and few_row_linear is off or declined"
    made.quant_method = few_row_linear.few_row_method(proj)
    assert shared_query.reason_against(attention) is None
    attention.kv_size = 16
    assert "qkv_proj's weight is packed" in str(shared_query.reason_against(attention))


def test_the_method_of_another_class_is_left() -> None:
    """A subclass may hold its weights otherwise."""

    class Other(CompressedTensorsLinearMethod):
        """Not SGLang's own."""

    model = model_of("compressed-tensors")
    model.proj.quant_method = Other(model.proj.quant_method.quantization_config)
    assert few_row_linear.install(model) == ["proj: it is multiplied by a Other"]


@pytest.mark.parametrize(
    ("outputs", "width", "rows"),
    [(8192, 2816, 16), (2816, 4096, 32), (4224, 2816, 32), (5376, 8192, 8), (43008, 5376, 8), (30720, 3840, 16), (3840, 15360, 16)],
)
def test_rows_of_fp8_weights(outputs: int, width: int, rows: int) -> None:
    """As measured on an H200 (runs/2026-11-30-h200-fp8-linear): 26B-A4B's, 31B's and 12B's."""
    assert few_row_linear.fp8_rows(outputs, width) == few_row_linear.fp8_rows(width, outputs) == rows
