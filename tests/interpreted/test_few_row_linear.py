"""The product for a few rows, under Triton's interpreter against the reference: odd shapes, parts of the width, gates, repeated calls."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels.dense import few_row_linear as op
from sglang_gemma4.kernels.dense.parts import Tile

SMALL = (Tile(16, 16, 1), Tile(16, 32, 3), Tile(32, 16, 16))
SHAPES = [(1, 64, 48), (3, 48, 100), (4, 208, 33), (17, 128, 16), (64, 32, 7), (2, 16, 1), (0, 32, 8)]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def case(rows: int, width: int, outputs: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that are not adjacent in memory, and a weight."""
    torch.manual_seed(rows + width)
    return torch.randn(rows, width + 16, dtype=dtype)[:, :width], torch.randn(outputs, width, dtype=dtype) / width**0.5


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("tile", [None, *SMALL], ids=str)
@pytest.mark.parametrize(("rows", "width", "outputs"), SHAPES)
def test_equals_the_reference(rows: int, width: int, outputs: int, tile: Tile | None, gated: bool) -> None:
    x, weight = case(rows, width, 2 * outputs if gated else outputs)
    done = op.counters(outputs, x.device)
    for _ in range(2):  # the second call finds the counters as the first did
        torch.testing.assert_close(
            op.few_row_linear(x, weight, done, gated=gated, tile=tile),
            op.few_row_linear_reference(x, weight, gated=gated),
            atol=1e-5,
            rtol=1e-5,
        )
        assert not done.any()


def test_real_sizes_are_cut_into_parts() -> None:
    """26B-A4B's products on 132 SMs: about one program an SM, the router's narrow one as many as it has."""
    tiles = {
        (outputs, width): op.tile_for(outputs, width, 132) for outputs, width in ((8192, 2816), (2816, 4096), (2816, 2112), (128, 2816))
    }
    assert [tile.parts for tile in tiles.values()] == [1, 3, 3, 5]
    assert tiles[2816, 2112].depth == 64
    assert tiles[128, 2816].outputs == 16


@pytest.mark.parametrize(
    ("outputs", "width", "tile"),
    [(2112, 2816, Tile(16, 128, 1)), (12288, 1536, Tile(64, 64, 1)), (6144, 1536, Tile(32, 128, 1)), (512, 2560, Tile(16, 128, 4))],
)
def test_a_gated_product_has_blocks_that_fill_the_card(outputs: int, width: int, tile: Tile) -> None:
    """26B-A4B's, beside experts; E2B's two; and a narrow one. Sums of parts of a gated product are two."""
    assert op.tile_for(outputs, width, 132, gated=True) == tile


def test_half_precision_rounds_once() -> None:
    x, weight = case(4, 96, 40, torch.float16)
    ours = op.few_row_linear(x, weight, op.counters(40, x.device), tile=Tile(16, 16, 4))
    torch.testing.assert_close(ours, op.few_row_linear_reference(x, weight), atol=0, rtol=2**-10)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, w: (x.double(), w.double()), "torch.float64"),
        (lambda x, w: (x, w.half()), "torch.float16"),
        (lambda x, w: (x, w.T.contiguous().T), "by rows"),
        (lambda x, w: (x[:, :40], w[:, :40].contiguous()), "multiple of 16"),
        (lambda x, w: (x[:, :32], w), r"expected \[rows, 64\]"),
        (lambda x, w: (torch.randn(64, 3).T, w), "strides"),
        (lambda x, w: (x.expand(65, 64), w), "65 rows; at most 64"),
    ],
)
def test_what_it_does_not_take(change: object, says: str) -> None:
    x, weight = change(torch.randn(1, 64), torch.randn(48, 64))  # type: ignore[operator]
    with pytest.raises(ValueError, match=says):
        op.few_row_linear(x, weight, op.counters(48, x.device))


def test_too_few_counters() -> None:
    with pytest.raises(ValueError, match="counters"):
        op.few_row_linear(torch.randn(1, 64), torch.randn(48, 64), torch.zeros(1, dtype=torch.int32), tile=Tile(16, 16, 2))
