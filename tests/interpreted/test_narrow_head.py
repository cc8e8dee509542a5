"""The head's int8 copy and what is scored again, under Triton's interpreter: ``head_argmax``'s tokens and pairs, bit for bit.

float16 stands for bfloat16, which Triton's interpreter cannot multiply: it has ties by rounding too, and infinity within reach.
"""

import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_gemma4.kernels import kept_bytes
from sglang_gemma4.kernels.heads import head_argmax as exact
from sglang_gemma4.kernels.heads import narrow_head as op
from sglang_gemma4.kernels.heads import narrow_scan
from sglang_gemma4.kernels.heads.head_argmax import Tile
from sglang_gemma4.kernels.heads.narrow_scan import BLOCK, NarrowHead

SMALL = Tile(32, 64, 4, 2, 2)
HALVES = Tile(128, 32, 4, 2, 2)
"""Two blocks are scored at a time."""
TYPES = (torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def case(rows: int, width: int, vocabulary: int, padding: int = 0, dtype: torch.dtype = torch.float16, seed: int = 0) -> list[torch.Tensor]:
    """Hidden states whose rows are not adjacent, and a head; rows of padding would win by far.

    All are multiples of a power of two, so that sums are exact: a BLAS adds in another order for another number of rows.
    """
    torch.manual_seed(seed)
    hidden = (torch.randn(rows, width + 8)[:, :width] * 16).round().to(dtype) / 16
    weight = (torch.randn(vocabulary + padding, width) * 16).round().to(dtype) / 128
    weight[vocabulary:] = 100 * hidden[:1].sign() if rows else 1
    return [hidden, weight]


def check(hidden: torch.Tensor, weight: torch.Tensor, tile: Tile | None = SMALL, programs: int | None = 3, **given: object) -> torch.Tensor:
    """The tokens, which are ``head_argmax``'s, as the pairs are."""
    tokens, pairs = op.narrow_argmax(hidden, weight, NarrowHead.make(weight), tile=tile, programs=programs, **given)  # type: ignore[arg-type]
    expected, best = exact.head_argmax(hidden, weight, **given)  # type: ignore[arg-type]
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, expected)
    assert torch.equal(pairs, best)
    return tokens


def scanned(hidden: torch.Tensor, weight: torch.Tensor, tile: Tile = SMALL, programs: int = 3) -> tuple[narrow_scan.Scan, list[slice]]:
    """The first pass, and the tokens of each of its blocks."""
    found = narrow_scan.scan(hidden, NarrowHead.make(weight), len(weight), tile, programs)
    parts, blocks, _ = found.upper.shape
    starts = [(part * found.share, block * found.block) for part in range(parts) for block in range(blocks)]
    ends = [min(len(weight), part + min(found.share, place + found.block)) for part, place in starts]
    return found, [slice(part + place, end) for (part, place), end in zip(starts, ends, strict=True)]


def rescored(hidden: torch.Tensor, weight: torch.Tensor, tile: Tile = SMALL, programs: int = 3) -> int:
    """How many of the blocks are scored again from the weight."""
    found, blocks = scanned(hidden, weight, tile, programs)
    margin, highest, nearest = op.rounding(weight.dtype, True)
    reached = found.lower.amax(0).clamp(max=highest)
    least = torch.where(reached > -math.inf, reached - (reached.abs() * margin + nearest), -math.inf)
    wanted = (found.upper >= least) & (found.upper > -math.inf)
    return sum(bool(one.any()) for one, tokens in zip(wanted.flatten(0, 1), blocks, strict=True) if tokens.start < tokens.stop)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("rows", "width", "vocabulary", "padding"),
    [(1, 64, 1024, 0), (3, 48, 1000, 24), (17, 160, 333, 1), (32, 100, 97, 31), (5, 256, 1, 0), (2, 16, 8, 0), (0, 64, 64, 0)],
)
def test_tokens_and_scores(rows: int, width: int, vocabulary: int, padding: int, dtype: torch.dtype) -> None:
    hidden, weight = case(rows, width, vocabulary, padding, dtype)
    for programs, tile in ((None, None), (1, SMALL), (7, HALVES), (64, SMALL)):
        check(hidden, weight, tile, programs, vocabulary=vocabulary)
    check(hidden, weight, vocabulary=vocabulary, first_token=5, rounded=False)


