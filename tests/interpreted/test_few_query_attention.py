"""Attention of a few query tokens: the kernels under Triton's interpreter against the reference, with poisoned outputs and unread slots."""

import itertools
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.attention import few_query_attention as op
from sglang_gemma4.kernels.attention.few_query_attention.kernels import parts_of
from sglang_gemma4.kernels.attention.tiles import KeyTile, head_split

POISON = 1e4
TOLERANCE = 2e-6


def case(lengths: list[int], heads: int, kv_heads: int, dim: int, v_dim: int, queries: int, new: bool, seed: int = 0) -> dict[str, Any]:
    """Arguments with slots in no order; slots that no request owns are poisoned."""
    torch.manual_seed(seed)
    total, requests = sum(lengths), len(lengths)
    slots = torch.randperm(total + 7)
    buffers = [torch.full((total + 7, kv_heads, width), POISON) for width in (dim, v_dim)]
    for buffer in buffers:
        buffer[slots[:total]] = torch.randn(total, kv_heads, buffer.shape[2])
    given: dict[str, Any] = {
        "q": torch.randn(requests * queries, heads, dim),
        "k_buffer": buffers[0],
        "v_buffer": buffers[1],
        "kv_indptr": torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
        "kv_indices": torch.cat([slots[:total], slots[total:]]),
        "scale": dim**-0.5,
        "queries": queries,
    }
    if new:
        packed = torch.randn(requests * queries, kv_heads, dim + v_dim)  # as a slice of the QKV product: rows are not adjacent
        given |= {"k_new": packed[..., :dim], "v_new": packed[..., dim:]}
    return given


def agree(given: dict[str, Any], **launch: Any) -> None:
    given = dict(given)
    tokens, heads, v_dim = given["q"].shape[0], given["q"].shape[1], given["v_buffer"].shape[2]
    memory = torch.full((tokens + 1, heads, v_dim), POISON)
    expected = op.few_query_attention_reference(**given)
    found = op.few_query_attention(**given, out=memory[:tokens], **launch)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (memory[tokens:] == POISON).all(), "wrote behind the output"


@pytest.mark.parametrize("parts", [1, 4, 8])
@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "dim", "v_dim", "queries"),
    [
        ([1], 1, 1, 16, 16, 1),
        ([300, 1, 129, 64], 4, 2, 32, 32, 4),
        ([700, 3], 16, 2, 32, 16, 4),
        ([65, 128, 1000], 6, 2, 16, 64, 3),
        ([257, 2], 8, 8, 32, 32, 7),
    ],
)
def test_new_keys_causally(lengths: list[int], heads: int, kv_heads: int, dim: int, v_dim: int, queries: int, parts: int) -> None:
    agree(case(lengths, heads, kv_heads, dim, v_dim, queries, new=True), parts=parts)


@pytest.mark.parametrize("window", [0, 5, 63, 200])
@pytest.mark.parametrize("new", [True, False])
def test_window(window: int, new: bool) -> None:
    agree({**case([300, 64, 1, 201], 4, 2, 32, 32, 4 if new else 1, new), "window": window}, parts=4)


@pytest.mark.parametrize("tile", [KeyTile(16, 4, 3), KeyTile(32, 4, 3), KeyTile(32, 8, 3, rows=64)], ids=str)
def test_other_tiles(tile: KeyTile) -> None:
    agree(case([130, 1], 16, 2, 32, 32, 4, new=True), parts=2, tile=tile)


@pytest.mark.parametrize(("kv_heads", "split"), [(1, 2), (1, 4), (2, 2)])
def test_query_heads_divided_among_programs(kv_heads: int, split: int) -> None:
    agree(case([150, 20], 8, kv_heads, 32, 32, 5, new=True), parts=2, split=split)


@pytest.mark.parametrize(
    ("queries", "group", "dim", "split"),
    [(4, 4, 512, 1), (4, 8, 512, 2), (4, 16, 512, 4), (9, 16, 512, 16), (4, 6, 512, 2), (4, 7, 512, 1), (1, 16, 512, 1), (9, 16, 256, 1)],
)
def test_wide_heads_are_divided_where_their_sums_would_not_stay_in_registers(queries: int, group: int, dim: int, split: int) -> None:
    assert head_split(queries, group, dim) == split


def test_decode_and_rows_at_one_position() -> None:
    agree(case([513, 1, 90], 8, 2, 32, 32, 1, new=False), parts=4)


