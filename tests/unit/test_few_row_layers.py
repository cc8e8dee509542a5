"""Which linear layers of a model multiply few rows by our kernel, and which keep SGLang's product."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.activation import GeluAndMul
from sglang.srt.layers.linear import ReplicatedLinear

from sglang_gemma4.benchmark.kernels import chain
from sglang_gemma4.models import build
from sglang_gemma4.models.layers.few_row_linear import LARGE_FFN, FewRowLinear, install


def decoder_layer(experts: bool, inner: int = 576) -> torch.nn.Module:
    """As much of a ``Gemma4DecoderLayer`` as the choice looks at."""
    layer, ffn = torch.nn.Module(), torch.nn.Module()
    layer.enable_moe_block = experts
    ffn.gate_up_proj = ReplicatedLinear(1024, 2 * inner, bias=False)
    ffn.down_proj = ReplicatedLinear(inner, 1024, bias=False)
    ffn.act_fn = GeluAndMul()
    layer.mlp = ffn
    layer.o_proj = ReplicatedLinear(1024, 576, bias=False)
    return layer


@pytest.mark.parametrize("overlap", [False, True])
def test_a_dense_ffn_beside_experts_has_limits_of_its_own(overlap: bool) -> None:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([decoder_layer(experts=True), decoder_layer(experts=False)])
    assert install(model, overlap) == []
    sparse, dense = model.layers
    most = {
        sparse.mlp.gate_up_proj: 32 if overlap else 16,
        sparse.mlp.down_proj: 1 if overlap else 16,
        sparse.o_proj: 16,
        dense.mlp.gate_up_proj: 16,
        dense.mlp.down_proj: 16,
        dense.o_proj: 16,
    }
    for layer, rows in most.items():
        assert type(layer.quant_method) is FewRowLinear
        taken = [layer.quant_method.takes(torch.zeros(count, layer.weight.shape[1]), layer.weight) for count in (rows, rows + 1)]
        assert taken == [True, False]


@pytest.mark.parametrize(("inner", "rows"), [(LARGE_FFN // 2, 32), (LARGE_FFN // 2 - 64, 16)])
def test_the_first_product_of_a_large_ffn_takes_more_rows(inner: int, rows: int) -> None:
    model = decoder_layer(experts=False, inner=inner)
    install(model)
    assert (model.mlp.gate_up_proj.quant_method.most_rows, model.mlp.down_proj.quant_method.most_rows) == (rows, 16)


def test_the_benchmark_of_whole_layers_has_these_limits() -> None:
    model = decoder_layer(experts=True)
    install(model, overlap=True)
    found = [layer.quant_method.most_rows for layer in (model.mlp.gate_up_proj, model.mlp.down_proj, model.o_proj)]
    assert found == [chain.MOST_ROWS[name] for name in ("gate_up", "down", "o")]
    assert FewRowLinear(ReplicatedLinear(64, 128, bias=False)).most_rows == chain.MOST_ROWS["router"]


@pytest.mark.parametrize(
    ("outputs", "rows", "ours"), [(128, 32, True), (128, 33, False), (576, 16, True), (576, 17, False), (128, 0, False)]
)
def test_a_narrow_product_takes_more_rows(outputs: int, rows: int, ours: bool) -> None:
    for layer in (ReplicatedLinear(1024, outputs, bias=False), ReplicatedLinear(outputs, 1024, bias=False)):
        assert FewRowLinear(layer).takes(torch.zeros(rows, layer.input_size), layer.weight) is ours


def test_counters_come_back_with_the_weights() -> None:
    """SGLang stores a model's buffers while the memory of its weights is given away."""
    layer = ReplicatedLinear(64, 64, bias=False)
    method = FewRowLinear(layer)
    assert dict(layer.named_buffers())["few_row_linear_done"] is method.done
    assert list(layer.state_dict()) == ["weight"]


@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_inference_keeps_sglang_s_products(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the flag: the mode begins after the model is built."""
    heard: list[str] = []
    flags = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=deterministic))
    monkeypatch.setattr("sglang.srt.runtime_context.get_exec", lambda: flags)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(build, "decline", lambda name, message: heard.append(message))
    monkeypatch.setattr("sglang_gemma4.models.schedule.dense_beside_experts.reason_against_this_server", lambda: "one rank of a test")
    model = decoder_layer(experts=False)
    build.replace_products(model)
    assert isinstance(model.o_proj.quant_method, FewRowLinear) is not deterministic
    assert ["--enable-deterministic-inference" in each for each in heard] == [True] * deterministic
