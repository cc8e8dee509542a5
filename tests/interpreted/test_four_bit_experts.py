"""4-bit experts under Triton's interpreter against float32 products with the dequantised weights."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels.experts import few_token_experts as few
from sglang_gemma4.kernels.experts import gated_experts as gated
from sglang_gemma4.kernels.experts.expert_blocks import Blocks, expert_blocks_reference
from sglang_gemma4.kernels.experts.gated_experts import Tile
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.kernels.experts.prefill_experts import PrefillTile, prefill_experts
from sglang_gemma4.kernels.four_bits import by_place, by_place_reference
from sglang_gemma4.kernels.warpgroup_products import by_span, by_span_reference
from sglang_gemma4.kernels.weights import Grouped, dequantised, scaled
from sglang_gemma4.kernels.written_out import WORDS, room_for, write_out

TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def weight_of(*shape: int, group: int = 32, zeros: bool = False) -> Grouped:
    """Every level, and scales that differ; zero points too, or 8."""
    levels = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8)
    pairs = torch.randint(0, 256, (*shape[:-2], shape[-2] // 2, shape[-1] // group), dtype=torch.uint8)
    scale = (0.5 + torch.rand(*shape[:-1], shape[-1] // group)) * shape[-1] ** -0.5 / 4
    return Grouped(levels, scale, pairs if zeros else None)


def test_the_values_of_a_weight() -> None:
    """The first of two inputs in the low bits, less 8, times its group's scale."""
    weight = Grouped(torch.tensor([[0x80, *[0x99] * 15, 0xF7, *[0x88] * 15]], dtype=torch.uint8), torch.tensor([[2.0, 0.5]]))
    values = dequantised(weight)[0]
    assert values[:4].tolist() == [-16.0, 0.0, 2.0, 2.0]
    assert values[32:36].tolist() == [-0.5, 3.5, 0.0, 0.0]
    assert (weight.shape, weight.group) == ((1, 64), 32)


def test_the_values_of_levels_that_are_not_symmetric() -> None:
    """Two outputs share a byte of zero points, the first in the low bits."""
    levels = torch.full((2, 32), 0x9A, dtype=torch.uint8)
    weight = Grouped(levels, torch.tensor([[2.0, 0.5], [1.0, 4.0]]), torch.tensor([[0x2F, 0x80]], dtype=torch.uint8))
    values = dequantised(weight)
    assert values[:, :2].tolist() == [[-10.0, -12.0], [8.0, 7.0]]
    assert values[:, 32:34].tolist() == [[5.0, 4.5], [8.0, 4.0]]


@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (3, 1032)])
def test_inputs_by_their_places(tokens: int, width: int) -> None:
    x = torch.randn(tokens, width)
    assert torch.equal(by_place(x), by_place_reference(x))
    assert by_place_reference(torch.arange(16.0)[None]).tolist()[0][:4] == [0.0, 8.0, 1.0, 9.0]


