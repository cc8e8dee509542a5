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


@pytest.fixture(scope="module")
def expected(chain: Chain) -> torch.Tensor:
    """As served; every piece's output stands ready from then on."""
    return chain.run(WAYS["as served"])


@pytest.mark.parametrize("name", [name for name in WAYS if not name.startswith(("as served", "without"))])
def test_every_way_computes_the_same(chain: Chain, expected: torch.Tensor, name: str) -> None:
    torch.testing.assert_close(chain.run(WAYS[name]), expected, atol=1e-5, rtol=1e-4)


def test_verify_steps_of_more_tokens_than_the_few_token_kernels_take() -> None:
    """18 tokens, whose own keys are not in the cache; two of five products are ours."""
    torch.manual_seed(0)
    steps = Chain(PLACE, requests=6, keys=5, layers=1, queries=3)
    expected = steps.run(WAYS["as served"])
    assert expected.shape == (18, TINY.hidden)
    torch.testing.assert_close(steps.run(WAYS["no product ours"]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("piece", case.PIECES)
def test_a_piece_that_is_left_out_is_not_computed(
    chain: Chain, expected: torch.Tensor, piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output of the pass before stands there, whatever its kernel would do now."""

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
