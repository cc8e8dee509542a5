"""The product for few rows on a card: real sizes, dtypes, poisoned outputs, repeated calls and two streams, against the reference."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear, few_row_linear_reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPES = [(8192, 2816, False), (2816, 8192, False), (2112, 2816, True), (2816, 2112, False), (128, 2816, False), (6144, 1536, True)]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def case(rows: int, outputs: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, width, device="cuda").to(dtype), (torch.randn(outputs, width, device="cuda") / width**0.5).to(dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4, 16, 17, 33, 64])
@pytest.mark.parametrize(("outputs", "width", "gated"), SHAPES)
def test_equals_the_reference(outputs: int, width: int, gated: bool, rows: int, dtype: torch.dtype) -> None:
    x, weight = case(rows, 2 * outputs if gated else outputs, width, dtype)
    done = counters(outputs, x.device)
    expected = few_row_linear_reference(x, weight, gated=gated)
    first = few_row_linear(x, weight, done, gated=gated)
    torch.testing.assert_close(first, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    for _ in range(20):  # whoever is last, the sum is the same, and the counters are as they were
        assert torch.equal(few_row_linear(x, weight, done, gated=gated), first)
    assert not done.any()


def test_in_a_graph_beside_another_stream() -> None:
    """As a decode graph has it: the dense FFN on a stream of its own, replayed many times."""
    x, weight = case(4, 2816, 4096, torch.bfloat16)
    other = weight.flip(0).contiguous()
    done, other_done = counters(2816, x.device), counters(2816, x.device)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    expected = few_row_linear(x, weight, done), few_row_linear(x, other, other_done)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            second = few_row_linear(x, other, other_done)
        first = few_row_linear(x, weight, done)
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(200):
        first.fill_(float("nan"))
        second.fill_(float("nan"))
        graph.replay()
        assert torch.equal(first, expected[0])
        assert torch.equal(second, expected[1])
