"""Products with fp8 weights, under Triton's interpreter, against float32 products with the dequantised ones."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels.dense import few_row_linear as dense
from sglang_gemma4.kernels.dense.parts import Tile
from sglang_gemma4.kernels.experts import few_token_experts as few
from sglang_gemma4.kernels.experts import gated_experts as gated
from sglang_gemma4.kernels.experts import grouped_experts as grouped
from sglang_gemma4.kernels.weights import FP8, Scaled, dequantised, scaled

TOLERANCE = 1e-5
EVERY_LEVEL = 256


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def weight_of(*shape: int, per_output: bool = True) -> Scaled:
    """As SGLang makes it: the largest value of an output, or of all, is the largest level."""
    values = torch.randn(shape) * shape[-1] ** -0.5
    largest = values.abs().amax(-1, keepdim=True) if per_output else values.abs().amax((-2, -1), keepdim=True)
    scale = largest / torch.finfo(FP8).max
    return scaled((values / scale).to(FP8), scale)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("per_output", [False, True], ids=["one scale", "a scale for each output"])
@pytest.mark.parametrize("tile", [None, Tile(16, 16, 1), Tile(32, 32, 3, across=True)], ids=str)
@pytest.mark.parametrize(("rows", "width", "outputs"), [(1, 64, 48), (4, 208, 33), (33, 64, 7)])
def test_dense(rows: int, width: int, outputs: int, tile: Tile | None, per_output: bool, gated: bool) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, width), weight_of(2 * outputs if gated else outputs, width, per_output=per_output)
    done = dense.counters(outputs, x.device)
    for _ in range(2):  # the second call finds the counters as the first did
        found = dense.few_row_linear(x, weight, done, gated=gated, tile=tile)
        torch.testing.assert_close(found, dense.few_row_linear_reference(x, weight, gated=gated), atol=TOLERANCE, rtol=TOLERANCE)
        assert not done.any()


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(("rows", "width", "outputs"), [(1, 256, 256), (4, 336, 128), (33, 128, 200)])
def test_blocks_that_share_a_scale(rows: int, width: int, outputs: int, across: bool, gated: bool) -> None:
    torch.manual_seed(rows)
    size = 2 * outputs if gated else outputs
    levels = (torch.randn(size, width) * 100).to(FP8)
    weight = Scaled(levels, torch.rand(-(-size // 128), -(-width // 128)) * width**-0.5 / 100, 128)
    x, done = torch.randn(rows, width), dense.counters(outputs, levels.device)
    for tile in (None, Tile(32, 64, 2, across=across)):
        found = dense.few_row_linear(x, weight, done, gated=gated, tile=tile)
        torch.testing.assert_close(found, dense.few_row_linear_reference(x, weight, gated=gated), atol=TOLERANCE, rtol=TOLERANCE)
    with pytest.raises(ValueError, match="steps of 256 columns do not divide blocks of 128"):
        dense.few_row_linear(x, weight, done, gated=gated, tile=Tile(32, 256, 1))


def test_rows_of_a_weight() -> None:
    """The query rows of a projection; a float32 weight lies across too."""
    x, weight = torch.randn(3, 64), weight_of(48, 64)
    done = dense.counters(48, x.device)
    found = dense.few_row_linear(x, weight.first(20), done)
    torch.testing.assert_close(found, x @ dequantised(weight)[:20].T, atol=TOLERANCE, rtol=TOLERANCE)
    across = dense.few_row_linear(x, dequantised(weight), done, tile=Tile(32, 32, 2, across=True))
    torch.testing.assert_close(across, x @ dequantised(weight).T, atol=TOLERANCE, rtol=TOLERANCE)


def test_every_level_is_exact() -> None:
    """Each of the 254 finite bytes, subnormal ones too, in an output of its own."""
    levels = torch.arange(EVERY_LEVEL, dtype=torch.int32).to(torch.uint8).view(FP8).view(EVERY_LEVEL, 1).repeat(1, 16)
    numbers = levels.float()[:, 0]
    finite = numbers.isfinite()
    x = torch.zeros(1, 16)
    x[0, 3] = 1.0
    found = dense.few_row_linear(x, scaled(levels, torch.full((1,), 2.0)), dense.counters(EVERY_LEVEL, x.device))
    assert int(finite.sum()) == EVERY_LEVEL - 2
    assert torch.equal(found[0, finite], 2 * numbers[finite])


@pytest.mark.parametrize("per_output", [False, True], ids=["a scale for each expert", "a scale for each output"])
@pytest.mark.parametrize("shape", [(1, 4, 16, 128, 32), (4, 8, 9, 48, 20), (16, 4, 16, 64, 48)], ids=str)
def test_experts(shape: tuple[int, int, int, int, int], per_output: bool) -> None:
    tokens, topk, experts, hidden, inner = shape
    torch.manual_seed(tokens)
    x, shares = torch.randn(tokens, hidden), torch.rand(tokens, topk)
    ids = torch.rand(tokens, experts).topk(topk).indices.int()
    ids[torch.rand(ids.shape) < 0.2] = -1
    w13, w2 = weight_of(experts, 2 * inner, hidden, per_output=per_output), weight_of(experts, hidden, inner, per_output=per_output)
    expected = few.few_token_experts_reference(x, w13, w2, shares, ids)
    done = few.counters(hidden, x.device)
    for _ in range(2):
        torch.testing.assert_close(few.few_token_experts(x, w13, w2, shares, ids, done), expected, atol=TOLERANCE, rtol=TOLERANCE)
        assert not done.any()
    torch.testing.assert_close(grouped.grouped_experts(x, w13, w2, shares, ids), expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: Scaled(one.levels.float(), one.scale), "quantised values of torch.float32 with scales of torch.float32"),
        (lambda one: Scaled(one.levels, one.scale.double()), "scales of torch.float64"),
        (lambda one: Scaled(one.levels, one.scale, 64), "fp8 in blocks of 64; 128 are supported"),
        (lambda one: Scaled(one.levels, one.scale, 128), r"scales \(48,\) for quantised values \(48, 64\)"),
        (lambda one: Scaled(one.levels, one.scale[:-1]), r"scales \(47,\) for quantised values \(48, 64\)"),
        (lambda one: one.levels, "the weight is torch.float8_e4m3fn and x torch.float32"),
    ],
)
def test_what_is_no_weight(change: object, says: str) -> None:
    weight = change(weight_of(48, 64))  # type: ignore[operator]
    with pytest.raises(ValueError, match=says):
        dense.few_row_linear(torch.randn(1, 64), weight, dense.counters(48, torch.device("cpu")))


def test_experts_of_another_type_are_named() -> None:
    x, ids, shares = torch.randn(1, 64), torch.zeros(1, 2, dtype=torch.int32), torch.rand(1, 2)
    reason = gated.reason_against(x, torch.zeros(4, 64, 64).half(), weight_of(4, 64, 32), shares, ids)
    assert reason == "w13: the weight is torch.float16 and x torch.float32"


def test_another_number_of_scales_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"7 scales for quantised values \(48, 64\); 48 or 1 are supported"):
        scaled(torch.zeros(48, 64).to(FP8), torch.ones(7))