@pytest.mark.parametrize("width", [64, 1088])
def test_inputs_of_blocks_by_their_spans(width: int) -> None:
    """A row has its token's inputs, wherever it lies; empty places and blocks behind the last are left as they were."""
    x, ids = torch.randn(3, width + 5)[:, :width], torch.tensor([[0, 1], [1, 2], [2, 0]], dtype=torch.int32)
    found = expert_blocks_reference(ids, 3, 4)
    behind = torch.full((1, 4), 12345678, dtype=torch.int32)
    blocks = Blocks(torch.cat([found.expert, found.expert[:1]]), torch.cat([found.row, behind]), found.count)
    lies = by_span(x, blocks, 2).view(4, 4, width)
    for block, rows in enumerate(found.row.tolist()):
        for place, row in enumerate(rows):
            if row < ids.numel():
                assert torch.equal(lies[block, place], by_span_reference(x[row // 2]))
            else:
                assert lies[block, place].isnan().all()
    assert lies[3].isnan().all()


@pytest.mark.parametrize(
    ("shape", "group"),
    [((1, 4, 16, 128, 64), 32), ((4, 8, 9, 192, 96), 32), ((16, 2, 4, 256, 128), 128), ((3, 3, 5, 320, 32), 32)],
    ids=str,
)
@pytest.mark.parametrize("tile", [None, Tile(16, 128, 4, 2)], ids=str)
@pytest.mark.parametrize("zeros", [False, True], ids=("symmetric", "zeros"))
def test_experts(shape: tuple[int, int, int, int, int], group: int, tile: Tile | None, zeros: bool) -> None:
    tokens, topk, experts, hidden, inner = shape
    torch.manual_seed(tokens)
    x, shares = torch.randn(tokens, hidden), torch.rand(tokens, topk)
    ids = torch.rand(tokens, experts).topk(topk).indices.int()
    ids[torch.rand(ids.shape) < 0.2] = -1
    w13 = weight_of(experts, 2 * inner, hidden, group=group, zeros=zeros)
    w2 = weight_of(experts, hidden, inner, group=group, zeros=zeros)
    expected = few.few_token_experts_reference(x, w13, w2, shares, ids)
    done = few.counters(hidden, x.device)
    for _ in range(2):
        found = few.few_token_experts(x, w13, w2, shares, ids, done, tiles=None if tile is None else (tile, tile))
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
        assert not done.any()
    found = grouped_experts(x, w13, w2, shares, ids, tiles=None if tile is None else (16, tile, tile))
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(("shape", "group"), [((1, 3, 64), 32), ((2, 5, 256), 128), ((3, 7, 8 * WORDS // 4), 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("zeros", [False, True], ids=("symmetric", "zeros"))
def test_a_weight_written_out(shape: tuple[int, ...], group: int, dtype: torch.dtype, zeros: bool) -> None:
    """Each number once, rounded once; nothing behind it. In bfloat16 on a card: the interpreter cuts numbers off instead of rounding."""
    weight = weight_of(shape[0], shape[1] + zeros, shape[2], group=group, zeros=zeros)
    weight = Grouped(weight.levels, weight.scale.to(dtype), weight.zeros)
    room = torch.full((room_for(weight) + 3,), torch.nan, dtype=dtype)
    assert torch.equal(write_out(weight, room), dequantised(weight).to(dtype))
    assert room[-3:].isnan().all()
    plain = torch.ones(2, 3, 4)
    assert write_out(plain, room) is plain


def test_room() -> None:
    weight, plain = weight_of(2, 3, 64), torch.ones(9, 9, 64)
    assert (room_for(weight, plain), room_for(plain)) == (384, 0)
    with pytest.raises(ValueError, match=r"room for 383 numbers; a weight of \(2, 3, 64\) needs 384"):
        write_out(weight, torch.empty(383))
    with pytest.raises(ValueError, match="needs 384 in one dimension"):
        write_out(weight, torch.empty(2, 200))
    with pytest.raises(ValueError, match="fp8"):
        write_out(scaled(torch.zeros(2, 4, 16, dtype=torch.float8_e4m3fn), torch.ones(2, 4)), torch.empty(128))


FIRST, SECOND = PrefillTile(16, 32, 4, 2), PrefillTile(32, 16, 4, 2, group=2)


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize(("shape", "group"), [((40, 4, 6, 64, 64), 32), ((20, 2, 3, 128, 32), 32), ((33, 3, 5, 128, 128), 128)], ids=str)
def test_a_chunk_s_experts(shape: tuple[int, int, int, int, int], group: int, tma: bool) -> None:
    """Both products through one room, which holds the larger one's weights and nonsense before each call."""
    tokens, topk, experts, hidden, inner = shape
    torch.manual_seed(tokens)
    x, shares = torch.randn(tokens, hidden), torch.rand(tokens, topk)
    ids = torch.rand(tokens, experts).topk(topk).indices.int()
    ids[torch.rand(ids.shape) < 0.2] = -1
    w13, w2 = weight_of(experts, 2 * inner, hidden, group=group), weight_of(experts, hidden, inner, group=min(group, inner))
    expected = few.few_token_experts_reference(x, w13, w2, shares, ids)
    room = torch.full((room_for(w13, w2),), torch.nan)
    for _ in range(2):
        found = prefill_experts(x, w13, w2, shares, ids, tiles=(32, FIRST, SECOND), tma=tma, room=room)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert torch.equal(found, prefill_experts(x, w13, w2, shares, ids, tiles=(32, FIRST, SECOND), tma=tma))
    plain = prefill_experts(x, dequantised(w13), dequantised(w2), shares, ids, tiles=(32, FIRST, SECOND), tma=tma)
    assert torch.equal(found, plain), "the same numbers as of a dequantised checkpoint"


def test_what_a_chunk_s_experts_do_not_take() -> None:
    x, shares, ids = torch.randn(2, 64), torch.rand(2, 1), torch.zeros(2, 1, dtype=torch.int32)
    w13, w2 = weight_of(1, 64, 64), weight_of(1, 64, 32)
    with pytest.raises(ValueError, match=r"room of torch\.bfloat16 for x of torch\.float32"):
        prefill_experts(x, w13, w2, shares, ids, room=torch.empty(9999, dtype=torch.bfloat16))
    fp8 = scaled(torch.zeros(1, 64, 64, dtype=torch.float8_e4m3fn), torch.ones(1, 64))
    with pytest.raises(ValueError, match="fp8 experts of so many tokens"):
        prefill_experts(x, fp8, w2, shares, ids)


@pytest.mark.parametrize(
    ("w13", "says"),
    [
        (Grouped(torch.zeros(4, 64, 32, dtype=torch.int8), torch.ones(4, 64, 2)), "4-bit values in torch.int8"),
        (
            Grouped(torch.zeros(4, 64, 32, dtype=torch.uint8), torch.ones(4, 64, 2).half()),
            "scales of torch.float16 for x of torch.float32",
        ),
        (Grouped(torch.zeros(4, 64, 32, dtype=torch.uint8), torch.ones(4, 64, 4)), "groups of 32, 64, 128 are supported"),
        (
            Grouped(torch.zeros(4, 64, 32, dtype=torch.uint8), torch.ones(4, 64, 2), torch.zeros(4, 64, 1, dtype=torch.uint8)),
            "zero points (4, 64, 1) of torch.uint8 for scales (4, 64, 2); (4, 32, 2) of uint8 are supported",
        ),
        (Grouped(torch.zeros(4, 32, 64, dtype=torch.uint8).mT, torch.ones(4, 64, 2)), "not contiguous"),
    ],
)
def test_what_is_no_weight(w13: Grouped, says: str) -> None:
    ids, shares = torch.zeros(1, 2, dtype=torch.int32), torch.rand(1, 2)
    assert says in str(gated.reason_against(torch.randn(1, 64), w13, None, shares, ids))
