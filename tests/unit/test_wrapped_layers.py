"""Fused paths ask what stands in a layer's place when they run: LoRA wraps layers after the model was built."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.activation import GeluAndMul
from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod, UnquantizedLinearMethod
from sglang.srt.lora.layers import BaseLayerWithLoRA

from sglang_gemma4 import patching
from sglang_gemma4.models.layers import few_row_linear, shared_query
from sglang_gemma4.models.schedule import dense_beside_experts
from tests.unit.test_expert_declines import HIDDEN, server  # noqa: F401 - a fixture
from tests.unit.test_router_choice import installed, layer  # noqa: F401 - a fixture

DELTA = 0.5


class Adapted(BaseLayerWithLoRA):
    """SGLang's wrapper with a change that anybody sees who takes the weight alone."""

    def __init__(self, base_layer: torch.nn.Module) -> None:
        super().__init__(base_layer, lora_backend=None)

    def forward(self, x: torch.Tensor) -> Any:
        return self.base_layer(x)[0] + DELTA, None


class Doubling(UnquantizedLinearMethod):
    """Another method than ours, set later, whose weights are not what they seem."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:  # noqa: F811
        return 2 * torch.nn.functional.linear(x, layer.weight)


class FeedForward(torch.nn.Module):
    """A ``Gemma3MLP`` of layers that need no ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = ReplicatedLinear(32, 128, bias=False), ReplicatedLinear(64, 32, bias=False)
        self.act_fn = GeluAndMul(approximate="tanh")
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn.forward_native(self.gate_up_proj(x)[0]))[0]  # type: ignore[no-any-return]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What declined, and kernels that multiply in torch."""
    found: list[str] = []
    monkeypatch.setattr(patching.declare, "note", lambda name, message: found.append(f"{name}: {message}"))

    def product(x: torch.Tensor, weight: torch.Tensor, done: Any, gated: bool = False) -> torch.Tensor:
        out = torch.nn.functional.linear(x, weight)
        return GeluAndMul(approximate="tanh").forward_native(out) if gated else out

    monkeypatch.setattr(few_row_linear, "few_row_linear", product)
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ffn: None, None),
        (lambda ffn: setattr(ffn, "gate_up_proj", Adapted(ffn.gate_up_proj)), "gate_up_proj became a Adapted"),
        (lambda ffn: setattr(ffn.gate_up_proj, "quant_method", Doubling()), "gate_up_proj is multiplied by a Doubling by now"),
        (lambda ffn: setattr(ffn, "down_proj", Adapted(ffn.down_proj)), None),
    ],
    ids=["plain", "wrapped", "another method", "down_proj wrapped"],
)
def test_the_ffn_of_few_rows(change: Any, said: str | None, heard: list[str]) -> None:
    ffn = FeedForward()
    few_row_linear.install(ffn)
    assert isinstance(ffn.forward, few_row_linear.GatedFeedForward)
    change(ffn)
    x = torch.randn(3, 32)
    torch.testing.assert_close(ffn(x), FeedForward.forward(ffn, x))
    assert [(said or "nothing") in each for each in heard] == ([True] if said else [])


def of_class(kind: type, method: type) -> Any:
    """A layer of exactly this class, as much as is asked for."""
    made: Any = object.__new__(kind)
    torch.nn.Module.__init__(made)
    given: Any = object.__new__(method)
    if isinstance(given, torch.nn.Module):
        torch.nn.Module.__init__(given)
    made.quant_method = given
    return made


def moe_layer() -> Any:
    mlp = SimpleNamespace(
        gate_up_proj=of_class(MergedColumnParallelLinear, few_row_linear.FewRowLinear),
        down_proj=of_class(RowParallelLinear, UnquantizedLinearMethod),
    )
    moe = SimpleNamespace(experts=of_class(FusedMoE, UnquantizedFusedMoEMethod))
    mlp.forward, moe.forward = lambda x: x + 1, lambda x: x
    return SimpleNamespace(mlp=mlp, moe=moe)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: setattr(one.mlp, "gate_up_proj", Adapted(one.mlp.gate_up_proj)), "gate_up_proj is a Adapted"),
        (lambda one: setattr(one.mlp, "down_proj", Adapted(one.mlp.down_proj)), "down_proj is a Adapted"),
        (lambda one: setattr(one.moe, "experts", Adapted(one.moe.experts)), "experts is a Adapted"),
        (lambda one: setattr(one.mlp.down_proj, "quant_method", object()), "down_proj: it is quantised (object)"),
        (lambda one: setattr(one.moe.experts, "quant_method", torch.nn.Identity()), "experts: the weights are quantised (Identity)"),
    ],
)
def test_the_dense_ffn_stays_before_experts(change: Any, said: str, heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork would ask the side stream, which is none."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    one = moe_layer()
    assert dense_beside_experts.reason_against(one) is None
    change(one)
    beside = dense_beside_experts.DenseBesideExperts(one, side=None)  # type: ignore[arg-type]
    assert one.mlp.forward(torch.ones(1)) == 2
    assert (beside.forked, heard) == (False, [f"dense_beside_experts: {said}"])


def test_an_adapted_router_chooses_by_its_own_logits(layer: Any, heard: list[str]) -> None:  # noqa: F811
    installed(layer)
    proj = layer.router.proj
    layer.router.proj = Adapted(proj)
    x = torch.randn(3, HIDDEN)
    torch.testing.assert_close(layer.router.proj(x)[0], x @ proj.weight.T + DELTA)
    assert layer.moe.few_token_experts.chosen is None
    assert [each.startswith("router_choice: the router's GEMM became a Adapted") for each in heard] == [True]


def test_queries_alone_are_not_taken_from_an_adapted_projection() -> None:
    projection = of_class(QKVParallelLinear, UnquantizedLinearMethod)
    attention = SimpleNamespace(qkv_proj=Adapted(projection))
    assert shared_query.reason_against(attention) == "qkv_proj is a Adapted"
