"""Tiles of the attention kernels, measured on an H200; GPUs with less shared memory get the largest that fits."""

import functools
from dataclasses import dataclass

import torch

from sglang_gemma4.kernels.card import HOPPER, Card

FEW_ROWS = 32
"""Most rows of a tile that loads more blocks of keys ahead, on GPUs with Hopper's shared memory."""
MOST_WIDE_ROWS = 16
"""Most rows of a program for heads of more than 256 dimensions: the sums of 64 rows do not fit the registers. With
heads divided in four, a full layer of 12B's verify step takes 14 µs instead of 38. 26B-A4B, E2B and 31B gain about
30 % (``runs/2026-11-30-12b-h200-steps``)."""
SMALL = 1024
"""Bytes of shared memory for slots, maxima and sums, in addition to a tile's blocks."""


@dataclass(frozen=True)
class KeyTile:
    """Tile of a ``few_query_attention`` program: keys per block, warps, blocks loaded ahead, fewest padded rows.

    From 64 rows on, Hopper's matrix instructions read queries from shared memory; below, every warp holds its own in
    registers.
    """

    keys: int
    warps: int
    stages: int
    rows: int = 16


@dataclass(frozen=True)
class PromptTile:
    """Tile of a ``prefill_attention`` program: tokens x heads per KV head, keys per block, warps, blocks loaded ahead."""

    rows: int
    keys: int
    warps: int
    stages: int


def needed(rows: int, keys: int, stages: int, dims: int, dtype: torch.dtype, card: Card, kept: torch.dtype | None = None) -> int:
    """Most bytes of shared memory that a program takes: queries, blocks of keys and values, and a block of weights.

    Args:
        rows: padded rows of the tile.
        stages: blocks loaded ahead, including the one in use.
        dims: dimensions of a head's key plus those of its value.
        kept: element type of the KV cache if it is not ``dtype``: the block in use is then also held converted.
    """
    held = card.holds and rows >= 64 and dtype != torch.float32  # float32 has no matrix instructions
    blocks = stages if held else max(1, stages - 1)
    itemsize: int = dtype.itemsize
    if kept is None or kept == dtype:
        return (rows * dims // 2 + blocks * keys * dims + rows * keys) * itemsize + SMALL
    kept_size: int = kept.itemsize
    return (rows * dims // 2 + keys * dims + rows * keys) * itemsize + stages * keys * dims * kept_size + SMALL


@functools.cache
def key_tile(rows: int, dim: int, v_dim: int, dtype: torch.dtype, card: Card, kept: torch.dtype | None = None) -> KeyTile | None:
    """The tile for this many rows and these head dimensions, or None if none fits the GPU.

    On an H200 the first of ``tiles`` was the fastest of 7 nearly everywhere (runs/2026-11-22-kernel-times). With few
    rows, four blocks of 32 keys ahead were faster still (runs/2026-11-26-attention-parts; int8 keys:
    runs/2026-11-26-int8-words).
    """
    # Slots are loaded one block ahead of their keys and values, so they take one stage.
    tiles = [KeyTile(keys, 4, 3) for keys in ((32, 16) if max(dim, v_dim) > 256 else (64, 32, 16))]
    measured = dtype != torch.float32 and kept in (None, dtype, torch.int8)
    if measured and max(dim, v_dim) == 256 and rows <= FEW_ROWS and card.shared >= HOPPER.shared:
        return KeyTile(32, 4, 5)
    fits = (each for each in tiles if needed(rows, each.keys, each.stages - 1, dim + v_dim, dtype, card, kept) <= card.shared)
    return next(fits, None)


@functools.cache
def head_split(queries: int, group: int, dim: int) -> int:
    """Programs that share the ``group`` query heads of a KV head, so that a program's sums stay in registers."""
    split = 1
    while dim > 256 and queries * (group // split) > MOST_WIDE_ROWS and group % (2 * split) == 0:
        split *= 2
    return split


@functools.cache
def prompt_tile(group: int, dim: int, v_dim: int, dtype: torch.dtype, card: Card, kept: torch.dtype | None = None) -> PromptTile | None:
    """The tile for ``group`` query heads per KV head, or None if none fits. float32, without tensor cores, gets small ones."""
    if dtype == torch.float32:
        tiles = [PromptTile(16, 16, 4, 2)]
    elif max(dim, v_dim) > 256:
        tiles = [PromptTile(64, 32, 8, 2), PromptTile(32, 32, 4, 2), PromptTile(16, 32, 4, 2), PromptTile(16, 16, 4, 2)]
    else:
        tiles = [PromptTile(128, 64, 8, 2), PromptTile(64, 64, 4, 2), PromptTile(64, 32, 4, 2), PromptTile(16, 32, 4, 2)]
    fits = (each for each in tiles if needed(max(each.rows, group), each.keys, each.stages, dim + v_dim, dtype, card, kept) <= card.shared)
    return next(fits, None)


def smaller_than_measured(dims: tuple[int, ...], dtype: torch.dtype, card: Card) -> str | None:
    """Log text: the prefill tiles on this GPU that differ from the measured ones, or None."""
    said = []
    for dim in dims:
        tile = prompt_tile(1, dim, dim, dtype, card)
        if tile is not None and tile != prompt_tile(1, dim, dim, dtype, HOPPER):
            said.append(f"{tile.rows} x {tile.keys} at head_dim {dim}")
    return f"tiles for {card.shared:,} bytes of shared memory, not measured: {', '.join(said)}" if said else None
