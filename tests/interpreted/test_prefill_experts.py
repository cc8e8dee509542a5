"""The kernels of a prefill chunk's experts under Triton's interpreter: odd shapes, empty places, poisoned memory."""

import dataclasses
import itertools

import pytest
import torch

from sglang_gemma4.kernels.experts import prefill_experts as prefill
from sglang_gemma4.kernels.experts.expert_blocks import Blocks, expert_blocks
from sglang_gemma4.kernels.experts.few_token_experts import few_token_experts_reference
from sglang_gemma4.kernels.experts.prefill_experts import PrefillTile

POISON = 1e4
TOLERANCE = 5e-6
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Shape = tuple[int, int, int, int, int]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the launchers ask for holds nonsense; small blocks are computed by halves too."""
    monkeypatch.setattr(prefill, "HALVED_FROM", 32)

    def empty(*shape: object, **options: object) -> torch.Tensor:
        return torch.zeros(*shape, **options).fill_(77 if options.get("dtype") == torch.int32 else POISON)  # type: ignore[arg-type, call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch, "empty_like", lambda like: torch.full_like(like, POISON))


def case(shape: Shape, skewed: bool = False, dropped: float = 0.0, dtype: torch.dtype = torch.float32) -> Case:
    """Tokens whose experts are distinct; skewed: most take the first ones. -1 for those dropped."""
    tokens, topk, experts, hidden, inner = shape
    torch.manual_seed(tokens + hidden)
    likes = torch.rand(tokens, experts) - skewed * torch.arange(experts) * 0.4
    ids = likes.topk(topk).indices.int().contiguous()
    ids[torch.rand(ids.shape) < dropped] = -1
    x, w13, w2 = torch.randn(tokens, hidden), torch.randn(experts, 2 * inner, hidden), torch.randn(experts, hidden, inner)
    return x.to(dtype), (w13 * hidden**-0.5).to(dtype), (w2 * inner**-0.5).to(dtype), torch.rand(tokens, topk), ids


def sglang_blocks(ids: torch.Tensor, experts: int, size: int) -> Blocks:
    """As ``moe_align_block_size`` puts them: rows of no expert first, in blocks of -1, and an expert's rows in any order."""
    rows, flat = ids.numel(), ids.flatten()
    kinds: list[int] = []
    places: list[int] = []
    for expert in range(-1, experts):
        mine = (flat == expert).nonzero().flatten()
        mine = mine[torch.randperm(len(mine))].tolist()
        padded = -(-len(mine) // size)
        kinds += [expert] * padded
        places += mine + [rows] * (padded * size - len(mine))
    count = torch.tensor([len(kinds)], dtype=torch.int32)
    kinds += [77, 77]
    places += [77] * (2 * size)
    return Blocks(torch.tensor(kinds, dtype=torch.int32), torch.tensor(places, dtype=torch.int32).view(-1, size), count)


SHAPES: list[Shape] = [(1, 4, 16, 128, 32), (40, 4, 6, 64, 48), (70, 2, 3, 40, 24), (37, 8, 32, 72, 16)]
"""Tokens, experts a token, experts, hidden, inner."""
ODD: list[Shape] = [(2, 1, 3, 16, 16), (70, 2, 3, 33, 17), (50, 3, 5, 130, 50)]
"""Rows that descriptors cannot describe."""
FIRST, SECOND = PrefillTile(16, 32, 4, 2, group=3), PrefillTile(32, 16, 4, 2, group=2)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("skewed", "dropped"), [(False, 0.0), (True, 0.4), (False, 1.0)])
@pytest.mark.parametrize(
    ("shape", "tma"), [(shape, tma) for shape in (*SHAPES, *ODD) for tma in (False, True) if not tma or shape in SHAPES]
)
def test_the_weighted_sum(shape: Shape, skewed: bool, dropped: float, ahead: bool, tma: bool) -> None:
    given = case(shape, skewed, dropped)
    tiles = (32, dataclasses.replace(FIRST, ahead=ahead, programs=3 * ahead), dataclasses.replace(SECOND, ahead=ahead, programs=3 * ahead))
    found = prefill.prefill_experts(*given, tiles=tiles, tma=tma)
    torch.testing.assert_close(found, few_token_experts_reference(*given), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(("group", "programs"), itertools.product([1, 2, 100], [0, 1, 3]))
def test_every_order_of_tiles(group: int, programs: int) -> None:
    """Also where a few programs walk over all tiles: the same bits."""
    given = case(SHAPES[1], skewed=True, dropped=0.2)
    first, second = (dataclasses.replace(tile, group=group, programs=programs) for tile in (FIRST, SECOND))
    found = prefill.prefill_experts(*given, tiles=(16, first, second))
    assert torch.equal(found, prefill.prefill_experts(*given, tiles=(16, FIRST, SECOND)))


@pytest.mark.parametrize("dropped", [0.0, 0.3])
@pytest.mark.parametrize("tma", [False, True])
def test_blocks_as_sglang_aligns_them(dropped: float, tma: bool) -> None:
    """Rows of an expert in any order, blocks of no expert."""
    given = case(SHAPES[1], skewed=True, dropped=dropped)
    found = prefill.prefill_experts(*given, blocks=sglang_blocks(given[4], 6, 32), tiles=(32, FIRST, SECOND), tma=tma)
    torch.testing.assert_close(found, few_token_experts_reference(*given), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("tma", [False, True])
def test_what_lies_in_the_blocks(tma: bool) -> None:
    """Empty places are zero as far as they are computed; nothing is written behind the last block or outside a tensor."""
    x, w13, w2, weights, ids = case(SHAPES[2], dropped=0.3)
    blocks = expert_blocks(ids, 3, 64)
    count, h = int(blocks.count), prefill.gate_and_up(x, w13, weights, ids, blocks, FIRST, tma)
    assert h.shape == (blocks.row.shape[0], 64, 24)
    assert (h[count:] == POISON).all()
    for block in range(count):
        real = int((blocks.row[block] < ids.numel()).sum())
        computed = 32 if real <= 32 else 64
        assert (h[block, real:computed] == 0).all()
        assert (h[block, computed:] == POISON).all()
        assert (h[block, :real].abs() < POISON / 2).all()
    rows = prefill.down(h, w2, ids.numel(), blocks, SECOND, tma)
    none = ids.flatten() < 0
    assert (rows[none] == POISON).all()
    assert (rows[~none].abs() < POISON / 2).all()


def test_16_bits_are_loaded_through_descriptors_and_rounded_three_times() -> None:
    """The activation, each row's output and the sum; float16, since the interpreter multiplies bfloat16 as integers."""
    given = case(SHAPES[1], dtype=torch.float16)
    assert prefill.reason_against_descriptors(given[1], given[2]) is None
    found = prefill.prefill_experts(*given, tiles=(32, FIRST, SECOND))
    torch.testing.assert_close(found, few_token_experts_reference(*given), atol=3e-3, rtol=3e-3)


def test_default_tiles() -> None:
    given = case((9, 2, 4, 64, 32))
    found = prefill.prefill_experts(*given)
    torch.testing.assert_close(found, few_token_experts_reference(*given), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(4, 24, dtype=torch.bfloat16), None),
        (torch.zeros(4, 20, dtype=torch.bfloat16), r"rows of \(4, 20\) do not lie at multiples of 16 bytes"),
        (torch.zeros(4 * 24 + 4, dtype=torch.bfloat16)[4:].view(4, 24), "do not lie at multiples of 16 bytes"),
        (torch.zeros(4, 24), "torch.float32; matrix instructions"),
    ],
)
def test_what_is_loaded_through_pointers_is_named(tensor: torch.Tensor, said: str | None) -> None:
    reason = prefill.reason_against_descriptors(tensor)
    if said is None:
        assert reason is None
    else:
        with pytest.raises(ValueError, match=said):
            raise ValueError(reason)


