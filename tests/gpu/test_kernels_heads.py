"""The heads' kernels compiled on a card against their references, at Gemma 4's real sizes."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels.heads import centroid_argmax as centroid
from sglang_gemma4.kernels.heads import head_argmax as head

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

VOCABULARY = 262144


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN or the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def tensors(rows: int, width: int, vocabulary: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    hidden = torch.randn(rows, width, device="cuda").to(dtype)
    return hidden, (torch.randn(vocabulary, width, device="cuda") * 0.05).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [256, 1024, 2816])
@pytest.mark.parametrize("rows", [1, 5, 16, 32, 64, 80, 128])
def test_head_argmax(rows: int, width: int, dtype: torch.dtype) -> None:
    """Float32: the reference's tokens. Else: a token whose exact score is within the rounding of the largest one, mostly the same token."""
    hidden, weight = tensors(rows, width, VOCABULARY, dtype)
    tokens, best = head.head_argmax(hidden, weight)
    exact = hidden.float() @ weight.float().T
    expected, _ = head.head_argmax_reference(hidden, weight)
    if dtype == torch.float32:
        assert torch.equal(tokens, expected)
    else:
        assert (tokens == expected).float().mean() >= 0.75
    most = exact.amax(-1)
    tolerance = {torch.bfloat16: 2**-7, torch.float16: 2**-9, torch.float32: 2**-18}[dtype]
    assert ((most - exact.gather(1, tokens[:, None]).view(-1)) <= most.abs() * tolerance).all()
    torch.testing.assert_close(best[0], most, atol=1e-4, rtol=tolerance)
    assert torch.equal(best[1].long(), tokens)


@pytest.mark.parametrize("rows", [1, 32, 80])
@pytest.mark.parametrize("vocabulary", [VOCABULARY, 262143, 100003, 40, 1])
def test_a_clear_winner_anywhere_and_padding_never(vocabulary: int, rows: int) -> None:
    rows = min(rows, vocabulary)
    hidden, weight = tensors(rows, 1024, vocabulary + 64, torch.bfloat16)
    weight[vocabulary:] = 4 * hidden[0]
    others = torch.randperm(vocabulary - 1, generator=torch.Generator().manual_seed(vocabulary))[: rows - 1]
    places = torch.cat([torch.tensor([vocabulary - 1]), others]).cuda()
    weight[places] = hidden
    tokens, _ = head.head_argmax(hidden, weight, vocabulary=vocabulary)
    assert torch.equal(tokens, places)


def test_the_lowest_of_equal_tokens() -> None:
    hidden, weight = tensors(80, 1024, VOCABULARY, torch.bfloat16)
    hidden[:] = hidden[0]
    weight[[5, 6, 1000, 200000, VOCABULARY - 1]] = hidden[0]
    assert head.head_argmax(hidden, weight)[0].tolist() == [5] * 80
    assert head.head_argmax(hidden, weight[6:], first_token=6)[0].tolist() == [6] * 80


def test_ranges_of_eight_ranks_join() -> None:
    hidden, weight = tensors(32, 1024, VOCABULARY, torch.bfloat16)
    share = VOCABULARY // 8
    parts = [head.head_argmax(hidden, weight[n * share : (n + 1) * share], first_token=n * share)[1] for n in range(8)]
    assert torch.equal(head.join_pairs(torch.stack(parts))[0], head.head_argmax(hidden, weight)[0])


@pytest.mark.parametrize("rows", [1, 32, 80])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_centroid_argmax(rows: int, dtype: torch.dtype) -> None:
    hidden, weight = tensors(rows, 256, VOCABULARY, dtype)
    scores = hidden @ (torch.randn(2048, 256, device="cuda") * 0.05).to(dtype).T
    ordering = torch.randperm(VOCABULARY, device="cuda")
    tokens = centroid.centroid_argmax(hidden, scores, weight, ordering, 32)
    expected = centroid.centroid_argmax_reference(hidden, scores, weight, ordering, 32)
    assert (tokens == expected).float().mean() >= (1.0 if dtype == torch.float32 else 0.9)
    place = torch.empty_like(ordering).scatter_(0, ordering, torch.arange(VOCABULARY, device="cuda"))
    exact = [(hidden.float() * weight[place[which]].float()).sum(-1) for which in (tokens, expected)]
    torch.testing.assert_close(exact[0], exact[1], atol=1e-4, rtol=2**-7)


def test_replayed_in_a_graph() -> None:
    """New hidden states in the captured tensor give new tokens."""
    hidden, weight = tensors(8, 1024, VOCABULARY, torch.bfloat16)
    other, _ = tensors(8, 1024, 1, torch.bfloat16, seed=7)
    head.head_argmax(hidden, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, _ = head.head_argmax(hidden, weight)
    for states in (hidden.clone(), other):
        hidden.copy_(states)
        graph.replay()
        assert torch.equal(tokens, head.head_argmax(hidden, weight)[0])
    assert tokens.unique().numel() > 1
