"""The heads' kernels compiled on a card against their references, at Gemma 4's real sizes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.card import card
from sglang_gemma4.kernels.heads import centroid_argmax as centroid
from sglang_gemma4.kernels.heads import head_argmax as head
from sglang_gemma4.kernels.heads import narrow_head as narrow
from sglang_gemma4.kernels.heads import narrow_scan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")

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


def narrowed(hidden: torch.Tensor, weight: torch.Tensor, **given: Any) -> torch.Tensor:
    """The tokens from the int8 copy: ``head_argmax``'s, as the pairs are, bit for bit."""
    tokens, pairs = narrow.narrow_argmax(hidden, weight, narrow_scan.NarrowHead.make(weight), **given)
    given.pop("tile", None)
    expected, best = head.head_argmax(hidden, weight, **given)
    assert torch.equal(tokens, expected)
    assert torch.equal(pairs, best)
    return tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [256, 1000, 1024, 2816])
@pytest.mark.parametrize("rows", [1, 5, 16, 17, 32])
def test_narrow_argmax(rows: int, width: int, dtype: torch.dtype) -> None:
    hidden, weight = tensors(rows, width, VOCABULARY, dtype)
    narrowed(hidden, weight)
    weight[1::2] = weight[::2] * (1 + torch.randn_like(weight[::2]) / 64)  # a byte hardly tells neighbours apart
    tokens = narrowed(hidden, weight, rounded=False)
    exact = hidden.double() @ weight.double().T
    assert ((exact.amax(-1) - exact.gather(1, tokens[:, None]).view(-1)) <= exact.abs().amax(-1) * 2**-12).all()


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("vocabulary", [VOCABULARY, 262143, 100003, 40, 1])
def test_narrow_argmax_over_odd_vocabularies(vocabulary: int, rows: int) -> None:
    hidden, weight = tensors(rows, 1024, vocabulary + 64, torch.bfloat16)
    weight[vocabulary:] = 4 * hidden[0]
    weight[vocabulary - 1] = hidden[0]
    assert narrowed(hidden, weight, vocabulary=vocabulary, first_token=3)[0] == vocabulary + 2


def test_narrow_argmax_of_ties_zeros_nan_and_infinity() -> None:
    hidden, weight = tensors(32, 1024, VOCABULARY, torch.bfloat16)
    weight[[5, 6, 1000, 200000, VOCABULARY - 1]] = hidden[0]
    weight[7], weight[8, 3], weight[9] = float("nan"), float("inf"), 0
    weight[100000:100100] *= 1000
    hidden[1], hidden[2, 7], hidden[3, 7], hidden[4], hidden[5] = 0, float("nan"), float("inf"), float("-inf"), hidden[5] * 1e-30
    tokens = narrowed(hidden, weight)
    assert (tokens[1], tokens[2]) == (0, 0)
    hidden[:] = hidden[0].clone()
    weight[100000:100100] = 0
    assert narrowed(hidden, weight[:VOCABULARY]).unique().tolist() in ([5], [8]), "infinity in a weight may win"


def test_narrow_argmax_where_the_copy_alone_is_wrong() -> None:
    """Each row's token loses what rounding to a byte can take, in every column; a rival gains it."""
    torch.manual_seed(0)
    hidden = torch.where(torch.rand(32, 512, device="cuda") < 0.5, -1.0, 1.0).bfloat16().repeat_interleave(2, 1)
    weight = torch.randint(-8, 9, (VOCABULARY, 1024), device="cuda").bfloat16()
    places = torch.randperm(VOCABULARY, device="cuda")[:64].view(32, 2)
    weight[places[:, 0]], weight[places[:, 1]] = hidden * 20.375, hidden * 19.625
    weight[places[:, 1], 2:66] += hidden[:, 2:66] * 6
    # A pair that cancels makes each scale 1; of every column alike, else columns would be divided by powers of two.
    token = torch.arange(VOCABULARY, device="cuda")
    column = 2 * (token % 512)
    column[places.flatten()] = 512
    weight[token, column], weight[token, column + 1] = 127, -127
    copy = narrow_scan.NarrowHead.make(weight)
    alone = (hidden.float() @ (copy.scale[:, None] * copy.levels.float()).T).argmax(-1)
    assert (copy.scale == 1).all()
    tokens = narrowed(hidden, weight)
    assert torch.equal(tokens, places[:, 0])
    assert torch.equal(alone, places[:, 1]), "else this shows nothing"


@pytest.mark.parametrize("rows", [3, 32])
def test_narrow_bounds_hold(rows: int) -> None:
    hidden, weight = tensors(rows, 1024, 20000, torch.bfloat16)
    weight[::3, ::7] *= 30
    hidden[:, 5] *= 100
    tile = narrow_scan.tile_for(rows, card(hidden.device))
    found = narrow_scan.scan(hidden, narrow_scan.NarrowHead.make(weight), 20000, tile)
    exact = hidden.double() @ weight.double().T
    for part in range(len(found.lower)):
        begin, end = part * found.share, min(20000, (part + 1) * found.share)
        assert (found.lower[part] <= exact[:, begin:end].amax(1)).all()
        for block, first in enumerate(range(begin, end, found.block)):
            assert (found.upper[part, block] >= exact[:, first : min(end, first + found.block)].amax(1)).all()


def test_narrow_ranges_of_ranks_join() -> None:
    hidden, weight = tensors(8, 1024, VOCABULARY, torch.bfloat16)
    parts = []
    for first in range(0, VOCABULARY, VOCABULARY // 4):
        mine = weight[first : first + VOCABULARY // 4]
        parts.append(narrow.narrow_argmax(hidden, mine, narrow_scan.NarrowHead.make(mine), first_token=first)[1])
    assert torch.equal(head.join_pairs(torch.stack(parts))[0], head.head_argmax(hidden, weight)[0])


def test_narrow_replayed_in_a_graph_after_an_update() -> None:
    """New hidden states in the captured tensor, and a copy that was renewed, give the tokens of what is there then."""
    hidden, weight = tensors(8, 1024, VOCABULARY, torch.bfloat16)
    other, other_weight = tensors(8, 1024, VOCABULARY, torch.bfloat16, seed=7)
    copy = narrow_scan.NarrowHead.make(weight)
    narrow.narrow_argmax(hidden, weight, copy)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, _ = narrow.narrow_argmax(hidden, weight, copy)
    for states, head_weight in ((hidden.clone(), weight.clone()), (other, weight.clone()), (other, other_weight)):
        hidden.copy_(states)
        weight.copy_(head_weight)
        copy.renew(weight)
        graph.replay()
        assert torch.equal(tokens, head.head_argmax(hidden, weight)[0])
    assert tokens.unique().numel() > 1


def test_making_a_copy_takes_little_beside_it() -> None:
    _, weight = tensors(1, 1024, VOCABULARY, torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    copy = narrow_scan.NarrowHead.make(weight)
    assert torch.cuda.memory_allocated() - before < copy.bytes + 8 * 2**20
    assert torch.cuda.max_memory_allocated() - before < copy.bytes + 256 * 2**20
