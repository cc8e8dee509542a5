"""Tiles of the attention kernels: measured on an H200; where a card's shared memory is smaller, the largest that fits."""

import functools
from dataclasses import dataclass

import torch

from sglang_gemma4.kernels.card import HOPPER, Card

FEW_ROWS = 32
"""Of a tile that has more blocks of keys on their way, on a card with Hopper's shared memory."""
MOST_WIDE_ROWS = 16
"""Of a program whose heads have more than 256 dimensions. With 64 rows its sums do not fit the registers: a verify step's full layer of 12B
takes 38 µs, divided in four 14; 26B-A4B's 18.5 and 13.4, E2B's 18.6 and 13.0, 31B's 19.7 and 13.6 (``runs/2026-11-30-12b-h200-steps``)."""
SMALL = 1024
"""Bytes of shared memory for slots, maxima and sums, beside a tile's blocks."""


@dataclass(frozen=True)
class KeyTile:
    """How a program of ``few_query_attention`` works: keys a block, warps, blocks loaded ahead, and the fewest rows it is padded to.

    From 64 rows on, Hopper's matrix instructions read queries from shared memory; below, every warp holds its own in registers.
    """

    keys: int
    warps: int
    stages: int
    rows: int = 16


@dataclass(frozen=True)
class PromptTile:
    """How a program of ``prefill_attention`` works: rows (tokens times heads of a KV head), keys a block, warps, blocks loaded ahead."""

    rows: int
    keys: int
    warps: int
    stages: int


def needed(rows: int, keys: int, stages: int, dims: int, dtype: torch.dtype, card: Card, kept: torch.dtype | None = None) -> int:
    """Most bytes of shared memory that a program takes: queries, blocks of keys and values, and a block of weights.

    Args:
        rows: of a tile, padded.
        stages: blocks loaded ahead, the one in use among them.
        dims: of a head's key and its value together.
        kept: the elements of the KV cache where they are not ``dtype``'s: a block of them in use is kept once more, converted.
    """
    held = card.holds and rows >= 64 and dtype != torch.float32  # which has no matrix instructions
    blocks = stages if held else max(1, stages - 1)
    itemsize: int = dtype.itemsize
    if kept is None or kept == dtype:
        return (rows * dims // 2 + blocks * keys * dims + rows * keys) * itemsize + SMALL
    kept_size: int = kept.itemsize
    return (rows * dims // 2 + keys * dims + rows * keys) * itemsize + stages * keys * dims * kept_size + SMALL


@functools.cache
def key_tile(rows: int, dim: int, v_dim: int, dtype: torch.dtype, card: Card, kept: torch.dtype | None = None) -> KeyTile | None:
    """The tile for so many rows and these head dimensions, or None where none fits the card; on an H200 the first was the fastest of 7
    nearly everywhere (runs/2026-11-22-kernel-times), and of few rows four blocks of 32 keys ahead were faster still
    (runs/2026-11-26-attention-parts, of int8 keys runs/2026-11-26-int8-words)."""
    # The slots that keys and values lie in are loaded a block ahead of them, so one stage is theirs.
    tiles = [KeyTile(keys, 4, 3) for keys in ((32, 16) if max(dim, v_dim) > 256 else (64, 32, 16))]
    measured = dtype != torch.float32 and kept in (None, dtype, torch.int8)
    if measured and max(dim, v_dim) == 256 and rows <= FEW_ROWS and card.shared >= HOPPER.shared:
        return KeyTile(32, 4, 5)
    fits = (each for each in tiles if needed(rows, each.keys, each.stages - 1, dim + v_dim, dtype, card, kept) <= card.shared)
    return next(fits, None)


@functools.cache
def head_split(queries: int, group: int, dim: int) -> int:
    """Programs among which the ``group`` query heads of a KV head are divided: a program's sums, rows times ``dim``, stay in registers."""
    split = 1
    while dim > 256 and queries * (group // split) > MOST_WIDE_ROWS and group % (2 * split) == 0:
        split *= 2
    return split


@functools.cache
def prompt_tile(group: int, dim: int, v_dim: int, dtype: torch.dtype, card: Card, kept: torch.dtype | None = None) -> PromptTile | None:
    """The tile for ``group`` query heads of a KV head, or None where none fits the card. Float32 has no tensor cores: small tiles."""
    if dtype == torch.float32:
        tiles = [PromptTile(16, 16, 4, 2)]
    elif max(dim, v_dim) > 256:
        tiles = [PromptTile(64, 32, 8, 2), PromptTile(32, 32, 4, 2), PromptTile(16, 32, 4, 2), PromptTile(16, 16, 4, 2)]
    else:
        tiles = [PromptTile(128, 64, 8, 2), PromptTile(64, 64, 4, 2), PromptTile(64, 32, 4, 2), PromptTile(16, 32, 4, 2)]
    fits = (each for each in tiles if needed(max(each.rows, group), each.keys, each.stages, dim + v_dim, dtype, card, kept) <= card.shared)
    return next(fits, None)


def smaller_than_measured(dims: tuple[int, ...], dtype: torch.dtype, card: Card) -> str | None:
    """For the log: which of prefill's tiles on this card are not those that were measured, or None."""
    said = []
    for dim in dims:
        tile = prompt_tile(1, dim, dim, dtype, card)
        if tile is not None and tile != prompt_tile(1, dim, dim, dtype, HOPPER):
            said.append(f"{tile.rows} x {tile.keys} at head_dim {dim}")
    return f"tiles for {card.shared:,} bytes of shared memory, not measured: {', '.join(said)}" if said else None