@pytest.mark.parametrize("window", [-1, 70])
@pytest.mark.parametrize("offsets", [True, False])
def test_tree_mask(offsets: bool, window: int) -> None:
    lengths, queries = [150, 1, 66], 6
    before = [40, 0, 300] if offsets else [0, 0, 0]
    given = {**case(lengths, 4, 2, 32, 32, queries, new=True), "window": window}
    torch.manual_seed(1)
    masks, starts = [], [0]
    for length, skipped in zip(lengths, before, strict=True):
        mask = torch.rand(queries, skipped + length + queries) < 0.4
        mask[:, -queries:] |= torch.eye(queries, dtype=torch.bool)
        masks.append(mask.flatten())
        starts.append(starts[-1] + mask.numel())
    given |= {"tree_mask": torch.cat(masks).to(torch.uint8), "tree_mask_indptr": torch.tensor(starts)}
    if offsets:
        given["key_offsets"] = torch.tensor(before, dtype=torch.int32)
    agree(given, parts=2)


def test_a_chain_s_mask_is_no_mask() -> None:
    given = case([150, 20], 4, 2, 32, 32, 4, new=True)
    masks = [torch.cat([torch.ones(4, n), torch.tril(torch.ones(4, 4))], dim=1).flatten() for n in (150, 20)]
    with_mask = {**given, "tree_mask": torch.cat(masks).to(torch.uint8), "tree_mask_indptr": torch.tensor([0, masks[0].numel()])}
    out = torch.empty(8, 4, 32)
    found = op.few_query_attention(**with_mask, out=out, parts=2).clone()
    assert torch.equal(found, op.few_query_attention(**given, out=out, parts=2))


def test_soft_cap_and_large_scores() -> None:
    given = {**case([200, 3], 4, 2, 32, 32, 4, new=True), "soft_cap": 5.0}
    given["q"] *= 30
    agree(given, parts=2)


def test_parts_follow_the_card() -> None:
    assert op.parts_for(1, 8, 132) == (32, op.MOST_PARTS)
    assert op.parts_for(32, 8, 132) == (1, 8)
    assert op.parts_for(80, 2, 132) == (3, 8)
    assert op.parts_for(4096, 8, 132) == (1, 1)


@pytest.mark.parametrize(
    ("requests", "kv_heads", "window", "wanted"),
    [
        (80, 2, 511, 1),
        (48, 2, 511, 2),
        (32, 2, 511, 4),
        (80, 1, 511, 3),
        (80, 8, 1023, 2),
        (32, 8, 1023, 1),
        (8, 8, 1023, 4),
        (1, 8, 1023, 16),
    ],
)
def test_the_parts_that_were_the_fastest_of_sliding_layers(requests: int, kv_heads: int, window: int, wanted: int) -> None:
    """On an H200, of those that divide the card: E4B's, E2B's and 26B-A4B's layers, ``runs/2026-11-26-attention-parts``."""
    assert op.parts_for(requests, kv_heads, 132, window)[0] == wanted


@pytest.mark.parametrize(("requests", "wanted"), [(32, 1), (33, 1), (40, 2), (48, 2), (64, 1), (80, 2), (128, 1), (256, 1)])
def test_requests_are_cut_in_two_where_the_last_programs_would_leave_the_card_idle(requests: int, wanted: int) -> None:
    """With 8 KV heads on 132 SMs, two programs each: 48 requests are 1.45 times the card, and would take as long as twice."""
    assert op.parts_for(requests, 8, 132, 1023)[0] == wanted


def test_a_long_request_beside_a_short_one_is_cut() -> None:
    agree(case([5000, 3], 2, 1, 16, 16, 1, new=False))


MIXED = [5658, *[200] * 60, 0]
"""A step's keys: on a card two programs a KV head read all of the longest request's where parts are not balanced."""


