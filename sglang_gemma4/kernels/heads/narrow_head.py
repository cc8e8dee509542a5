"""The token of :func:`~.head_argmax.head_argmax` for half the bytes: an int8 copy of the head is read, the weight only where it may matter.

A token's row W of the head is kept as W = s q + r: whole numbers q of a byte, a scale s, and a bound e of r's norm. A row of hidden states
is split likewise, h = a high + b low + rest, so that products of bytes and integer sums give a score, whose distance from what
``head_argmax`` compares is at most

    e |h| + 127 s (sum of \\|rest\\|) + c |W| |h|

(W and h here are divided and multiplied, column by column, by powers of two, which changes no product: ``NarrowHead.columns``.)
The first two are Cauchy's and the triangle inequality. The last is for float32: that ``head_argmax`` adds ``width`` products in whatever
order, each addition off by no more than 2**-22 of what it adds (a tensor core cuts bits off), and for the few operations here. ``e`` and
|W| are computed in float64, and all is rounded up.

So each block of tokens has a score that it cannot exceed, each row of hidden states a score that some token reaches at least. A block that
reaches it for no row, less what rounding to the weight's dtype may hide, has no row's token; the others are scored from the weight as
``head_argmax`` does it: with its columns a step, rounding and ties. Found are its tokens and pairs bit for bit where the compiler adds in
the same order in both kernels, and else a token that another order of its own float32 sum could give.

As there, NaN never wins. A row of hidden states with NaN has NaN scores only: nothing is rescored for it, and its token is the first. One
with infinity, or beyond 2**60, is scored from the whole weight, as are blocks with a token whose weights are so. A row of zeros has ties
only: its blocks are ranked by their place.
"""

import math

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.card import card, multiprocessors
from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.heads import head_argmax as exact
from sglang_gemma4.kernels.heads.head_argmax import Tile, join_pairs
from sglang_gemma4.kernels.heads.narrow_scan import TINY, NarrowHead, scan, tile_for

MOST_ROWS = 32
"""Of hidden states. With more, most blocks may hold some row's token, and the products take longer than the bytes."""
MOST_WIDTH = 16_384
CAPABILITY = (8, 0)
"""The least of a card, for products of bytes."""
NUMBERS = 16
"""The most blocks that a program of the second pass looks after."""