def test_most_blocks_are_skipped() -> None:
    hidden, weight = case(4, 256, 4096)
    weight[[5, 900, 2500, 4000]] = hidden / 2
    assert check(hidden, weight).tolist() == [5, 900, 2500, 4000]
    assert rescored(hidden, weight) == 4


@pytest.mark.parametrize("dtype", TYPES)
def test_few_large_columns_open_no_more_blocks(dtype: torch.dtype) -> None:
    """As trained heads have them. Their rows' scales would be ten times as large, and the bounds with them."""
    hidden, weight = case(1, 256, 4096, dtype=dtype)
    before = rescored(hidden, weight)
    weight[:, [3, 77]] *= 16
    weight[9, 100] = 4  # one number is no column
    check(hidden, weight)
    hidden[:, [3, 77]] /= 16
    check(hidden, weight)
    assert NarrowHead.make(weight).columns.unique(return_counts=True)[1].tolist() == [254, 2]
    assert rescored(hidden, weight) <= 2 * before + 2


@pytest.mark.parametrize("dtype", TYPES)
def test_the_lowest_token_wins_a_tie_within_a_block_a_program_and_across(dtype: torch.dtype) -> None:
    hidden, weight = case(4, 32, 500, dtype=dtype)
    hidden = hidden.round()
    hidden[:] = hidden[0].clone()
    for places in ([7, 8], [40, 100], [3, 499], [200, 201, 480]):
        head = weight.clone()
        head[places] = 3 * hidden[0]
        for programs in (1, 3, 11):
            assert check(hidden, head, programs=programs).tolist() == [places[0]] * 4


def test_numbers_that_rounding_makes_one() -> None:
    """A higher token has more, and less than a bit of float16 more: the lower one wins. Also beyond float16's largest number."""
    hidden, weight = torch.ones(1, 32).half(), torch.zeros(2000, 32).half()
    weight[:, 0] = torch.linspace(0, 1, 2000).half()
    weight[[700, 1900]] = 64.0
    weight[1900, 0] = 64.25  # 2048.25, rounded to 2048
    assert check(hidden, weight).tolist() == [700]
    assert check(hidden, weight, rounded=False).tolist() == [1900]
    weight[[700, 1900]] *= 100  # 204800 and 204825: infinity both, and so is what is far less than they
    weight[300] = 2400.0
    assert check(hidden, weight).tolist() == [300]


def tensors_of(copy: NarrowHead) -> list[torch.Tensor]:
    return [getattr(copy, one.name) for one in dataclasses.fields(copy)]


def values_of(copy: NarrowHead) -> torch.Tensor:
    """What the bytes say the weight is, in float64."""
    return copy.scale[:, None].double() * copy.levels.double() * copy.columns


