"""A router's product and choice in one launch, interpreted, against its reference and against the two launches."""

from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.dense import few_row_linear
from sglang_gemma4.kernels.experts import expert_routing
from sglang_gemma4.kernels.experts import routed_product as op
from tests.interpreted.test_expert_kernels import chosen_as_expected, poisoned  # noqa: F401 - a fixture


def case(tokens: int, width: int, experts: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(tokens + width)
    weight = (torch.randn(experts, width) * width**-0.5).to(dtype)
    return torch.randn(tokens, width).to(dtype), weight, (torch.rand(experts) + 0.5).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "width", "experts", "topk"),
    [(1, 2816, 128, 8), (4, 300, 128, 8), (16, 128, 20, 4), (5, 96, 7, 3), (3, 16, 5, 5), (2, 144, 128, 1)],
)
def test_equals_the_reference(tokens: int, width: int, experts: int, topk: int, dtype: torch.dtype) -> None:
    x, weight, scale = case(tokens, width, experts, dtype)
    done = op.counter(x.device)
    logits, weights, ids, blocks = op.routed_product(x, weight, scale, topk, done)
    assert not done.any()
    expected = op.routed_product_reference(x, weight, scale, topk)[0]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5 if dtype == torch.float32 else 2**-10)
    # A rounding may have made them others than the reference's; of these the choice is exactly the routing's.
    chosen_as_expected(logits, scale, weights, ids, blocks)
    for again, first in zip(op.routed_product(x, weight, scale, topk, done)[:3], (logits, weights, ids), strict=True):
        assert torch.equal(again, first)


def test_two_launches_choose_the_same() -> None:
    x, weight, scale = case(6, 192, 16, torch.float32)
    _, weights, ids, _ = op.routed_product(x, weight, scale, 4, op.counter(x.device))
    logits = few_row_linear.few_row_linear(x, weight, few_row_linear.counters(16, x.device))
    apart = expert_routing.expert_routing(logits, scale, 4)
    assert torch.equal(ids, apart[1])
    torch.testing.assert_close(weights, apart[0], atol=1e-6, rtol=1e-5)


def test_rows_that_are_not_adjacent() -> None:
    x, weight, scale = case(4, 256, 8, torch.float32)
    done = op.counter(x.device)
    found, expected = (
        op.routed_product(x[::2, 64:192], weight[:, 64:192], scale, 2, done),
        op.routed_product_reference(x[::2, 64:192], weight[:, 64:192], scale, 2),
    )
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.zeros(2, 32, dtype=torch.float64)}, r"x is \(2, 32\) of torch.float64"),
        ({"x": torch.zeros(2, 16)}, r"the router's weight \(8, 32\)"),
        ({"x": torch.zeros(32, 2).T}, "matrices with contiguous rows"),
        ({"weight": torch.zeros(129, 32), "scale": torch.zeros(129)}, "up to 128 experts of torch.float32"),
        ({"x": torch.zeros(1, 8208), "weight": torch.zeros(8, 8208)}, "a width of 8192"),
        ({"scale": torch.zeros(9)}, r"the scale is \(9,\)"),
        ({"topk": 9}, "9 of 8 experts"),
        ({"x": torch.zeros(17, 32)}, "17 tokens; 1 to 16 are supported"),
        ({"x": torch.zeros(0, 32)}, "0 tokens; 1 to 16 are supported"),
        ({"done": torch.zeros(2, dtype=torch.int32)}, "2 counters of torch.int32; one of int32"),
        ({"done": torch.zeros(1)}, "1 counters of torch.float32"),
    ],
)
def test_names_what_it_does_not_take(change: dict[str, Any], said: str) -> None:
    given = {
        "x": torch.zeros(2, 32),
        "weight": torch.zeros(8, 32),
        "scale": torch.zeros(8),
        "topk": 2,
        "done": torch.zeros(1, dtype=torch.int32),
    }
    with pytest.raises(ValueError, match=said):
        op.routed_product(**{**given, **change})
