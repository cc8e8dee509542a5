"""The token with the largest logit, without logits in memory: LM head and argmax in one pass over the head's weight.

Each program takes a range of the vocabulary and keeps, for every row of hidden states, the largest score so far and
its token; a second kernel joins the programs' pairs. So a few bytes are written per program and row, not a row of the
vocabulary's width.

A *pair* is a row's largest score and its token, both float32 (which holds every token below 2**24 exactly). So one
tensor ``[parts, 2, rows]`` carries them, also from other ranks that hold other ranges of the vocabulary.

Of equal scores the lower token wins. Scores are first rounded to the weight's dtype, like logits written to memory,
so that a bfloat16 head has the same ties. The soft-cap is not applied, since it is monotone. Only float32 scores that
it maps to one value could tie under it: those one ulp apart, or both beyond eight times the cap. NaN never wins.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.card import Card, card, multiprocessors, reason_against_card
from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.matrices import reason_against_rows

MOST_ROWS = 128
MOST_TOKENS = 1 << 24


@dataclass(frozen=True)
class Tile:
    """Tile of a program: tokens and hidden columns per block, warps, blocks loaded ahead, and programs per SM."""

    tokens: int
    columns: int
    warps: int
    stages: int
    programs: int


def tile_for(rows: int, dtype: torch.dtype, card: Card) -> Tile:
    """The tile for this many rows: if registers allow, two programs share an SM and one loads while the other reduces."""
    if dtype == torch.float32:
        return Tile(64, 32, 4, 2, 2)
    if rows <= 32:
        return Tile(64, 128, 4, 4, 2)
    tile = Tile(128, 64, 8, 5, 1)
    ahead = tile.stages if card.holds else tile.stages - 1
    fits = ahead * (tile.tokens + MOST_ROWS) * tile.columns * dtype.itemsize <= card.shared
    return tile if rows > 64 and fits else Tile(128, 64, 8, 3, 2)


def head_argmax_reference(
    hidden: torch.Tensor, weight: torch.Tensor, *, vocabulary: int | None = None, first_token: int = 0, rounded: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`head_argmax` computes, through float32 logits."""
    scores = hidden.float() @ weight[:vocabulary].float().T
    if rounded:
        scores = scores.to(weight.dtype).float()
    scores = scores.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    tokens = scores.argmax(-1)
    return tokens + first_token, torch.stack([scores.gather(1, tokens[:, None]).view(-1), (tokens + first_token).float()])