def narrow_only(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The tokens that the copy alone gives."""
    copy = NarrowHead.make(weight)
    return (hidden.double() @ values_of(copy).T).argmax(-1)


def worst(width: int, vocabulary: int, rows: int, seed: int) -> list[torch.Tensor]:
    """For each row of states a token that is best by a little, and whose rounding errs against the states in each column; a rival's for."""
    torch.manual_seed(seed)
    hidden = torch.where(torch.rand(rows, width) < 0.5, -1.0, 1.0)
    weight = torch.randint(-8, 9, (vocabulary, width)).float()
    places = torch.randperm(vocabulary)[: 2 * rows].view(rows, 2)
    for row, (best, rival) in enumerate(places.tolist()):
        weight[best] = hidden[row] * 40.4375  # 40 steps: loses 0.4375 a column
        weight[rival] = hidden[row] * 39.5625  # 40 steps: gains as much
        weight[rival, 2 : 2 + width // 8] += hidden[row, 2 : 2 + width // 8] * 6.0  # so the copy has it far before the best
    column, sign = torch.arange(vocabulary) % width, torch.ones(vocabulary)
    sign[places] = hidden.gather(1, column[places])
    weight[torch.arange(vocabulary), column] = 127 * sign  # scales are 1, and so is what columns are divided by
    return [hidden.half(), weight.half()]


@pytest.mark.parametrize("seed", range(3))
def test_where_the_copy_alone_is_wrong(seed: int) -> None:
    hidden, weight = worst(128, 1500, 8, seed)
    tokens = check(hidden, weight)
    assert (narrow_only(hidden, weight) != tokens).sum() == 8, "else this shows nothing"
    unbounded = dataclasses.replace(NarrowHead.make(weight), error=torch.zeros(1500))
    assert (op.narrow_argmax(hidden, weight, unbounded, tile=SMALL, programs=3)[0] != tokens).sum() >= 6, (
        "by the bound alone they are found"
    )
    hidden, weight = case(32, 128, 2000, seed=seed)
    weight[1000:] = weight[:1000] + torch.randint(-1, 2, (1000, 128)) / 2048  # each token has a neighbour that a byte hardly tells from it
    assert (narrow_only(hidden, weight) != check(hidden, weight)).sum() >= 1


def test_a_wide_range_of_sizes_and_rows_of_zeros() -> None:
    hidden, weight = case(6, 96, 800)
    weight[::3] *= 2.0 ** torch.arange(-12, 3).half().repeat(18)[: len(weight[::3]), None]
    weight[::5, ::7] *= 40  # a column has the row's scale
    weight[7::11] = 0
    hidden[1, 3] = 300
    hidden[2] *= 2.0**-13
    hidden[4] = 0
    assert check(hidden, weight)[4] == 0
    assert rescored(hidden[4:5], weight) == 1, "of ties only the first block may have the token"
    weight[:70] = math.nan
    assert check(hidden, weight)[4] == 70
    large = case(3, 64, 300, dtype=torch.float32)
    for one, other in ((100, 10), (-66, -70), (83, 83), (-120, 0), (0, -130)):
        check(large[0] * 2.0**one, large[1] * 2.0**other)


@pytest.mark.parametrize("dtype", TYPES)
def test_nan_and_infinity(dtype: torch.dtype) -> None:
    hidden, weight = case(6, 32, 400, dtype=dtype)
    weight[50], weight[51, 3], weight[52, 4] = math.nan, math.inf, -math.inf
    check(hidden, weight)
    hidden[1] = math.nan
    hidden[2, 5] = math.nan
    hidden[3, 6], hidden[4, 7] = math.inf, -math.inf
    for rounded in (True, False):
        tokens = check(hidden, weight, rounded=rounded)
        assert tokens[[1, 2]].tolist() == [0, 0]
        assert check(hidden, weight, rounded=rounded, first_token=9)[1] == 9
    assert rescored(hidden[1:3], weight) <= 2, "of NaN nothing has to be read; the blocks with NaN themselves are"
    hidden[:] = math.nan
    check(hidden, weight)
    weight[:] = math.nan
    check(hidden[:0].new_ones(2, 32), weight)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_join_to_the_whole(ranks: int) -> None:
    hidden, weight = (one.round() for one in case(6, 64, 512))
    weight[[100, 300]] = 3 * hidden[2]
    share = 512 // ranks
    parts = []
    for first in range(0, 512, share):
        mine = weight[first : first + share]
        parts.append(op.narrow_argmax(hidden, mine, NarrowHead.make(mine), first_token=first, tile=SMALL, programs=2)[1])
    tokens, _ = exact.join_pairs(torch.stack(parts))
    assert torch.equal(tokens, exact.head_argmax(hidden, weight)[0])
    assert tokens[2] == 100


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(17, 140), st.integers(-9, 6), st.booleans())
def test_bounds_hold(seed: int, rows: int, width: int, size: int, spiky: bool) -> None:
    """Against float64, block by block; and the float32 sums of a BLAS lie within them too."""
    hidden, weight = case(rows, width, 200, dtype=torch.float32, seed=seed)
    hidden *= 2.0**size
    if spiky:
        hidden[:, ::5] *= 1000
        weight[::3, ::4] *= 100
        weight[1::3] = weight[1::3].half().float().round()
    found, blocks = scanned(hidden, weight, HALVES if seed % 2 else SMALL)
    for scores in (hidden.double() @ weight.double().T, (hidden @ weight.T).double()):
        for upper, tokens in zip(found.upper.flatten(0, 1), blocks, strict=True):
            if tokens.start < tokens.stop:
                assert (upper >= scores[:, tokens].amax(1)).all()
        for part, lower in enumerate(found.lower):
            assert (lower <= scores[:, part * found.share : (part + 1) * found.share].amax(1)).all()


def test_a_bound_is_met_where_the_copy_errs_most() -> None:
    """Weights half a step from their levels and states of their signs: Cauchy's inequality leaves nothing: a smaller bound would fail."""
    hidden = torch.where(torch.rand(1, 256, generator=torch.Generator().manual_seed(1)) < 0.5, -1.0, 1.0)
    weight = torch.zeros(256, 256)
    weight[:1] = hidden * 20.5
    weight[:1, :2] = 127.0
    weight[BLOCK:] = 127 * torch.where(torch.rand(256 - BLOCK, 256) < 0.5, -1.0, 1.0)  # columns are divided by 1
    found, _ = scanned(hidden, weight, programs=1)
    copy = NarrowHead.make(weight)
    score = (hidden.double() @ values_of(copy).T)[0, 0].item()
    truth = (hidden.double() @ weight.double().T)[0, 0].item()
    assert 0.98 < abs(truth - score) / (found.upper[0, 0, 0].item() - score) <= 1


def test_the_copy_is_a_bound_and_is_renewed_in_place() -> None:
    _, weight = case(1, 96, 300, dtype=torch.float32)
    weight[7], weight[8], weight[9, 3], weight[10] = 0, math.nan, math.inf, 1e30
    copy = NarrowHead.make(weight)
    values = weight.double()
    values /= copy.columns
    rest = (values - values_of(copy) / copy.columns).norm(dim=1)
    usual = torch.tensor([number not in (8, 9, 10) for number in range(300)])
    assert (rest[usual] <= copy.error[usual]).all()
    assert (copy.error[usual] <= 1.002 * rest[usual] + 1e-4 * values[usual].norm(dim=1)).all()
    assert copy.error[~usual].isinf().all()
    assert copy.levels[usual].abs().amax(1).tolist() == [0 if number == 7 else 127 for number in range(300) if usual[number]]
    addresses = [one.data_ptr() for one in tensors_of(copy)]
    other = case(1, 96, 300, dtype=torch.float32, seed=1)[1]
    with torch.inference_mode():
        copy.renew(other)
    copy.renew(other)
    fresh = NarrowHead.make(other)
    assert all(torch.equal(*pair) for pair in zip(tensors_of(copy), tensors_of(fresh), strict=True))
    assert addresses == [one.data_ptr() for one in tensors_of(copy)]
    assert copy.bytes == kept_bytes.narrow_copy(300, 96)
    with pytest.raises(ValueError, match=r"of a head \(300, 96\), and this is one of \(299, 96\)"):
        copy.renew(other[1:])


def test_a_copy_is_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, weight = case(1, 96, 300)
    whole = NarrowHead.make(weight)
    monkeypatch.setattr(narrow_scan, "CHUNK", 1000)
    parts = NarrowHead.make(weight)
    assert all(torch.equal(*pair) for pair in zip(tensors_of(whole), tensors_of(parts), strict=True))


@pytest.mark.parametrize(
    ("hidden", "weight", "copied", "vocabulary", "said"),
    [
        (torch.zeros(33, 32), torch.zeros(8, 32), 8, None, "more than 32 rows"),
        (torch.zeros(2, 32), torch.zeros(8, 64), 8, None, "do not fit"),
        (torch.zeros(2, 32), torch.zeros(8, 32), 7, None, r"the copy is of a head \(7, 32\)"),
        (torch.zeros(2, 32, dtype=torch.float64), torch.zeros(8, 32, dtype=torch.float64), 8, None, "torch.float64"),
        (torch.zeros(2, 32), torch.zeros(8, 32), 8, 9, "9 tokens of a head of 8"),
        (torch.zeros(1, 16_400), torch.zeros(1, 16_400), 1, None, "16400 wide; up to 16384"),
    ],
)
def test_what_it_does_not_take_is_named(hidden: torch.Tensor, weight: torch.Tensor, copied: int, vocabulary: int | None, said: str) -> None:
    copy = NarrowHead.make(weight[:1].expand(copied, -1))
    with pytest.raises(ValueError, match=said):
        op.narrow_argmax(hidden, weight, copy, vocabulary=vocabulary)