def plan(lengths: list[int], wanted: int, most: int, balanced: bool) -> list[int]:
    """Parts of each request: what the kernels are to compute, in plain Python."""
    target = max(op.LEAST_KEYS, -(-sum(lengths) // (len(lengths) * wanted)))
    return [
        max(1, min(most, length // op.LEAST_KEYS, max(wanted, length // op.MOST_KEYS, round_half_up(length, target) if balanced else 0)))
        for length in lengths
    ]


def round_half_up(keys: int, of: int) -> int:
    return (keys + of // 2) // of


def drawn(requests: int, seed: int, least: int = 50, most: int = 6000) -> list[int]:
    """Lengths, log-uniform."""
    generator = random.Random(seed)
    return [round(math.exp(generator.uniform(math.log(least), math.log(most)))) for _ in range(requests)]


@triton.jit
def _parts_kernel(  # type: ignore[no-untyped-def]
    lengths_ptr, out_ptr, total, requests, wanted, most, least_keys: tl.constexpr, most_keys: tl.constexpr, block: tl.constexpr
):
    at = tl.arange(0, block)
    length = tl.load(lengths_ptr + at, mask=at < requests, other=0)
    parts, keys = parts_of(length, total, requests, wanted, most, least_keys, most_keys)
    tl.store(out_ptr + at, parts, mask=at < requests)
    tl.store(out_ptr + requests + at, keys, mask=at < requests)


def computed(lengths: list[int], wanted: int, most: int, balanced: bool) -> list[list[int]]:
    """Parts of each request, and keys in each, as the kernels compute them."""
    out = torch.full((2, len(lengths)), -1, dtype=torch.int32)
    _parts_kernel[(1,)](
        torch.tensor(lengths, dtype=torch.int32), out, sum(lengths), len(lengths), -wanted if balanced else wanted, most,
        least_keys=op.LEAST_KEYS, most_keys=op.MOST_KEYS, block=triton.next_power_of_2(len(lengths)),
    )  # fmt: skip
    found: list[list[int]] = out.tolist()
    return found


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("keys", [0, 1, 63, 129, 1000, 1023, 4100, 8192, 100_000])
def test_equal_requests_are_cut_as_they_are_without_balance(keys: int, kv_heads: int) -> None:
    for requests in (1, 2, 3, 7, 8, 16, 31, 32, 40, 48, 62, 64, 80, 128, 300):
        wanted, most = op.parts_for(requests, kv_heads, 132)
        expected = plan([keys] * requests, wanted, most, balanced=False)
        assert plan([keys] * requests, wanted, most, balanced=True) == expected
        assert computed([keys] * requests, wanted, most, balanced=True)[0] == expected


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("requests", [1, 2, 5, 33, 60, 80, 200])
def test_parts_of_mixed_requests(requests: int, kv_heads: int) -> None:
    """Every key is in one part, none is cut less than without balance, and no part is long while there is room."""
    wanted, most = op.parts_for(requests, kv_heads, 132)
    for seed in range(20):
        lengths = drawn(requests, seed, most=6000 if seed % 2 else 60_000)
        parts, keys = computed(lengths, wanted, most, balanced=True)
        assert parts == plan(lengths, wanted, most, balanced=True)
        target = max(op.LEAST_KEYS, -(-sum(lengths) // (requests * wanted)))
        without = plan(lengths, wanted, most, balanced=False)
        for length, count, each, least in zip(lengths, parts, keys, without, strict=True):
            assert least <= count <= most
            starts = [min(part * each, length) for part in range(count + 1)]
            assert (starts[0], starts[-1]) == (0, length)
            assert all(start < end for start, end in itertools.pairwise(starts)), "no part is empty"
            assert each <= max(1.5 * target + 1, 2 * op.LEAST_KEYS) or count == most
        assert sum(parts) <= sum(without) + requests * (wanted + 0.5), "no more than parts of a request of average length come on top"


def test_the_longest_of_a_mixed_step() -> None:
    lengths = [5658, *[907] * 61]
    wanted, most = op.parts_for(62, 2, 132)
    assert (wanted, most) == (2, 16)
    parts, keys = computed(lengths, wanted, most, balanced=False)
    assert (parts[0], keys[0], parts[1:], keys[1:]) == (2, 2829, [2] * 61, [454] * 61)
    parts, keys = computed(lengths, wanted, most, balanced=True)
    assert (parts[0], keys[0], parts[1:], keys[1:]) == (12, 472, [2] * 61, [454] * 61)


@pytest.mark.parametrize(("window", "new"), [(-1, True), (1000, False)])
@pytest.mark.parametrize("lengths", [MIXED, [0, 0, 0], [0, 700, 0, 1, 64]], ids=["62 requests", "none", "few"])
def test_balanced_parts(lengths: list[int], window: int, new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 66 SMs, with NaN in every slot and part that nobody wrote."""
    given = {**case(lengths, 4, 2, 16, 16, 4 if new else 1, new), "window": window}
    for buffer in (given["k_buffer"], given["v_buffer"]):
        buffer[given["kv_indices"][sum(lengths) :]] = float("nan")
    made: list[torch.Tensor] = []

    def poisoned(*shape: Any, **options: Any) -> torch.Tensor:
        made.append(torch.empty(*shape, **options).fill_(float("nan")))
        return made[-1]

    monkeypatch.setattr(op, "torch", SimpleNamespace(**{**vars(torch), "empty": poisoned}))
    monkeypatch.setattr(op, "multiprocessors", lambda device: 66)
    monkeypatch.setattr(op, "_balanced", True)
    agree(given)
    _expected, part_out, part_lse = made
    written = (~part_lse.isnan()).all(dim=-1)  # [requests, KV heads, parts]
    assert torch.equal(written, (~part_out.isnan()).all(dim=-1).all(dim=-1))
    wanted, most = op.parts_for(len(lengths), 2, 66, window)
    if window >= 0 and lengths != MIXED:
        most = wanted
    assert (wanted < op.FINELY_CUT) == (lengths == MIXED), "few requests are cut finely already"
    assert written.sum(dim=-1).T.tolist() == [plan(lengths, wanted, most, balanced=lengths == MIXED)] * 2
    assert plan(MIXED, 1, 8, balanced=True) == [8, *[1] * 61] != plan(MIXED, 1, 8, balanced=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": torch.zeros(4, 4, 32, dtype=torch.float64)}, "q is torch.float64"),
        ({"k_buffer": torch.zeros(9, 2, 32, dtype=torch.bfloat16)}, "a quantised KV cache is not taken"),
        ({"queries": 3}, "4 query tokens are no multiple of 3"),
        ({"k_buffer": torch.zeros(9, 3, 32)}, "4 query heads are no multiple of 3 KV heads"),
        ({"q": torch.zeros(4, 4, 48), "k_buffer": torch.zeros(9, 2, 48)}, "powers of two from 16"),
        ({"k_buffer": torch.zeros(9, 2, 64)[..., ::2]}, "the last contiguous"),
        ({"q": torch.zeros(4, 4, 64)[..., ::2]}, "q has shape"),
        ({"k_buffer": torch.zeros(9, 2, 64)}, "disagree"),
        ({"q": torch.zeros(4, 4, 1024), "k_buffer": torch.zeros(9, 2, 1024)}, "from 16 to 512"),
        ({"v_new": torch.zeros(4, 2, 16), "k_new": torch.zeros(4, 2, 32)}, "disagree"),
        ({"out": torch.zeros(4, 4, 16)}, r"contiguous \(4, 4, 32\) is supported"),
        ({"q": torch.zeros(100, 4, 32), "queries": 100}, "200 rows; up to 128"),
    ],
)
def test_what_it_does_not_take_is_named(change: dict[str, Any], said: str) -> None:
    given = {**case([5], 4, 2, 32, 32, 4, new=False), "out": torch.zeros(4, 4, 32), **change}
    with pytest.raises(ValueError, match=said):
        op.few_query_attention(**given)


def _alone_and_among(lengths: list[int], **parts: Any) -> bool:
    """Whether the first request's output has the same bits alone and among the others."""
    given = case(lengths, 4, 2, 32, 32, 1, new=False)
    among = op.few_query_attention(**given, out=torch.empty(len(lengths), 4, 32), **parts)[:1].clone()
    first = {**given, "q": given["q"][:1], "kv_indptr": given["kv_indptr"][:2]}
    return bool(torch.equal(among, op.few_query_attention(**first, out=torch.empty(1, 4, 32), **parts)))


@pytest.mark.parametrize("others", [[], [3], [900] * 7, [64, 1, 700] * 10, [5] * 79], ids=len)
def test_parts_by_length_alone_give_the_same_bits_in_every_batch(others: list[int]) -> None:
    assert _alone_and_among([1100, *others], part_keys=256)


def test_parts_by_the_batch_do_not() -> None:
    assert not _alone_and_among([1100, 3], balanced=True), "else the test above shows nothing"


@pytest.mark.parametrize("length", [1, 255, 256, 511, 512, 20000])
def test_parts_by_length_alone_are_right(length: int) -> None:
    agree(case([length, 7], 2, 1, 16, 16, 1, new=False), part_keys=256)
