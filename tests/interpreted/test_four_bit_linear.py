"""Dense products with 4-bit weights under Triton's interpreter, against float32 products with the dequantised ones."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels.dense import few_row_linear as dense
from sglang_gemma4.kernels.dense.parts import Tile
from sglang_gemma4.kernels.weights import Grouped, dequantised
from tests.interpreted.test_four_bit_experts import TOLERANCE, weight_of


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("tile", [None, Tile(16, 128, 1), Tile(32, 128, 3), Tile(16, 256, 2)], ids=str)
@pytest.mark.parametrize(("rows", "width", "outputs", "group"), [(1, 64, 48, 32), (4, 416, 33, 32), (33, 1024, 7, 64), (16, 640, 20, 128)])
def test_dense(rows: int, width: int, outputs: int, group: int, tile: Tile | None, gated: bool) -> None:
    """Widths that end within a step, parts without a step, the rows' stride wider than the width."""
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, width + 8)[:, :width], weight_of(2 * outputs if gated else outputs, width, group=group)
    done = dense.counters(outputs, x.device)
    expected = dense.few_row_linear_reference(x, weight, gated=gated)
    for _ in range(2):  # the second call finds the counters as the first did
        found = dense.few_row_linear(x, weight, done, gated=gated, tile=tile)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
        assert not done.any()


@pytest.mark.parametrize(
    ("outputs", "width", "rows"), [(9216, 2816, 1), (2112, 2816, 16), (2816, 2112, 64), (43008, 5376, 4), (256, 1536, 8)]
)
@pytest.mark.parametrize("gated", [False, True])
def test_default_tiles_fit_every_group(outputs: int, width: int, rows: int, gated: bool) -> None:
    tile = dense.four_bit_tile_for(outputs, width, rows, 132, gated)
    assert tile.depth % 128 == 0
    assert 1 <= tile.parts <= dense.MOST_PARTS
    assert tile.parts * 2 <= -(-width // tile.depth) or tile.parts == 1


def test_what_is_not_taken() -> None:
    x, weight = torch.randn(2, 64), weight_of(8, 64)
    done = dense.counters(8, x.device)
    with pytest.raises(ValueError, match="steps of 64 columns are no multiple of groups of 128"):
        dense.few_row_linear(torch.randn(2, 128), weight_of(8, 128, group=128), done, tile=Tile(16, 64, 1))
    with pytest.raises(ValueError, match=r"must be \[outputs, width\]"):
        dense.few_row_linear(x, weight_of(2, 8, 64), done)
    with pytest.raises(ValueError, match=r"scales of torch\.float16 for x of torch\.float32"):
        dense.few_row_linear(x, Grouped(weight.levels, weight.scale.half()), done)
    with pytest.raises(ValueError, match="65 rows; at most 64"):
        dense.few_row_linear(torch.randn(65, 64), weight, done)
    assert dense.few_row_linear(x[:0], weight, done).shape == (0, 8)
    assert dequantised(weight).shape == (8, 64)
