"""Attention of prompts: the kernel under Triton's interpreter against the reference, with poisoned outputs and unread slots."""

from typing import Any

import pytest
import torch

from sglang_gemma4.kernels.attention import prefill_attention as op
from sglang_gemma4.kernels.attention.tiles import PromptTile

POISON = 1e4
TOLERANCE = 2e-6
SMALL = PromptTile(16, 16, 4, 2)


def case(prefixes: list[int], tokens: list[int], heads: int, kv_heads: int, dim: int, v_dim: int) -> dict[str, Any]:
    """Arguments with slots in no order; slots that no request owns are poisoned."""
    torch.manual_seed(0)
    total = sum(prefixes)
    slots = torch.randperm(total + 7)
    buffers = [torch.full((total + 7, kv_heads, width), POISON) for width in (dim, v_dim)]
    for buffer in buffers:
        buffer[slots[:total]] = torch.randn(total, kv_heads, buffer.shape[2])
    packed = torch.randn(sum(tokens), kv_heads, dim + v_dim)  # as a slice of the QKV product: rows are not adjacent
    starts = [torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32) for counts in (tokens, prefixes)]
    return {
        "q": torch.randn(sum(tokens), heads, dim),
        "k": packed[..., :dim],
        "v": packed[..., dim:],
        "k_buffer": buffers[0],
        "v_buffer": buffers[1],
        "qo_indptr": starts[0],
        "kv_indptr": starts[1],
        "kv_indices": slots,
        "scale": dim**-0.5,
    }


@pytest.mark.parametrize("window", [-1, 0, 5, 16, 31, 40])
@pytest.mark.parametrize(
    ("prefixes", "tokens", "heads", "kv_heads"),
    [
        ([0], [1], 1, 1),
        ([0, 0], [37, 5], 4, 2),
        ([33, 0, 16], [3, 40, 17], 4, 1),
        ([100, 15, 1], [50, 1, 33], 2, 2),
        ([64], [64], 8, 1),
    ],
)
def test_equals_the_reference(prefixes: list[int], tokens: list[int], heads: int, kv_heads: int, window: int) -> None:
    if window >= 0:
        prefixes = [min(prefix, window + 7) for prefix in prefixes]  # some keys before the window too
    given = case(prefixes, tokens, heads, kv_heads, 16, 32)
    memory = torch.full((sum(tokens) + 1, heads, 32), POISON)
    expected = op.prefill_attention_reference(**given, window=window)
    found = op.prefill_attention(**given, out=memory[:-1], longest=max(tokens), window=window, tile=SMALL)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (memory[-1] == POISON).all(), "wrote behind the output"


@pytest.mark.parametrize("window", [-1, 16])
def test_a_list_says_what_programs_compute(window: int) -> None:
    """As in a graph: more places for requests and programs than there are, and rows before and behind the prompts'."""
    prefixes, tokens = [33, 0, 16], [3, 40, 17]
    given = case(prefixes, tokens, 4, 2, 16, 32)
    expected = op.prefill_attention_reference(**given, window=window)
    before, behind, room = 5, 9, 12
    for name in ("q", "k", "v"):
        rows = given[name]
        given[name] = torch.cat([torch.full((count, *rows.shape[1:]), POISON) for count in (before, behind)])
        given[name] = torch.cat([given[name][:before], rows, given[name][before:]])
    given["qo_indptr"] = torch.cat([given["qo_indptr"] + before, torch.full((4,), before + sum(tokens), dtype=torch.int32)])
    given["kv_indptr"] = torch.cat([given["kv_indptr"], torch.full((4,), sum(prefixes), dtype=torch.int32)])
    memory = torch.full((len(given["q"]), 4, 32), POISON)
    each = op.tokens_of(SMALL, 2)
    assert op.list_tiles(prefixes, tokens, each, 8) is None, "a tile for 3 tokens, 5 for 40, 3 for 17"
    listed = op.list_tiles(prefixes, tokens, each, room)
    assert listed is not None
    assert listed[:4] == [0, 0, 2, 2], "33 keys before the first tile, 32 before the second"
    tiles = torch.tensor(listed, dtype=torch.int32).view(room, 2)
    found = op.prefill_attention(**given, out=memory, longest=1, window=window, tiles=tiles, tile=SMALL)
    torch.testing.assert_close(found[before:-behind], expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (memory[:before] == POISON).all()
    assert (memory[-behind:] == POISON).all()


@pytest.mark.parametrize("window", [-1, 5, 16, 40])
def test_images_see_all_of_themselves(window: int) -> None:
    """Images of 3 to 38 tokens, at both ends, beside each other, longer than window and tile, and of which only the end is new."""
    prefixes, tokens = [min(33, window + 7) if window >= 0 else 33, 0, 16, 4], [40, 3, 17, 5]
    spans = [[(0, 37)], [], [(0, 4), (5, 9), (13, 16)], [(0, 2)]]
    rows = []
    for count, own in zip(tokens, spans, strict=True):
        row = torch.arange(count, dtype=torch.int32)
        for begin, end in own:
            row[begin : end + 1] = end
        rows.append(row)
    given = {**case(prefixes, tokens, 4, 2, 16, 32), "window": window, "reach": torch.cat(rows)}
    memory = torch.full((sum(tokens) + 1, 4, 32), POISON)
    expected = op.prefill_attention_reference(**given)
    found = op.prefill_attention(**given, out=memory[:-1], longest=max(tokens), tile=SMALL)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (memory[-1] == POISON).all(), "wrote behind the output"
    causal = op.prefill_attention_reference(**{**given, "reach": None})
    assert (expected - causal).abs().max() > 0.1, "an image's first tokens see its last"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": torch.zeros(3, 4, 16, dtype=torch.float64)}, "q is torch.float64"),
        ({"k_buffer": torch.zeros(9, 2, 16, dtype=torch.bfloat16)}, "a quantised KV cache is not taken"),
        ({"q": torch.zeros(3, 6, 16)}, "6 query heads over 2 KV heads"),
        ({"q": torch.zeros(3, 4, 32)}, "disagree"),
        ({"v": torch.zeros(3, 2, 48), "v_buffer": torch.zeros(9, 2, 48)}, "powers of two from 16"),
        ({"k": torch.zeros(3, 2, 32)[..., ::2]}, "the last contiguous"),
        ({"q": torch.zeros(3, 4, 32)[..., ::2]}, "q has shape"),
        ({"q": torch.zeros(3, 256, 16)}, "256 query heads over 2 KV heads"),
        ({"reach": torch.zeros(3)}, r"reach is torch.float32 of shape \(3,\)"),
        ({"reach": torch.zeros(2, dtype=torch.int32)}, "for 3 tokens is supported"),
        ({"tiles": torch.zeros(4, dtype=torch.int32)}, r"tiles are torch.int32 of shape \(4,\)"),
        ({"out": torch.zeros(3, 4, 32)}, r"contiguous \(3, 4, 16\) is supported"),
    ],
)
def test_what_it_does_not_take_is_named(change: dict[str, Any], said: str) -> None:
    given = {**case([2], [3], 4, 2, 16, 16), "out": torch.zeros(3, 4, 16), "longest": 3, **change}
    with pytest.raises(ValueError, match=said):
        op.prefill_attention(**given)
