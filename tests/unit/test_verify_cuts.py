"""What verify's cuts leave of a distribution, against SGLang's plain samplers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.cpu.sampling import top_k_renorm, top_p_renorm
from sglang_gemma4.speculative import verify_cuts
from sglang_gemma4.speculative.verify_cuts import Cuts

REQUESTS, NODES, VOCABULARY = 6, 3, 23
ALL = 1 << 30
TOP_K = torch.tensor([1, 2, 8, ALL, 5, ALL], dtype=torch.int32)
TOP_P = torch.tensor([1.0, 0.5, 0.6, 0.7, 1.0, 1.0])
MIN_P = torch.tensor([0.0, 0.2, 0.0, 0.1, 0.3, 0.0])


def softmax(seed: int = 0) -> torch.Tensor:
    return torch.softmax(1.5 * torch.randn(REQUESTS * NODES, VOCABULARY, generator=torch.Generator().manual_seed(seed)), -1)


def plain_pytorch(probs: torch.Tensor, min_p: bool) -> torch.Tensor:
    """What ``--sampling-backend pytorch`` draws from."""
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

    bounds = [bound.repeat_interleave(NODES) for bound in (TOP_K, TOP_P, MIN_P)]
    drawn: Any = top_k_top_p_min_p_sampling_from_probs_torch(probs.clone(), *bounds, min_p, None, None, return_filtered_probs=True)  # type: ignore[arg-type]
    _, weights, tokens, _ = drawn
    left = torch.zeros_like(probs).scatter_(1, tokens.long(), weights)
    return left / left.sum(-1, keepdim=True)


def sequential(probs: torch.Tensor) -> torch.Tensor:
    """Top-k, then top-p of what it left."""
    return top_p_renorm(top_k_renorm(probs, TOP_K.repeat_interleave(NODES)), TOP_P.repeat_interleave(NODES))


@pytest.mark.parametrize("min_p", [False, True])
def test_as_the_plain_sampler_of_the_pytorch_backend(min_p: bool) -> None:
    probs = softmax()
    found = verify_cuts.cut(probs.clone(), Cuts(TOP_K, TOP_P, MIN_P if min_p else None, joint=True), top_k_renorm, top_p_renorm)
    expected = plain_pytorch(probs, min_p)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found > 0, expected > 0)
    assert not torch.equal(found > 0, sequential(probs) > 0), "the order matters here"


def test_as_the_plain_sampler_of_the_flashinfer_backend_with_min_p() -> None:
    probs = softmax(1)
    found = verify_cuts.cut(probs.clone(), Cuts(TOP_K, TOP_P, MIN_P, joint=False), top_k_renorm, top_p_renorm)
    expected = sequential(probs)
    expected[expected < expected.amax(-1, keepdim=True) * MIN_P.repeat_interleave(NODES)[:, None]] = 0.0
    torch.testing.assert_close(found, expected / expected.sum(-1, keepdim=True))


def info(**given: Any) -> Any:
    defaults = {"is_all_greedy": False, "need_top_k_sampling": False, "need_top_p_sampling": False, "need_min_p_sampling": False}
    return SimpleNamespace(**defaults | given, top_ks=TOP_K, top_ps=TOP_P, min_ps=MIN_P)


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ({}, False),
        ({"need_top_k_sampling": True}, False),
        ({"need_top_p_sampling": True}, False),
        ({"need_top_k_sampling": True, "need_top_p_sampling": True}, True),
        ({"need_min_p_sampling": True}, True),
        ({"need_min_p_sampling": True, "is_all_greedy": True}, False),
    ],
)
def test_where_verify_is_left_alone(given: dict[str, bool], differs: bool) -> None:
    assert verify_cuts.differ_from_stock(info(**given)) is differs


def test_top_p_is_judged_jointly_but_for_min_p_under_flashinfer() -> None:
    both = {"need_top_k_sampling": True, "need_top_p_sampling": True}
    assert [verify_cuts.of(info(**both), backend).joint for backend in ("pytorch", "flashinfer")] == [True, True]
    both["need_min_p_sampling"] = True
    assert [verify_cuts.of(info(**both), backend).joint for backend in ("pytorch", "flashinfer")] == [True, False]


def test_the_softmax_is_cut_inside_a_verify_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.speculative import eagle_utils

    monkeypatch.setitem(vars(eagle_utils), "top_k_renorm_prob", top_k_renorm)
    monkeypatch.setitem(vars(eagle_utils), "top_p_renorm_prob", top_p_renorm)
    softened = verify_cuts.cut_softmax(lambda logits, temperatures: torch.softmax(logits / temperatures, -1))
    logits, temperature = softmax().log(), torch.ones(REQUESTS * NODES, 1)
    given = info(need_top_k_sampling=True, need_top_p_sampling=True)
    batch = SimpleNamespace(sampling_info=given, forward_mode=SimpleNamespace(is_idle=lambda: False))
    monkeypatch.setattr(verify_cuts, "get_exec", lambda: SimpleNamespace(kernel=SimpleNamespace(sampling_backend="pytorch")))

    with verify_cuts.in_softmax(batch):
        assert not batch.sampling_info.need_top_k_sampling
        assert not batch.sampling_info.need_top_p_sampling
        cut = softened(logits, temperature)
    torch.testing.assert_close(cut, plain_pytorch(softmax(), min_p=False))
    assert batch.sampling_info is given
    assert given.need_top_k_sampling
    torch.testing.assert_close(softened(logits, temperature), softmax())
