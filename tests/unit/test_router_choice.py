"""Who chooses a token's experts: the router's product, the routing that is asked for its logits, or SGLang."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.linear import ReplicatedLinear

from sglang_gemma4 import patching
from sglang_gemma4.kernels.experts.routed_product import routed_product_reference
from sglang_gemma4.models.layers import expert_layers, router_choice
from sglang_gemma4.models.layers.few_row_linear import FewRowLinear
from sglang_gemma4.models.layers.router_choice import RouterChoice
from tests.unit.test_expert_declines import EXPERTS, HIDDEN, layer_with, moe_of, server  # noqa: F401 - a fixture

TOPK = 2


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of a ``Gemma4DecoderLayer`` with experts as the choice looks at; its kernels are stood for by their references."""
    torch.manual_seed(0)
    proj = ReplicatedLinear(HIDDEN, EXPERTS, bias=False)
    torch.nn.init.normal_(proj.weight)
    moe = moe_of(layer_with())
    expert_layers.take_few_tokens(moe, HIDDEN, "gelu_pytorch_tanh")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(
        "sglang_gemma4.kernels.experts.routed_product.routed_product",
        lambda x, weight, scale, topk, done: routed_product_reference(x, weight, scale, topk),
    )
    monkeypatch.setattr("sglang_gemma4.kernels.experts.expert_routing.expert_routing", lambda *given: ("weights", "ids", "blocks"))
    return SimpleNamespace(moe=moe, router=SimpleNamespace(proj=proj), enable_moe_block=True)


def installed(layer: Any) -> str | None:
    return router_choice.install(SimpleNamespace(layers=[layer], start_layer=0, end_layer=1))


def route(layer: Any, logits: torch.Tensor, topk: int = TOPK) -> tuple[Any, Any]:
    found: tuple[Any, Any] = layer.moe.topk.topk_config.custom_routing_function(None, logits, topk, True)
    return found


def test_the_choice_is_handed_to_who_asks_with_its_logits(layer: Any) -> None:
    assert installed(layer) is None
    x, proj = torch.randn(3, HIDDEN), layer.router.proj
    logits = proj.quant_method.apply(proj, x)
    torch.testing.assert_close(logits, x @ proj.weight.T, atol=1e-4, rtol=1e-4)
    _, weights, ids, blocks = routed_product_reference(x, proj.weight, layer.moe.per_expert_scale, TOPK)
    found = route(layer, logits)
    assert torch.equal(found[0], weights)
    assert torch.equal(found[1], ids)
    assert torch.equal(layer.moe.few_token_experts.blocks.expert, blocks.expert)
    assert layer.moe.few_token_experts.ids is found[1], "the experts take the blocks of these very ids"
    assert route(layer, logits) == ("weights", "ids"), "it is forgotten after one use"


@pytest.mark.parametrize("change", [lambda logits: logits.clone(), lambda logits: logits[:2]], ids=["another tensor", "some rows"])
def test_other_logits_are_routed_afresh(layer: Any, change: Any) -> None:
    installed(layer)
    proj = layer.router.proj
    assert route(layer, change(proj.quant_method.apply(proj, torch.randn(3, HIDDEN)))) == ("weights", "ids")


def test_another_number_of_experts_is_routed_afresh(layer: Any) -> None:
    installed(layer)
    proj = layer.router.proj
    assert route(layer, proj.quant_method.apply(proj, torch.randn(3, HIDDEN)), topk=1) == ("weights", "ids")


@pytest.mark.parametrize(
    ("tokens", "why"), [(17, "too many tokens"), (0, "none"), (3, "declined"), (3, "deterministic"), (3, "another dtype")]
)
def test_products_that_only_multiply(layer: Any, tokens: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(layer)
    proj, experts = layer.router.proj, layer.moe.few_token_experts
    experts.declined = why == "declined"
    experts.against_routing = "of the server" if why == "deterministic" else None
    x = torch.randn(tokens, HIDDEN)
    if why == "another dtype":
        heard: list[str] = []
        monkeypatch.setattr(patching.declare, "note", lambda name, message: heard.append(f"{name}: {message}"))
        assert not proj.quant_method.takes(x.double(), proj.weight)
        assert ["router_choice: x is (3, 64) of torch.float64" in each for each in heard] == [True]
        return
    torch.testing.assert_close(proj.quant_method.apply(proj, x), x @ proj.weight.T)
    assert experts.chosen is None
    assert proj.quant_method.steps == 0


def test_what_multiplied_before_goes_on(layer: Any) -> None:
    """The kernel for few rows takes up to 32."""
    proj = layer.router.proj
    proj.quant_method = before = FewRowLinear(proj)
    assert installed(layer) is None
    assert isinstance(proj.quant_method, RouterChoice)
    assert proj.quant_method.before is before


def test_the_counter_comes_back_with_the_weights(layer: Any) -> None:
    installed(layer)
    proj = layer.router.proj
    assert dict(proj.named_buffers())["router_choice_done"] is proj.quant_method.done
    assert list(proj.state_dict()) == ["weight"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda layer: layer.moe.__dict__.pop("few_token_experts"), "few_token_experts is off or declined"),
        (lambda layer: setattr(layer.router.proj, "quant_method", object()), r"quantised (object)"),
        (lambda layer: setattr(layer.router, "proj", ReplicatedLinear(HIDDEN, 129, bias=False)), "up to 128 experts"),
    ],
)
def test_routers_that_stay_as_they_are(layer: Any, change: Any, said: str) -> None:
    change(layer)
    before = layer.router.proj.quant_method
    assert said in (installed(layer) or "")
    assert layer.router.proj.quant_method is before


def test_without_a_card_the_router_says_so(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    before = layer.router.proj.quant_method
    assert installed(layer) == "Triton does not run on cpu"
    assert layer.router.proj.quant_method is before


def test_a_layer_without_experts_has_no_router() -> None:
    assert router_choice.install(SimpleNamespace(layers=[SimpleNamespace(enable_moe_block=False)], start_layer=0, end_layer=1)) is None
