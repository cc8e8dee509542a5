"""The experts' kernels under Triton's interpreter against their references: odd shapes, rows without an expert, poisoned memory."""

from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.experts import expert_blocks as grouping
from sglang_gemma4.kernels.experts import few_token_experts as few
from sglang_gemma4.kernels.experts import gated_experts as gated
from sglang_gemma4.kernels.experts import grouped_experts as grouped
from sglang_gemma4.kernels.experts.expert_routing import expert_routing, expert_routing_reference
from sglang_gemma4.kernels.experts.gated_experts import Tile

POISON = 1e4
TOLERANCE = 5e-6
Shape = tuple[int, int, int, int, int]
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the launchers ask for holds nonsense."""

    def empty(*shape: object, **options: object) -> torch.Tensor:
        return torch.zeros(*shape, **options).fill_(77 if options.get("dtype") == torch.int32 else POISON)  # type: ignore[arg-type, call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch, "empty_like", lambda like: torch.full_like(like, POISON))


def route(tokens: int, topk: int, experts: int, skewed: bool = False) -> torch.Tensor:
    """Distinct experts of each token; skewed: all tokens take the first ones."""
    order = torch.rand(tokens, experts)
    if skewed:
        order = order - torch.arange(experts) * 2.0
    return order.topk(topk).indices.int().contiguous()


def case(tokens: int, topk: int, experts: int, hidden: int, inner: int, skewed: bool = False, dropped: float = 0.0) -> Case:
    torch.manual_seed(tokens + hidden)
    ids = route(tokens, topk, experts, skewed)
    ids[torch.rand(ids.shape) < dropped] = -1
    x, w13, w2 = torch.randn(tokens, hidden), torch.randn(experts, 2 * inner, hidden), torch.randn(experts, hidden, inner)
    return x, w13 * hidden**-0.5, w2 * inner**-0.5, torch.rand(tokens, topk), ids


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize(("tokens", "topk", "experts"), [(1, 4, 16), (5, 3, 7), (16, 8, 128), (150, 8, 12), (3, 1, 5)])
@pytest.mark.parametrize("dropped", [0.0, 0.5, 1.0])
def test_rows_into_blocks(tokens: int, topk: int, experts: int, size: int, dropped: float) -> None:
    torch.manual_seed(0)
    ids = route(tokens, topk, experts, skewed=tokens == 150)
    ids[torch.rand(ids.shape) < dropped] = -1
    for by_token in {False, tokens <= size}:
        expected = grouping.expert_blocks_reference(ids, experts, size, by_token)
        found = grouping.expert_blocks(ids, experts, size, by_token)
        count = int(found.count)
        assert count == int(expected.count) <= found.expert.numel()
        assert torch.equal(found.expert[:count], expected.expert)
        assert torch.equal(found.row[:count], expected.row)
        assert (found.row[count:] == 77).all(), "wrote behind the last block"


def test_most_blocks_is_reached() -> None:
    ids = torch.tensor([[0], [0], [0], [0], [0], [1], [2]], dtype=torch.int32)
    assert int(grouping.expert_blocks(ids, 3, 2).count) == grouping.most_blocks(7, 3, 2) == 5


SHAPES: list[Shape] = [
    (1, 4, 16, 128, 32),
    (1, 8, 9, 48, 20),
    (2, 1, 3, 16, 16),
    (4, 8, 32, 130, 50),
    (16, 4, 16, 64, 96),
    (7, 3, 5, 96, 33),
]


def few_tokens(x: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
    """Twice, over the same counters, which must be zeros again."""
    w13, w2, weights, ids = given
    done = few.counters(x.shape[1], x.device)
    found = few.few_token_experts(x, w13, w2, weights, ids, done, **options)
    assert not done.any()
    assert torch.equal(found, few.few_token_experts(x, w13, w2, weights, ids, done, **options))
    return found


@pytest.mark.parametrize(("dropped", "skewed"), [(0.0, False), (0.4, True), (1.0, False)])
@pytest.mark.parametrize("tiles", [None, (Tile(16, 32, 4, 2), Tile(32, 16, 4, 2))])
@pytest.mark.parametrize("shape", SHAPES)
def test_few_tokens(shape: Shape, tiles: tuple[Tile, Tile] | None, dropped: float, skewed: bool) -> None:
    given = case(*shape, skewed=skewed, dropped=dropped)
    found = few_tokens(*given, tiles=tiles)
    torch.testing.assert_close(found, few.few_token_experts_reference(*given), atol=TOLERANCE, rtol=TOLERANCE)


def chosen_as_expected(
    logits: torch.Tensor, scale: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, blocks: grouping.Blocks
) -> None:
    expected_weights, expected_ids, expected = expert_routing_reference(logits, scale, ids.shape[1])
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)
    count = int(blocks.count)
    assert count == int(expected.count) <= blocks.expert.numel()
    assert torch.equal(blocks.expert[:count], expected.expert)
    assert torch.equal(blocks.row[:count], expected.row)
    assert (blocks.row[count:] == 77).all(), "wrote behind the last block"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "topk", "experts"), [(1, 8, 128), (5, 3, 7), (16, 8, 128), (16, 1, 5), (3, 5, 5), (9, 4, 16)])
def test_routing(tokens: int, topk: int, experts: int, dtype: torch.dtype) -> None:
    """Rounded logits are equal often: of equal ones the first is taken."""
    torch.manual_seed(tokens)
    logits, scale = torch.randn(tokens, experts + 3).to(dtype)[:, :experts], torch.rand(experts).to(dtype) + 0.5
    chosen_as_expected(logits, scale, *expert_routing(logits, scale, topk))


def test_routing_of_logits_that_do_not_compare() -> None:
    """Whatever is chosen is an expert, and the other tokens keep theirs."""
    logits = torch.randn(4, 16)
    logits[1] = float("nan")
    logits[2, 3:] = -float("inf")
    _, ids, blocks = expert_routing(logits, torch.ones(16), 8)
    assert ((ids >= 0) & (ids < 16)).all()
    assert ((blocks.expert[: int(blocks.count)] >= 0) & (blocks.expert[: int(blocks.count)] < 16)).all()
    kept = expert_routing_reference(logits[[0, 3]], torch.ones(16), 8)[1]
    assert torch.equal(ids[[0, 3]], kept)


def test_few_tokens_over_the_router_s_blocks() -> None:
    """A row whose id became -1 after the routing, as of a padded token, is left out of the sum."""
    x, w13, w2, _, _ = case(6, 3, 8, 64, 32)
    weights, ids, blocks = expert_routing(torch.randn(6, 8), torch.ones(8), 3)
    ids[4:] = -1
    found = few_tokens(x, w13, w2, weights, ids, blocks=blocks)
    torch.testing.assert_close(found, few.few_token_experts_reference(x, w13, w2, weights, ids), atol=TOLERANCE, rtol=TOLERANCE)
    assert (found[4:] == 0).all()


@pytest.mark.parametrize(
    ("logits", "scale", "topk", "said"),
    [
        (torch.zeros(2, 8, dtype=torch.float64), torch.zeros(8), 2, "the logits are torch.float64"),
        (torch.zeros(8, 2).T, torch.zeros(8), 2, "by rows"),
        (torch.zeros(2, 8), torch.zeros(9), 2, r"the scale is \(9,\)"),
        (torch.zeros(2, 8), torch.zeros(8), 9, "9 of 8 experts"),
        (torch.zeros(17, 8), torch.zeros(8), 2, "17 tokens; 1 to 16 are supported"),
        (torch.zeros(0, 8), torch.zeros(8), 2, "0 tokens; 1 to 16 are supported"),
    ],
)
def test_routing_names_what_it_does_not_take(logits: torch.Tensor, scale: torch.Tensor, topk: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        expert_routing(logits, scale, topk)


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("dropped", [0.0, 0.4])
@pytest.mark.parametrize("shape", [*SHAPES[1:4], (40, 4, 6, 64, 48), (70, 2, 3, 33, 17)])
def test_many_tokens(shape: Shape, dropped: float, size: int) -> None:
    given = case(*shape, skewed=shape[0] == 40, dropped=dropped)
    found = grouped.grouped_experts(*given, tiles=(size, Tile(32, 32, 4, 2), Tile(32, 16, 4, 2)))
    torch.testing.assert_close(found, few.few_token_experts_reference(*given), atol=TOLERANCE, rtol=TOLERANCE)


def test_first_product_writes_only_its_rows() -> None:
    x, w13, _, weights, ids = case(6, 2, 4, 64, 24, dropped=0.3)
    found = gated.gated_experts(x, w13, weights, ids, grouping.expert_blocks(ids, 4, 16), Tile(16, 32, 4, 2))
    expected = gated.gated_experts_reference(x, w13, weights, ids)
    none = (ids.flatten() < 0)[:, None].expand_as(expected)
    torch.testing.assert_close(found[~none], expected[~none], atol=TOLERANCE, rtol=TOLERANCE)
    assert (found[none] == POISON).all(), "wrote a row without an expert"


def test_the_same_bits_every_time_and_for_every_companion() -> None:
    x, w13, w2, weights, ids = case(9, 4, 16, 64, 32)
    together = few_tokens(x, w13, w2, weights, ids)
    pair = few_tokens(x[3:5].clone(), w13, w2, weights[3:5].clone(), ids[3:5].clone())
    torch.testing.assert_close(pair, together[3:5], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({0: torch.zeros(2, 64, dtype=torch.float64)}, "x is torch.float64"),
        ({1: torch.zeros(8, 64, 64, dtype=torch.bfloat16)}, "w13: the weight is torch.bfloat16 and x torch.float32"),
        ({2: torch.zeros(8, 32, 64)}, r"\(8, 64, 32\) is supported"),
        ({3: torch.zeros(2, 3, dtype=torch.bfloat16)}, "float32 and int32 or int64"),
        ({4: torch.zeros(3, 2, dtype=torch.int32).T}, "ids is not contiguous"),
        ({4: torch.zeros(3, 3, dtype=torch.int32)}, "for 2 tokens"),
        ({0: torch.zeros(17, 64), 3: torch.zeros(17, 3), 4: torch.zeros(17, 3, dtype=torch.int32)}, "1 to 16 are supported"),
    ],
)
def test_what_it_does_not_take_is_named(change: dict[int, torch.Tensor], said: str) -> None:
    given: list[Any] = list(case(2, 3, 8, 64, 32))
    for place, tensor in change.items():
        given[place] = tensor
    with pytest.raises(ValueError, match=said):
        few_tokens(*given)


def test_too_few_counters_are_refused() -> None:
    x, w13, w2, weights, ids = case(2, 3, 8, 64, 32)
    with pytest.raises(ValueError, match=r"1 counters of torch\.int32; 4 of int32"):
        few.few_token_experts(x, w13, w2, weights, ids, torch.zeros(1, dtype=torch.int32), tiles=(Tile(16, 16, 4, 2), Tile(16, 16, 4, 2)))


def test_blocks_refuse_what_they_cannot_hold() -> None:
    ids = torch.zeros(5, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="a power of two is supported"):
        grouping.expert_blocks(ids, 2, 3)
    with pytest.raises(ValueError, match="5 tokens do not fit"):
        grouping.expert_blocks(ids, 2, 4, by_token=True)
