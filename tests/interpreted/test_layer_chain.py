"""The layers that are timed whole: every way computes the same, and what is left out is left out."""

import pytest
import torch

from sglang_gemma4.benchmark import layer_chain
from sglang_gemma4.benchmark.layer_chain import Chain, Sizes

SIZES = Sizes(hidden=64, dense=32, inner=32, experts=8, topk=2, heads=4, kv_heads=2, dim=16, dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def chain() -> Chain:
    torch.manual_seed(0)
    return Chain(SIZES, requests=3, keys=5, layers=2)


@pytest.fixture(autouse=True)
def choice_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's needs a card."""

    def choice(logits: torch.Tensor, scale: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
        top = logits.topk(topk)
        return torch.softmax(top.values, -1) * scale[top.indices], top.indices.int()

    monkeypatch.setattr(layer_chain, "choice", choice)


@pytest.mark.parametrize("name", [name for name in layer_chain.ways() if not name.startswith("without")])
def test_every_way_computes_the_same(chain: Chain, name: str) -> None:
    expected = chain.run(layer_chain.ways()["as served"])
    torch.testing.assert_close(chain.run(layer_chain.ways()[name]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["no product ours", "every down ours", "router's product and choice apart", "grouped experts"])
def test_verify_steps_of_more_tokens_than_a_product_takes(name: str) -> None:
    """18 tokens, past the few-token kernels, and 72, past what ``few_row_linear`` takes at all; their own keys are not in the cache."""
    torch.manual_seed(0)
    for requests in (6, 24):
        steps = Chain(SIZES, requests=requests, keys=5, layers=1, queries=3)
        expected = steps.run(layer_chain.ways()["as served"])
        assert expected.shape == (3 * requests, SIZES.hidden)
        torch.testing.assert_close(steps.run(layer_chain.ways()[name]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("piece", layer_chain.PIECES)
def test_a_piece_that_is_left_out_is_not_computed(chain: Chain, piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output of the pass before stands there, whatever its kernel would do now."""
    expected = chain.run(layer_chain.ways()["as served"])

    def refuse(*given: object, **options: object) -> None:
        raise AssertionError(f"{piece} was computed")

    kernels = {"rope": "qkv_norm_rope", "attention": "few_query_attention", "norms": "triple_rmsnorm", "tail": "dual_tail"}
    if piece in kernels:
        monkeypatch.setattr(layer_chain, kernels[piece], refuse)
    else:
        for layer in chain.layers:
            for name in {"dense": ("gate_up", "down"), "experts": ("w13", "w2")}.get(piece, (piece,)):
                monkeypatch.setitem(layer.weights, name, torch.full_like(layer.weights[name], float("nan")))
    found = chain.run(layer_chain.ways()[f"without {piece}"])
    if piece != "norms":  # whose residual the pass before has overwritten
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
