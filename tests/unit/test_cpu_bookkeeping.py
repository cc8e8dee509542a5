"""Slot bookkeeping, truncated distributions and the seeded hash of the CPU engine."""

from typing import Any

import pytest
import torch

from sglang_gemma4.cpu import cache_locations, sampling

ROWS = torch.tensor([4, 0, 2])
START, END = torch.tensor([3, 0, 5], dtype=torch.int32), torch.tensor([6, 0, 6], dtype=torch.int32)


@pytest.fixture
def table() -> Any:
    return torch.arange(60, dtype=torch.int32).view(6, 10)


def test_write_and_read_slots(table: Any) -> None:
    slots = torch.tensor([100, 101, 102, 103, -1])
    before = table.clone()
    cache_locations.write_slots(ROWS, table, START, END, slots)
    assert table[4, 3:6].tolist() == [100, 101, 102]
    assert table[2, 5] == 103
    assert int((table != before).sum()) == 4
    read = torch.full((6,), -5)
    cache_locations.read_slots(ROWS, table, START, END, read)
    assert read.tolist() == [100, 101, 102, 103, -5, -5]


def test_bonus_tokens() -> None:
    tokens = torch.arange(12).view(3, 4)
    out = torch.full((5,), -1)
    cache_locations.bonus_tokens(tokens, torch.tensor([1, 4, 2], dtype=torch.int32), out, 4)
    assert out.tolist() == [0, 7, 9, -1, -1]


def test_accepted_slots() -> None:
    out = torch.full((6,), -1)
    cache_locations.accepted_slots(torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32), torch.arange(50, 56, dtype=torch.int32), out)
    assert out.tolist() == [50, 52, 53, -1, -1, -1]


def test_copy_rows_reads_before_it_writes() -> None:
    buffers = [torch.arange(8 * width, dtype=torch.float32).view(8, width) for width in (1, 3, 16)]
    expected = [buffer.clone() for buffer in buffers]
    source, target = torch.tensor([2, 3, 7]), torch.tensor([1, 2, 3])
    for buffer in expected:
        buffer[target] = buffer[source].clone()
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer.stride(0) * 4 for buffer in buffers])
    cache_locations.copy_rows(addresses, strides, target, source)
    for buffer, wanted in zip(buffers, expected, strict=True):
        assert torch.equal(buffer, wanted)


def test_top_k_keeps_k() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    kept = sampling.top_k_renorm(probs, torch.tensor([2, 1 << 30]))
    torch.testing.assert_close(kept, torch.tensor([[0, 4 / 7, 0, 3 / 7], [0.25] * 4]))


@pytest.mark.parametrize(("top_p", "kept"), [(0.3, [1]), (0.4, [1, 3]), (0.69, [1, 3]), (0.95, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3])])
def test_top_p_keeps_the_fewest_that_reach_it(top_p: Any, kept: Any) -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    out = sampling.top_p_renorm(probs, torch.tensor([top_p]))
    assert out.nonzero()[:, 1].tolist() == kept
    torch.testing.assert_close(out.sum(-1), torch.ones(1))


def murmur(blocks: Any) -> Any:
    """MurmurHash3 (x86, 32 bit, seed 0) of 32-bit blocks."""
    mask, h = 0xFFFFFFFF, 0
    for k in blocks:
        k = k * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        h ^= k * 0x1B873593 & mask
        h = (h << 13 | h >> 19) & mask
        h = (h * 5 + 0xE6546B64) & mask
    h ^= 4 * len(blocks)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> shift) * factor & mask
    return h ^ h >> 16


def test_murmur_hash() -> None:
    seeds = [0, 42, 2**64 - 1, 0x123456789ABCDEF0]
    positions, columns = [0, 7, 2**31, 12345], [0, 1, 255, 262143]
    got = sampling.murmur_hash32(
        torch.tensor(seeds, dtype=torch.uint64), torch.tensor(positions, dtype=torch.uint64), torch.tensor(columns)
    )
    assert got.dtype == torch.uint32
    assert got.tolist() == [
        [murmur([s & 0xFFFFFFFF, s >> 32, p & 0xFFFFFFFF, c]) for c in columns] for s, p in zip(seeds, positions, strict=True)
    ]
