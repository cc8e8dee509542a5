"""Norm, sum, gate and per-layer embedding in one launch, under Triton's interpreter against the three launches that it replaces."""

from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.dense import embedding_gate as op
from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear
from sglang_gemma4.kernels.dense.gated_embedding import gated_embedding
from sglang_gemma4.kernels.dense.parts import Tile
from sglang_gemma4.kernels.norms.layer_tail import tail

TILES = (None, Tile(16, 16, 1), Tile(16, 32, 3), Tile(32, 16, 16))
SHAPES = [(1, 64, 48), (3, 48, 100), (4, 208, 33), (17, 128, 16), (32, 32, 7), (2, 16, 1), (0, 32, 8), (2, 1040, 20)]


Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor, torch.Tensor]


def case(rows: int, width: int, outputs: int, dtype: torch.dtype = torch.float32) -> Given:
    """Rows that are not adjacent in memory, weights, and one layer's slice of the embeddings."""
    torch.manual_seed(rows + width)
    x, residual = (torch.randn(rows, width + 16).to(dtype)[:, :width] * 2 for _ in range(2))
    embedding = torch.randn(rows, 3, outputs).to(dtype)[:, 1]
    return x, residual, (1 + torch.randn(width)).to(dtype), 1e-5, (torch.randn(outputs, width) / width**0.5).to(dtype), embedding


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves unwritten is found."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **options: empty(*args, **options).fill_(1e4))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("rows", "width", "outputs"), SHAPES)
def test_equals_the_reference(rows: int, width: int, outputs: int, tile: Tile | None) -> None:
    given = case(rows, width, outputs)
    done = counters(outputs, given[0].device)
    expected = op.embedding_gate_reference(*given)
    for _ in range(2):  # the second call finds the counters as the first did
        for found, wanted in zip(op.embedding_gate(*given, done, tile=tile), expected, strict=True):
            assert found.is_contiguous()
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        assert not done.any()


def test_half_precision_rounds_where_separate_launches_do() -> None:
    x, residual, norm, eps, weight, embedding = case(4, 96, 40, torch.float16)
    done, tile = counters(40, x.device), Tile(16, 16, 4)
    stream, out = op.embedding_gate(x, residual, norm, eps, weight, embedding, done, tile=tile)
    apart, _ = tail(x, residual, norm, eps, rounded=True)
    torch.testing.assert_close(stream, apart, atol=0, rtol=2**-10)
    torch.testing.assert_close(out, gated_embedding(few_row_linear(stream, weight, done, tile=tile), embedding), atol=1e-4, rtol=2**-9)


X, W, G, E = torch.zeros(2, 32), torch.ones(32), torch.ones(48, 32), torch.ones(2, 48)


def call(x: torch.Tensor = X, residual: torch.Tensor = X, norm: torch.Tensor = W, weight: torch.Tensor = G, **other: Any) -> None:
    given = {"embedding": E, "done": counters(48, X.device), **other}
    op.embedding_gate(x, residual, norm, 1e-6, weight, given.pop("embedding"), given.pop("done"), **given)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"x": X.double(), "residual": X.double()}, "torch.float64"),
        ({"residual": X[:1]}, "residual is"),
        ({"weight": G.half()}, "torch.float16"),
        ({"weight": G.T.contiguous().T}, "by rows"),
        ({"weight": torch.ones(48, 64)}, r"x, weight and embedding are \(2, 32\), \(48, 64\) and \(2, 48\)"),
        ({"embedding": E[:1]}, r"and \(1, 48\)"),
        ({"embedding": E.half()}, "the embedding is torch.float16"),
        ({"norm": W[:16]}, r"the norm's weight is \(16,\)"),
        ({"x": X[:1].expand(33, 32), "residual": X[:1].expand(33, 32), "embedding": E[:1].expand(33, 48)}, "33 rows; at most 32"),
        ({"done": torch.zeros(1, dtype=torch.int32), "tile": Tile(16, 16, 2)}, "1 counters of torch.int32; expected 3"),
    ],
)
def test_what_it_does_not_take(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call(**wrong)