@triton.jit(do_not_specialize=["rows"])
def _head_argmax_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr,  # [rows, width]
    weight_ptr,  # [tokens, width]
    pairs_ptr,  # [programs, 2, rows] float32
    rows,
    vocabulary,
    first_token,
    share,
    hidden_stride,
    weight_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # rows, padded
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROUND: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    begin = program * share
    end = tl.minimum(begin + share, vocabulary)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    best_token = tl.zeros([ROWS], tl.int32) + begin
    hidden_pointers = hidden_ptr + row[None, :].to(tl.int64) * hidden_stride + column[:, None]  # [columns, rows]
    await_inputs(PDL)
    for start in range(begin, end, TOKENS):
        token = start + tl.arange(0, TOKENS)
        inside = token < end
        weight_pointers = weight_ptr + token[:, None].to(tl.int64) * weight_stride + column[None, :]
        scores = tl.zeros([TOKENS, ROWS], tl.float32)
        for offset in range(0, WIDTH, COLUMNS):
            if WIDTH % COLUMNS == 0:
                weights = tl.load(weight_pointers + offset, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
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
        found = tl.min(tl.where(scores == top[None, :], token[:, None], 2147483647), 0)
        best_token = tl.where(top > best, found, best_token)
        best = tl.maximum(top, best)
    place = pairs_ptr + program.to(tl.int64) * 2 * rows + row
    tl.store(place, best, mask=row < rows)
    tl.store(place + rows, (best_token + first_token).to(tl.float32), mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _join_kernel(  # type: ignore[no-untyped-def]
    pairs_ptr,  # [parts, 2, rows] float32
    tokens_ptr,  # [rows] int64
    best_ptr,  # [2, rows] float32
    parts,
    rows,
    BLOCK: tl.constexpr,  # parts, padded
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    place = pairs_ptr + part.to(tl.int64) * 2 * rows + row
    scores = tl.load(place, mask=part < parts, other=float("-inf"))
    tokens = tl.load(place + rows, mask=part < parts, other=float("inf"))
    top = tl.max(scores, 0)
    token = tl.min(tl.where(scores == top, tokens, float("inf")), 0)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(best_ptr + row, top)
    tl.store(best_ptr + rows + row, token)


def join_pairs(pairs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's best pair, for contiguous float32 ``pairs`` ``[parts, 2, rows]``: tokens ``[rows]`` int64, pairs ``[2, rows]``."""
    parts, _, rows = pairs.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=pairs.device)
    best = torch.empty((2, rows), dtype=torch.float32, device=pairs.device)
    if rows:
        _join_kernel[(rows,)](
            pairs, tokens, best, parts, rows, BLOCK=triton.next_power_of_2(parts), num_warps=4, **launch_options(pairs.device)
        )
    return tokens, best


def head_argmax(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    *,
    vocabulary: int | None = None,
    first_token: int = 0,
    rounded: bool = True,
    tile: Tile | None = None,
    programs: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens ``[rows]`` int64 with the largest logit, and their pairs ``[2, rows]`` float32; the host does not wait.

    Args:
        hidden: ``[rows, width]``, up to :data:`MOST_ROWS` rows; float32, bfloat16 or float16.
        weight: ``[tokens, width]`` of the same dtype: the head, or a rank's range of it.
        vocabulary: rows of ``weight`` that are tokens; the rest is padding and never wins. None: all.
        first_token: token of the first row of ``weight``.
        rounded: compare scores as they would be stored in the weight's dtype; False: as float32.
        tile: None: chosen by :func:`tile_for`.
        programs: ranges the vocabulary is cut into; None: by the GPU.

    Raises:
        ValueError: tensors that the kernel does not take.
    """
    reason = reason_against(hidden, weight, vocabulary)
    if reason:
        raise ValueError(reason)
    rows, width = hidden.shape
    vocabulary = weight.shape[0] if vocabulary is None else vocabulary
    tile = tile or tile_for(rows, weight.dtype, card(hidden.device))
    if programs is None:
        programs = multiprocessors(hidden.device, elsewhere=2) * tile.programs
    share = -(-vocabulary // programs)
    share = -(-share // 8) * 8  # ranges of about as many bytes; a range need not be whole blocks
    programs = -(-vocabulary // share)
    pairs = torch.empty((programs, 2, rows), dtype=torch.float32, device=hidden.device)
    if rows:
        _head_argmax_kernel[(programs,)](
            hidden, weight, pairs, rows, vocabulary, first_token, share, hidden.stride(0), weight.stride(0),
            WIDTH=width, ROWS=max(16, triton.next_power_of_2(rows)), TOKENS=tile.tokens, COLUMNS=tile.columns,
            ROUND=rounded and weight.dtype != torch.float32, PRECISION="ieee" if weight.dtype == torch.float32 else "tf32",
            num_warps=tile.warps, num_stages=tile.stages, **launch_options(hidden.device),
        )  # fmt: skip
    return join_pairs(pairs)


def reason_against(hidden: torch.Tensor, weight: torch.Tensor, vocabulary: int | None = None) -> str | None:
    """Why the kernel does not take these tensors, or None."""
    if reason := reason_against_rows(hidden=hidden, weight=weight):
        return reason
    if hidden.shape[1] != weight.shape[1]:
        return f"hidden states {tuple(hidden.shape)} and a head {tuple(weight.shape)} do not fit"
    if hidden.shape[0] > MOST_ROWS:
        return f"{hidden.shape[0]} rows; up to {MOST_ROWS} are supported"
    tokens = weight.shape[0] if vocabulary is None else vocabulary
    if not 0 < tokens <= min(weight.shape[0], MOST_TOKENS):
        return f"{tokens} tokens of a head of {weight.shape[0]}; 1 to the head's rows, up to {MOST_TOKENS}, are supported"
    return reason_against_card(hidden.device)
