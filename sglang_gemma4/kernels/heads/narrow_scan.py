"""The int8 copy of a head, and the pass over it: what no token of a block exceeds, what some token reaches (``narrow_head.py``: why)."""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.card import Card, multiprocessors
from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.heads.head_argmax import Tile

BLOCK = 64
"""Tokens that are scored from the weight together, as ``head_argmax`` does with as many rows."""
LARGEST = tl.constexpr(2.0**60)
"""Neither weights nor hidden states beyond it have a bound: no sum of the others' products overflows."""
LEAST = tl.constexpr(2.0**-100)
"""The largest of a row is not split if it is below, where scales would be subnormal numbers."""
TINY = tl.constexpr(1e-24)
"""Part of each bound, for products that vanish."""
WIDER = tl.constexpr(1 + 2.0**-10)
"""A bound's factor, for the roundings of its own arithmetic."""
POWERS = 8
"""The most doublings or halvings of a column."""
CHUNK = 1 << 22
"""Numbers of the head that are in float64 at a time while a copy is made."""


@dataclass(frozen=True)
class NarrowHead:
    """A head's copy: ``levels`` ``[tokens, width]`` int8; ``scale`` and ``error`` ``[tokens]`` float32, s and e + c |W| above.

    They are of the weight divided by ``columns`` ``[width]`` float32, powers of two, by which hidden states are multiplied: a few large
    columns would else set all scales, and with them how many blocks stay open. No product changes by it.
    """

    levels: torch.Tensor
    scale: torch.Tensor
    error: torch.Tensor
    columns: torch.Tensor

    @classmethod
    def make(cls, weight: torch.Tensor) -> "NarrowHead":
        """The copy of a weight ``[tokens, width]``."""
        tokens, width = weight.shape
        with torch.inference_mode(False):  # else no update outside of that mode could write it
            made = cls(
                torch.empty((tokens, width), dtype=torch.int8, device=weight.device),
                *(torch.empty(size, dtype=torch.float32, device=weight.device) for size in (tokens, tokens, width)),
            )
        made.renew(weight)
        return made

    @torch.no_grad()
    def renew(self, weight: torch.Tensor) -> None:
        """Copy a weight again, in place: graphs have the addresses.

        Raises:
            ValueError: it has another shape.
        """
        if weight.shape != self.levels.shape:
            raise ValueError(f"the copy is of a head {tuple(self.levels.shape)}, and this is one of {tuple(weight.shape)}")
        width = weight.shape[1]
        rounding = (width + 16) * 2.0**-22
        parts = [slice(part, part + max(1, CHUNK // width)) for part in range(0, weight.shape[0], max(1, CHUNK // width))]
        self.columns.copy_(_powers_of_columns(weight, parts))
        for some in parts:
            values = weight[some].double() / self.columns
            norm = torch.linalg.vector_norm(values, dim=1)
            bounded = norm < LARGEST.value  # not NaN either
            values.masked_fill_(~bounded[:, None], 0.0)
            scale = (values.abs().amax(1) / 127).float()
            scale.masked_fill_(scale < LEAST.value, 0.0)
            steps = scale.double()[:, None]
            levels = (values / torch.where(steps > 0, steps, 1.0)).round_().clamp_(-127, 127)
            levels.masked_fill_(steps == 0, 0.0)
            error = (torch.linalg.vector_norm(values - steps * levels, dim=1) + rounding * norm) * WIDER.value
            self.levels[some] = levels.to(torch.int8)
            self.scale[some] = scale
            self.error[some] = error.masked_fill_(~bounded, math.inf).float()

    @property
    def bytes(self) -> int:
        """What it takes."""
        return sum(each.numel() * each.itemsize for each in (self.levels, self.scale, self.error, self.columns))


def _powers_of_columns(weight: torch.Tensor, parts: list[slice]) -> torch.Tensor:
    """For each column the power of two nearest to its root mean square, that of all being 1, ``[width]`` float64; of rows with a bound."""
    squares = torch.zeros(weight.shape[1], dtype=torch.float64, device=weight.device)
    for some in parts:
        values = weight[some].double()
        bounded = torch.linalg.vector_norm(values, dim=1) < LARGEST.value  # not NaN either
        squares += values.masked_fill_(~bounded[:, None], 0.0).square().sum(0)
    powers = (squares / squares.mean().clamp_min(1e-300)).sqrt().log2().round_().clamp_(-POWERS, POWERS)
    return torch.where(squares > 0, powers, 0.0).exp2()


def tile_for(rows: int, card: Card) -> Tile:
    """The tile of the pass over the copy.

    About as many bytes ahead as ``head_argmax`` has of the weight. Each block of tokens reads the states again, two bytes a row and column,
    so that blocks are larger where rows are many.
    """
    roomy = card.shared > 200_000
    if rows <= 16:
        return Tile(64, 256 if roomy else 128, 4, 4, 2)
    return Tile(128, 128, 8, 5 if roomy else 3, 1)


@triton.jit(do_not_specialize=["rows"])
def _split_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr,  # [rows, width]
    columns_ptr,  # [width] float32
    states_ptr,  # [2, rows, width] int8: high, low
    terms_ptr,  # [4, rows] float32: a, b, |h|, 127 (sum of |rest|)
    rows,
    hidden_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,  # width, padded
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    real = column < WIDTH
    await_inputs(PDL)
    states = tl.load(hidden_ptr + row * hidden_stride + column, mask=real, other=0.0).to(tl.float32)
    states *= tl.load(columns_ptr + column, mask=real, other=1.0)
    size = tl.abs(states)
    largest = tl.max(size, 0)
    strange = tl.sum((states != states).to(tl.int32), 0) > 0
    split = (largest > LEAST) & (largest < LARGEST) & (strange == 0)
    coarse = tl.where(split, largest / 127, 0.0)
    fine = coarse / 254
    # Any whole numbers would do, the rest is what they leave; so nothing depends on how a division rounds.
    high = tl.where(split, tl.floor(states / tl.where(split, coarse, 1.0) + 0.5), 0.0)
    high = tl.minimum(tl.maximum(high, -127.0), 127.0)
    rest = states - coarse * high
    low = tl.where(split, tl.floor(rest / tl.where(split, fine, 1.0) + 0.5), 0.0)
    low = tl.minimum(tl.maximum(low, -127.0), 127.0)
    rest = rest - fine * low
    left = 127 * (tl.sum(tl.abs(rest), 0) + tl.sum(size, 0) * 4.76837158203125e-07)  # 2**-22: of the two differences
    ratio = states / tl.where(largest > 0, largest, 1.0)  # no square vanishes or overflows
    norm = largest * tl.sqrt(tl.sum(ratio * ratio, 0)) * WIDER
    norm = tl.where(largest < LARGEST, norm, float("inf"))
    norm = tl.where(strange, float("nan"), norm)
    place = states_ptr + row * WIDTH + column
    tl.store(place, high.to(tl.int8), mask=real)
    tl.store(place + rows.to(tl.int64) * WIDTH, low.to(tl.int8), mask=real)
    tl.store(terms_ptr + row, coarse)
    tl.store(terms_ptr + rows + row, fine)
    tl.store(terms_ptr + 2 * rows + row, norm)
    tl.store(terms_ptr + 3 * rows + row, left * WIDER)


@triton.jit(do_not_specialize=["rows"])
def _scan_kernel(  # type: ignore[no-untyped-def]
    states_ptr,  # [2, rows, width] int8
    terms_ptr,  # [4, rows] float32
    levels_ptr,  # [tokens, width] int8
    scale_ptr,  # [tokens] float32
    error_ptr,  # [tokens] float32
    upper_ptr,  # [programs, blocks, rows] float32: what no token of the block exceeds
    lower_ptr,  # [programs, rows] float32: what some token of the program reaches
    rows,
    vocabulary,
    share,
    blocks,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # rows, padded
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,  # tokens of a block, some of which are scored at a time
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    begin = program * share
    end = tl.minimum(begin + share, vocabulary)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    both = tl.arange(0, 2 * ROWS)  # a row's high and low states side by side, so that their sums are in the same thread
    given = both // 2 < rows
    state_row = (both % 2) * rows + both // 2
    state_pointers = states_ptr + state_row[None, :].to(tl.int64) * WIDTH + column[:, None]  # [columns, 2 rows]
    await_inputs(PDL)
    coarse = tl.load(terms_ptr + row, mask=row < rows, other=0.0)[None, :]
    fine = tl.load(terms_ptr + rows + row, mask=row < rows, other=0.0)[None, :]
    norm = tl.load(terms_ptr + 2 * rows + row, mask=row < rows, other=1.0)[None, :]
    left = tl.load(terms_ptr + 3 * rows + row, mask=row < rows, other=0.0)[None, :]
    reached = tl.full([TOKENS, ROWS], float("-inf"), tl.float32)
    for start in range(begin, end, TOKENS):  # not flattened: at 32 rows that takes 4 to 13 % longer, at one as long
        token = start + tl.arange(0, TOKENS)
        inside = token < end
        level_pointers = levels_ptr + token[:, None].to(tl.int64) * WIDTH + column[None, :]
        sums = tl.zeros([TOKENS, 2 * ROWS], tl.int32)
        for offset in range(0, WIDTH, COLUMNS):
            if WIDTH % COLUMNS == 0:
                levels = tl.load(level_pointers + offset, mask=inside[:, None], other=0, eviction_policy="evict_first")
                states = tl.load(state_pointers + offset, mask=given[None, :], other=0)
            else:
                real = offset + column < WIDTH
                levels = tl.load(level_pointers + offset, mask=inside[:, None] & real[None, :], other=0)
                states = tl.load(state_pointers + offset, mask=given[None, :] & real[:, None], other=0)
            sums = tl.dot(levels, states, sums, out_dtype=tl.int32)
        scale = tl.load(scale_ptr + token, mask=inside, other=0.0)[:, None]
        error = tl.load(error_ptr + token, mask=inside, other=0.0)[:, None]
        high, low = tl.split(tl.reshape(sums, [TOKENS, ROWS, 2]))
        scores = scale * (coarse * high.to(tl.float32) + fine * low.to(tl.float32))
        block = (token - begin) // BLOCK
        scores = tl.where(norm == 0, -(program * blocks + block).to(tl.float32)[:, None], scores)
        slack = error * norm + scale * left + TINY
        above, below = scores + slack, scores - slack
        above = tl.where(above == above, above, float("inf"))
        above = tl.where(inside[:, None] & (norm == norm), above, float("-inf"))
        below = tl.where(inside[:, None] & (below < float("inf")), below, float("-inf"))
        block = (start - begin) // BLOCK + tl.arange(0, TOKENS // BLOCK)
        tl.store(
            upper_ptr + (program * blocks + block)[:, None].to(tl.int64) * rows + row[None, :],
            tl.max(tl.reshape(above, [TOKENS // BLOCK, BLOCK, ROWS]), 1),
            mask=(block < blocks)[:, None] & (row < rows)[None, :],
        )
        reached = tl.maximum(reached, below)
    tl.store(lower_ptr + program.to(tl.int64) * rows + row, tl.max(reached, 0), mask=row < rows)


@dataclass(frozen=True)
class Scan:
    """What the copy told: ``upper`` ``[programs, blocks, rows]`` and ``lower`` ``[programs, rows]``.

    Block j of program p has the tokens from p ``share`` + j ``block``. Blocks without any are not written.
    """

    upper: torch.Tensor
    lower: torch.Tensor
    share: int
    block: int


def scan(hidden: torch.Tensor, copy: NarrowHead, vocabulary: int, tile: Tile, programs: int | None = None) -> Scan:
    """The first pass, over the copy."""
    rows, width = hidden.shape
    device = hidden.device
    if programs is None:
        programs = multiprocessors(device, elsewhere=2) * tile.programs
    share = -(-vocabulary // programs)
    share = -(-share // 8) * 8
    block = min(tile.tokens, BLOCK)
    programs, blocks = -(-vocabulary // share), -(-share // block)
    states = torch.empty((2, rows, width), dtype=torch.int8, device=device)
    terms = torch.empty((4, rows), dtype=torch.float32, device=device)
    upper = torch.empty((programs, blocks, rows), dtype=torch.float32, device=device)
    lower = torch.empty((programs, rows), dtype=torch.float32, device=device)
    if rows:
        options = launch_options(device)
        padded = triton.next_power_of_2(width)
        warps = 4 if padded <= 2048 else 8
        _split_kernel[(rows,)](
            hidden, copy.columns, states, terms, rows, hidden.stride(0), WIDTH=width, BLOCK=padded, num_warps=warps, **options
        )
        _scan_kernel[(programs,)](
            states, terms, copy.levels, copy.scale, copy.error, upper, lower, rows, vocabulary, share, blocks,
            WIDTH=width, ROWS=max(16, triton.next_power_of_2(rows)), TOKENS=tile.tokens, COLUMNS=tile.columns, BLOCK=block,
            num_warps=tile.warps, num_stages=tile.stages, **options,
        )  # fmt: skip
    return Scan(upper, lower, share, block)
