"""Prompts of a graph's forward through FlashAttention: keys in order in fixed buffers, again and again, and a stand-in for the rest."""

from typing import Any

import pytest
import torch

from sglang_gemma4.attention.fixed_flash import FixedFlash
from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.kernels.attention import key_rows as op
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention_reference
from tests.harness.instruments.flash_standin import varlen
from tests.interpreted.test_prefill_attention import POISON, TOLERANCE, case

ROWS, PROMPTS, PREFIX = 96, 5, 300
KIND = Kind(4, 2, 16, -1)
REPLAYS: list[tuple[int, list[int], list[int]]] = [
    (0, [], []),  # a capture, without a prompt
    (12, [33, 0, 16], [3, 40, 17]),  # running rows first, rows of nobody behind
    (0, [300], [96]),  # as much as there is room for
    (21, [0], [1]),
    (40, [0, 17, 0, 1, 16], [1, 15, 1, 31, 8]),
    (95, [299], [1]),
]
"""Rows of running requests, and each prompt's cached keys and rows."""


def padded(counts: list[int], first: int) -> torch.Tensor:
    """Offsets of all prompts that there is room for; those that are not there repeat the last one."""
    ends = torch.tensor([first, *counts]).cumsum(0).tolist()
    return torch.tensor(ends + ends[-1:] * (PROMPTS - len(counts)), dtype=torch.int32)


def forward(before: int, prefixes: list[int], tokens: list[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments for the prompts alone, and for a forward of all rows."""
    given = case(prefixes or [0], tokens or [0], KIND.heads, KIND.kv_heads, KIND.dim, KIND.dim)
    rows = sum(tokens)
    whole = {name: torch.full((ROWS, *given[name].shape[1:]), POISON) for name in ("q", "k", "v")}
    for name, tensor in whole.items():
        tensor[before : before + rows] = given[name]
    slots = torch.zeros(PREFIX, dtype=torch.int64)
    slots[: sum(prefixes)] = given["kv_indices"][: sum(prefixes)]
    buffers = {name: given[name] for name in ("k_buffer", "v_buffer")}
    return given, {**whole, **buffers, "starts": padded(tokens, before), "offsets": padded(prefixes, 0), "slots": slots}


def fixed() -> FixedFlash:
    return FixedFlash(FlashPrefill(varlen, {KIND: 64}), KIND, ROWS, PROMPTS, PREFIX, torch.float32, torch.device("cpu"))


def test_replays_with_other_prompts_equal_our_kernel_s_reference() -> None:
    flash = fixed()
    for before, prefixes, tokens in REPLAYS:
        given, whole = forward(before, prefixes, tokens)
        out = torch.full((ROWS, KIND.heads, KIND.dim), POISON)
        flash.fill(whole["starts"], whole["offsets"])
        flash(**whole, scale=given["scale"], out=out)
        rows = sum(tokens)
        if rows:
            expected = prefill_attention_reference(**given)
            torch.testing.assert_close(out[before : before + rows], expected, atol=TOLERANCE, rtol=TOLERANCE)
        assert (out[:before] == POISON).all(), "rows of running requests"
        assert (out[before + rows :] == POISON).all(), "rows of nobody"


@pytest.mark.parametrize(("before", "prefixes", "tokens"), REPLAYS[1:])
def test_rows_in_order_behind_running_rows(before: int, prefixes: list[int], tokens: list[int]) -> None:
    """What FlashAttention's last tile of keys reads behind the last request is zero, and no row beyond is written: each costs 4 KiB."""
    given, whole = forward(before, prefixes, tokens)
    buffers = tuple(torch.full((ROWS + PREFIX, KIND.kv_heads, KIND.dim), float("nan")) for _ in range(2))
    found = op.key_rows(
        whole["k"], whole["v"], whole["k_buffer"], whole["v_buffer"], whole["starts"], whole["offsets"], whole["slots"], buffers
    )
    names = ("k", "v", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices")
    end = before + sum(prefixes) + sum(tokens)
    for ours, buffer, reference in zip(found, buffers, op.key_rows_reference(**{name: given[name] for name in names}), strict=True):
        assert ours is buffer
        assert torch.equal(ours[before:end], reference)
        assert (ours[end : end + op.ZEROS] == 0).all()
        assert ours[:before].isnan().all()
        assert ours[end + op.ZEROS :].isnan().all()
