"""The layers that are timed whole: every way computes the same, and what is left out is left out."""

import pytest
import torch

from sglang_gemma4.benchmark.kernels import chain as case
from sglang_gemma4.benchmark.kernels.chain import TINY, WAYS, Chain
from sglang_gemma4.benchmark.kernels.harness import Place

PLACE = Place("cpu", tiny=True)


@pytest.fixture(scope="module")
def chain() -> Chain:
    torch.manual_seed(0)
    return Chain(PLACE, requests=3, keys=5, layers=2)


@pytest.mark.parametrize("name", [name for name in WAYS if not name.startswith("without")])
def test_every_way_computes_the_same(chain: Chain, name: str) -> None:
    expected = chain.run(WAYS["as served"])
    torch.testing.assert_close(chain.run(WAYS[name]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["no product ours", "router's product and choice apart", "grouped experts"])
def test_verify_steps_of_more_tokens_than_a_product_takes(name: str) -> None:
    """18 tokens, past the few-token kernels, and 72, past what ``few_row_linear`` takes at all; their own keys are not in the cache."""
    torch.manual_seed(0)
    for requests in (6, 24):
        steps = Chain(PLACE, requests=requests, keys=5, layers=1, queries=3)
        expected = steps.run(WAYS["as served"])
        assert expected.shape == (3 * requests, TINY.hidden)
        torch.testing.assert_close(steps.run(WAYS[name]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("piece", case.PIECES)
def test_a_piece_that_is_left_out_is_not_computed(chain: Chain, piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output of the pass before stands there, whatever its kernel would do now."""
    expected = chain.run(WAYS["as served"])

    def refuse(*given: object, **options: object) -> None:
        raise AssertionError(f"{piece} was computed")

    kernels = {"rope": "qkv_norm_rope", "attention": "few_query_attention", "norms": "triple_rmsnorm", "tail": "dual_tail"}
    if piece in kernels:
        monkeypatch.setattr(case, kernels[piece], refuse)
    else:
        for layer in chain.layers:
            for name in {"dense": ("gate_up", "down"), "experts": ("w13", "w2")}.get(piece, (piece,)):
                monkeypatch.setitem(layer.weights, name, torch.full_like(layer.weights[name], float("nan")))
    found = chain.run(WAYS[f"without {piece}"])
    if piece != "norms":  # whose residual the pass before has overwritten
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