@pytest.mark.parametrize(
    ("capability", "tma", "said"), [((8, 9), False, "is 8.9; the tiles are for 9.0"), ((9, 0), True, None), ((12, 0), True, "is 12.0")]
)
def test_cards(capability: tuple[int, int], tma: bool, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda", capability[0])  # another each time: the answers are kept
    assert prefill.has_tma(device) is tma
    reason = prefill.reason_against_card(device)
    assert (reason is None) if said is None else said in str(reason)
    assert prefill.reason_against_card(torch.device("cpu")) is None


def test_old_cards_load_through_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "has_tma", lambda device: False)
    assert "older than compute capability 9.0" in str(prefill.reason_against_descriptors(torch.zeros(4, 24, dtype=torch.bfloat16)))


def test_what_it_does_not_take_is_named() -> None:
    x, w13, w2, weights, ids = case(SHAPES[1])
    blocks = expert_blocks(ids, 6, 16)
    with pytest.raises(ValueError, match="the tiles take 32 a block"):
        prefill.prefill_experts(x, w13, w2, weights, ids, blocks, (32, FIRST, SECOND))
    with pytest.raises(ValueError, match=r"w13: the weight is torch.bfloat16 and x torch.float32"):
        prefill.prefill_experts(x, w13.bfloat16(), w2, weights, ids)
    assert prefill.prefill_experts(x[:0], w13, w2, weights[:0], ids[:0]).shape == (0, 64)