def narrow_argmax_reference(
    hidden: torch.Tensor, weight: torch.Tensor, *, vocabulary: int | None = None, first_token: int = 0, rounded: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`narrow_argmax` computes, for which it reads the copy: the same as :func:`~.head_argmax.head_argmax`."""
    return exact.head_argmax_reference(hidden, weight, vocabulary=vocabulary, first_token=first_token, rounded=rounded)


@triton.jit(do_not_specialize=["rows"])
def _rescore_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr,  # [rows, width]
    weight_ptr,  # [tokens, width]
    upper_ptr,  # [parts, blocks, rows] float32
    lower_ptr,  # [parts, rows] float32
    pairs_ptr,  # [programs, 2, rows] float32
    rows,
    vocabulary,
    first_token,
    share,
    blocks,
    parts,
    hidden_stride,
    weight_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # rows, padded
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUMBERS: tl.constexpr,  # blocks of a program, padded
    PARTS: tl.constexpr,  # parts that are read at a time
    MARGIN: tl.constexpr,  # what rounding may hide, relative
    HIGHEST: tl.constexpr,  # above it scores are rounded to infinity
    NEAREST: tl.constexpr,  # what rounding may hide near zero
    ROUND: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    hidden_pointers = hidden_ptr + row[None, :].to(tl.int64) * hidden_stride + column[:, None]  # [columns, rows]
    await_inputs(PDL)
    reached = tl.full([ROWS], float("-inf"), tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        there = (part < parts)[:, None] & (row < rows)[None, :]
        found = tl.load(lower_ptr + part[:, None].to(tl.int64) * rows + row[None, :], mask=there, other=float("-inf"))
        reached = tl.maximum(reached, tl.max(found, 0))
    least = tl.minimum(tl.where(reached > float("-inf"), reached, 0.0), HIGHEST)
    least = tl.where(reached > float("-inf"), least - (tl.abs(least) * MARGIN + NEAREST), float("-inf"))
    # All that this program may have to score is one load away: its blocks' bits in a number.
    number = tl.arange(0, NUMBERS)
    block = program + number * tl.num_programs(0)
    exists = (block < parts * blocks) & ((block // blocks) * share + (block % blocks) * TOKENS < vocabulary)
    above = tl.load(
        upper_ptr + block[:, None].to(tl.int64) * rows + row[None, :],
        mask=exists[:, None] & (row < rows)[None, :],
        other=float("-inf"),
    )
    wanted = tl.max(((above >= least[None, :]) & (above > float("-inf"))).to(tl.int32), 1)
    bits = tl.sum(wanted << number, 0)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    best_token = tl.zeros([ROWS], tl.int32)
    for turn in range(NUMBERS):
        if (bits >> turn) & 1:
            which = program + turn * tl.num_programs(0)
            start = (which // blocks) * share + (which % blocks) * TOKENS
            end = tl.minimum((which // blocks + 1) * share, vocabulary)
            token = start + tl.arange(0, TOKENS)
            inside = token < end
            weight_pointers = weight_ptr + token[:, None].to(tl.int64) * weight_stride + column[None, :]
            scores = tl.zeros([TOKENS, ROWS], tl.float32)
            for offset in range(0, WIDTH, COLUMNS):
                if WIDTH % COLUMNS == 0:
                    weights = tl.load(weight_pointers + offset, mask=inside[:, None], other=0.0)
                    states = tl.load(hidden_pointers + offset, mask=row[None, :] < rows, other=0.0)
                else:
                    real = offset + column < WIDTH
                    weights = tl.load(weight_pointers + offset, mask=inside[:, None] & real[None, :], other=0.0)
                    states = tl.load(hidden_pointers + offset, mask=(row[None, :] < rows) & real[:, None], other=0.0)
                scores = tl.dot(weights, states, scores, input_precision=PRECISION)
            if ROUND:
                scores = scores.to(weight_ptr.dtype.element_ty).to(tl.float32)
            scores = tl.where(inside[:, None] & (scores == scores), scores, float("-inf"))
            top = tl.max(scores, 0)
            found_token = tl.min(tl.where(scores == top[None, :], token[:, None], 2147483647), 0)
            best_token = tl.where(top > best, found_token, best_token)
            best = tl.maximum(top, best)
    place = pairs_ptr + program.to(tl.int64) * 2 * rows + row
    tl.store(place, best, mask=row < rows)
    tl.store(place + rows, (best_token + first_token).to(tl.float32), mask=row < rows)


def rounding(dtype: torch.dtype, rounded: bool) -> tuple[float, float, float]:
    """How far apart two numbers may be that are rounded to one: relative, then near zero; between them, beyond which all are one."""
    if not rounded or dtype == torch.float32:
        return 0.0, math.inf, TINY.value
    kind = torch.finfo(dtype)
    return 1.01 * kind.eps, kind.max, max(TINY.value, kind.smallest_normal * kind.eps)


def narrow_argmax(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    copy: NarrowHead,
    *,
    vocabulary: int | None = None,
    first_token: int = 0,
    rounded: bool = True,
    tile: Tile | None = None,
    programs: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`~.head_argmax.head_argmax`, whose arguments it has beside a ``copy`` of ``weight``. The host waits for nothing.

    Args:
        hidden: ``[rows, width]``, up to :data:`MOST_ROWS` rows.
        copy: of this weight as it is now: another one's may hide a row's token, though none that is no token comes of it.
        tile: of the pass over the copy; None: :func:`tile_for` the rows.

    Returns:
        Tokens ``[rows]`` int64 and their pairs ``[2, rows]`` float32.

    Raises:
        ValueError: tensors that the kernels do not take.
    """
    reason = reason_against(hidden, weight, copy, vocabulary)
    if reason:
        raise ValueError(reason)
    rows, width = hidden.shape
    vocabulary = weight.shape[0] if vocabulary is None else vocabulary
    device = hidden.device
    tile = tile or tile_for(rows, card(device))
    found = scan(hidden, copy, vocabulary, tile, programs)
    parts, blocks, _ = found.upper.shape
    wide = exact.tile_for(rows, weight.dtype, card(device))
    programs = max(min(parts * blocks, multiprocessors(device, elsewhere=2) * wide.programs), -(-parts * blocks // NUMBERS))
    pairs = torch.empty((programs, 2, rows), dtype=torch.float32, device=device)
    if rows:
        padded = max(16, triton.next_power_of_2(rows))
        margin, highest, nearest = rounding(weight.dtype, rounded)
        _rescore_kernel[(programs,)](
            hidden, weight, found.upper, found.lower, pairs, rows, vocabulary, first_token, found.share, blocks, parts,
            hidden.stride(0), weight.stride(0),
            WIDTH=width, ROWS=padded, TOKENS=found.block, COLUMNS=wide.columns,
            NUMBERS=triton.next_power_of_2(-(-parts * blocks // programs)), PARTS=4096 // padded,
            MARGIN=margin, HIGHEST=highest, NEAREST=nearest,
            ROUND=rounded and weight.dtype != torch.float32, PRECISION="ieee" if weight.dtype == torch.float32 else "tf32",
            num_warps=wide.warps, num_stages=wide.stages, **launch_options(device),
        )  # fmt: skip
    return join_pairs(pairs)


def reason_against(hidden: torch.Tensor, weight: torch.Tensor, copy: NarrowHead, vocabulary: int | None = None) -> str | None:
    """Why the kernels do not take these tensors, or None."""
    if hidden.dim() == 2 and hidden.shape[0] > MOST_ROWS:
        return f"more than {MOST_ROWS} rows"
    if reason := exact.reason_against(hidden, weight, vocabulary) or reason_against_head(weight):
        return reason
    if copy.levels.shape != weight.shape or copy.levels.device != weight.device:
        return f"the copy is of a head {tuple(copy.levels.shape)} on {copy.levels.device}, not of {tuple(weight.shape)} on {weight.device}"
    return None


def reason_against_head(weight: torch.Tensor) -> str | None:
    """Why a head is not scanned as a copy, or None."""
    if weight.shape[1] > MOST_WIDTH:
        return f"a head {weight.shape[1]} wide; up to {MOST_WIDTH} are supported"
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device) < CAPABILITY:
        return f"the card's compute capability is below {CAPABILITY[0]}.{CAPABILITY[1]}, the least for products of bytes"
    return None
