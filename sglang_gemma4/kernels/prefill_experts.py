"""A MoE layer of a prefill chunk in three launches after the rows lie in blocks: gate and up with the activation, down, sum.

An expert has tens to thousands of rows here, so arithmetic and the way to it bind both products, not reading the weights. Gate and up are
one product of twice the columns; its result lies in the order of the blocks, so that the second product loads it, and either product its
weights, through tensor descriptors (Hopper's TMA). Of an expert's last block, half is computed where at most half its places are taken.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from sglang_gemma4.kernels.dependent_launch import CAPABILITY, await_inputs, launch_options
from sglang_gemma4.kernels.expert_blocks import Blocks, expert_blocks
from sglang_gemma4.kernels.gated_experts import reason_against
from sglang_gemma4.kernels.grouped_experts import sum_of_rows

ALIGNMENT = 16
"""Bytes that a descriptor wants a tensor's start and its strides to be multiples of."""
HALVED_FROM = 128
"""Rows a block from which half a block is computed where that does: Hopper's matrix instruction takes 64 rows."""
SUM_COLUMNS = 1024


@dataclass(frozen=True)
class PrefillTile:
    """How a program works: output columns (of gate and of up each), inner columns at a time, warps, and steps loaded ahead.

    ``group`` blocks of rows take each column tile in turn before the next blocks come; 1: a block takes all columns first. ``programs``
    on each multiprocessor walk over all tiles; 0: each tile is a program. ``ahead``: such programs load a tile's first steps while they
    store the one before; all blocks are computed whole then.
    """

    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 1
    programs: int = 0
    ahead: bool = False


Tiles = tuple[int, PrefillTile, PrefillTile]


def tiles_for(tokens: int, dtype: torch.dtype = torch.bfloat16) -> Tiles:
    """Rows a block, and the tiles of the first and the second product, for Hopper; not yet measured."""
    if dtype == torch.float32:  # no matrix instruction, twice the bytes
        return 64, PrefillTile(32, 32, 4, 2), PrefillTile(64, 32, 4, 2)
    return (128 if tokens >= 2048 else 64), PrefillTile(128, 64, 8, 4), PrefillTile(256, 64, 8, 3, group=16)


@triton.jit
def _tile_at(place, blocks, COLUMN_TILES: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The block of rows and the column tile at a place of the order that ``PrefillTile.group`` gives."""
    first = place // (GROUP * COLUMN_TILES) * GROUP
    height = tl.minimum(blocks - first, GROUP)
    inside = place % (GROUP * COLUMN_TILES)
    return first + inside % height, inside // height


@triton.jit
def _gate_and_up_tile(  # type: ignore[no-untyped-def]
    x_ptr,
    w13,
    weights_ptr,
    row_ptr,
    h_ptr,
    expert,
    block,
    column,
    ROWS,  # noqa: N803
    TOPK: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    INNER: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    COMPUTED: tl.constexpr,  # noqa: N803 - rows of the block
    COLUMNS: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    TMA: tl.constexpr,  # noqa: N803
):
    places = block * SIZE + tl.arange(0, COMPUTED)
    rows = tl.load(row_ptr + places)
    real = rows < ROWS
    weights = tl.load(weights_ptr + rows, mask=real, other=0.0).to(tl.float32)
    depths = tl.arange(0, DEPTH)
    x_pointers = x_ptr + (rows // TOPK).to(tl.int64)[:, None] * HIDDEN + depths[None, :]
    if not TMA:
        sides = tl.arange(0, 2 * COLUMNS)  # gate's columns, then up's
        chosen = column * COLUMNS + sides % COLUMNS
        wanted = chosen < INNER
        chosen += sides // COLUMNS * INNER
        w_pointers = w13 + expert.to(tl.int64) * (2 * INNER * HIDDEN) + chosen.to(tl.int64)[None, :] * HIDDEN + depths[:, None]
    both = tl.zeros([COMPUTED, 2 * COLUMNS], tl.float32)
    for start in range(0, HIDDEN, DEPTH):
        left = depths < HIDDEN - start
        if HIDDEN % DEPTH == 0:
            taken = tl.load(x_pointers + start, mask=real[:, None], other=0.0)
        else:
            taken = tl.load(x_pointers + start, mask=real[:, None] & left[None, :], other=0.0)
        if TMA:
            w = w13.load([2 * expert, column * COLUMNS, start]).reshape(2 * COLUMNS, DEPTH).T
        elif HIDDEN % DEPTH == 0 and INNER % COLUMNS == 0:
            w = tl.load(w_pointers + start)
        else:
            w = tl.load(w_pointers + start, mask=left[:, None] & wanted[None, :], other=0.0)
        both = tl.dot(taken, w, both, input_precision=PRECISION)
    gate, up = tl.split(tl.permute(tl.reshape(both, (COMPUTED, 2, COLUMNS)), (0, 2, 1)))
    # 0.5 * (1 + tanh(z)) is sigmoid(2 z)
    act = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up * weights[:, None]
    columns = column * COLUMNS + tl.arange(0, COLUMNS)
    stored = h_ptr + places.to(tl.int64)[:, None] * INNER + columns[None, :]
    # Rows that are not real are zeros: the second product loads whole blocks.
    if INNER % COLUMNS == 0:
        tl.store(stored, act.to(h_ptr.dtype.element_ty))
    else:
        tl.store(stored, act.to(h_ptr.dtype.element_ty), mask=(columns < INNER)[None, :])


@triton.jit
def _gate_and_up_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [tokens, HIDDEN]
    w13,  # [experts, 2 * INNER, HIDDEN], gate first; under TMA a descriptor of [experts * 2, INNER, HIDDEN]
    weights_ptr,  # [rows] float32
    expert_ptr,  # [blocks]; -1: of no expert
    row_ptr,  # [blocks, SIZE]
    count_ptr,
    h_ptr,  # [blocks, SIZE, INNER]
    ROWS,  # noqa: N803
    TOPK: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    INNER: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    HALVES: tl.constexpr,  # noqa: N803
    AHEAD: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    TMA: tl.constexpr,  # noqa: N803
    PDL: tl.constexpr,  # noqa: N803
):
    await_inputs(PDL)
    COLUMN_TILES: tl.constexpr = (INNER + COLUMNS - 1) // COLUMNS  # noqa: N806
    blocks = tl.load(count_ptr)
    for place in tl.range(tl.program_id(0), blocks * COLUMN_TILES, tl.num_programs(0), flatten=AHEAD):
        block, column = _tile_at(place, blocks, COLUMN_TILES, GROUP)
        expert = tl.load(expert_ptr + block)
        if AHEAD:  # one loop, so no branch: blocks of no expert compute what nobody reads
            _gate_and_up_tile(
                x_ptr, w13, weights_ptr, row_ptr, h_ptr, tl.maximum(expert, 0), block, column, ROWS,
                TOPK, HIDDEN, INNER, SIZE, SIZE, COLUMNS, DEPTH, PRECISION, TMA,
            )  # fmt: skip
        elif expert >= 0:
            few = False
            if HALVES:
                few = tl.load(row_ptr + block * SIZE + SIZE // 2) >= ROWS
            if few:
                _gate_and_up_tile(
                    x_ptr, w13, weights_ptr, row_ptr, h_ptr, expert, block, column, ROWS,
                    TOPK, HIDDEN, INNER, SIZE, SIZE // 2, COLUMNS, DEPTH, PRECISION, TMA,
                )  # fmt: skip
            else:
                _gate_and_up_tile(
                    x_ptr, w13, weights_ptr, row_ptr, h_ptr, expert, block, column, ROWS,
                    TOPK, HIDDEN, INNER, SIZE, SIZE, COLUMNS, DEPTH, PRECISION, TMA,
                )  # fmt: skip


@triton.jit
def _down_tile(  # type: ignore[no-untyped-def]
    h,
    w2,
    row_ptr,
    out_ptr,
    expert,
    block,
    column,
    ROWS,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    INNER: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    COMPUTED: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    TMA: tl.constexpr,  # noqa: N803
):
    places = block * SIZE + tl.arange(0, COMPUTED)
    rows = tl.load(row_ptr + places)
    real = rows < ROWS
    columns = column * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < HIDDEN
    depths = tl.arange(0, DEPTH)
    if not TMA:
        h_pointers = h + places.to(tl.int64)[:, None] * INNER + depths[None, :]
        w_pointers = w2 + expert.to(tl.int64) * (HIDDEN * INNER) + columns.to(tl.int64)[None, :] * INNER + depths[:, None]
    out = tl.zeros([COMPUTED, COLUMNS], tl.float32)
    for start in range(0, INNER, DEPTH):
        if TMA:
            taken = h.load([block * SIZE, start])
            w = w2.load([expert, column * COLUMNS, start]).reshape(COLUMNS, DEPTH).T
        else:
            left = depths < INNER - start
            taken = tl.load(h_pointers + start, mask=left[None, :], other=0.0)
            w = tl.load(w_pointers + start, mask=left[:, None] & inside[None, :], other=0.0)
        out = tl.dot(taken, w, out, input_precision=PRECISION)
    stored = out_ptr + rows.to(tl.int64)[:, None] * HIDDEN + columns[None, :]
    if HIDDEN % COLUMNS == 0:
        tl.store(stored, out.to(out_ptr.dtype.element_ty), mask=real[:, None])
    else:
        tl.store(stored, out.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit
def _down_rows_kernel(  # type: ignore[no-untyped-def]
    h,  # [blocks, SIZE, INNER]; under TMA a descriptor of [blocks * SIZE, INNER]
    h_half,  # the same, half a block at a time
    w2,  # [experts, HIDDEN, INNER]
    expert_ptr,
    row_ptr,
    count_ptr,
    out_ptr,  # [rows, HIDDEN]
    ROWS,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    INNER: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    HALVES: tl.constexpr,  # noqa: N803
    AHEAD: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    TMA: tl.constexpr,  # noqa: N803
    PDL: tl.constexpr,  # noqa: N803
):
    await_inputs(PDL)
    COLUMN_TILES: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS  # noqa: N806
    blocks = tl.load(count_ptr)
    for place in tl.range(tl.program_id(0), blocks * COLUMN_TILES, tl.num_programs(0), flatten=AHEAD):
        block, column = _tile_at(place, blocks, COLUMN_TILES, GROUP)
        expert = tl.load(expert_ptr + block)
        if AHEAD:
            _down_tile(
                h, w2, row_ptr, out_ptr, tl.maximum(expert, 0), block, column, ROWS,
                HIDDEN, INNER, SIZE, SIZE, COLUMNS, DEPTH, PRECISION, TMA,
            )  # fmt: skip
        elif expert >= 0:
            few = False
            if HALVES:
                few = tl.load(row_ptr + block * SIZE + SIZE // 2) >= ROWS
            if few:
                _down_tile(
                    h_half, w2, row_ptr, out_ptr, expert, block, column, ROWS,
                    HIDDEN, INNER, SIZE, SIZE // 2, COLUMNS, DEPTH, PRECISION, TMA,
                )  # fmt: skip
            else:
                _down_tile(
                    h, w2, row_ptr, out_ptr, expert, block, column, ROWS,
                    HIDDEN, INNER, SIZE, SIZE, COLUMNS, DEPTH, PRECISION, TMA,
                )  # fmt: skip


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a card; where kernels are interpreted, one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def has_tma(device: torch.device) -> bool:
    """Whether programs can load through descriptors; so they can where they are interpreted."""
    return device.type != "cuda" or bool(torch.cuda.get_device_capability(device) >= CAPABILITY)


@functools.cache
def reason_against_card(device: torch.device) -> str | None:
    """Why :func:`tiles_for` is not for this card, or None."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_capability(device)
    return None if found[0] == 9 else f"the card's compute capability is {found[0]}.{found[1]}; the tiles are for 9.0"


def reason_against_descriptors(*tensors: torch.Tensor) -> str | None:
    """Why these contiguous tensors of 16-bit numbers are loaded through pointers, or None."""
    for tensor in tensors:
        if not has_tma(tensor.device):
            return f"the card is older than compute capability {CAPABILITY[0]}.{CAPABILITY[1]}"
        if tensor.dtype.itemsize != 2:
            return f"{tensor.dtype}; matrix instructions that read shared memory take 16 bits"
        if tensor.data_ptr() % ALIGNMENT or tensor.shape[-1] * tensor.dtype.itemsize % ALIGNMENT:
            return f"rows of {tuple(tensor.shape)} do not lie at multiples of {ALIGNMENT} bytes"
    return None


def described(tensor: torch.Tensor, *block: int) -> TensorDescriptor:
    """A contiguous tensor, to be loaded in blocks of this shape; what lies outside it is zero."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def programs_of(tile: PrefillTile, most: int, device: torch.device) -> int:
    """How many are launched for at most ``most`` tiles."""
    return min(most, tile.programs * multiprocessors(device)) if tile.programs else most


def options_of(tile: PrefillTile, size: int, x: torch.Tensor) -> dict[str, Any]:
    """What both products are launched with."""
    return {
        "HALVES": size >= HALVED_FROM,
        "AHEAD": tile.ahead,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "GROUP": tile.group,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        **launch_options(x.device),
    }


def gate_and_up(
    x: torch.Tensor, w13: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, blocks: Blocks, tile: PrefillTile, tma: bool
) -> torch.Tensor:
    """``weight * gelu_tanh(x @ gate) * (x @ up)`` in the order of the blocks, ``[most blocks, rows a block, inner]`` in x's dtype.

    A block's empty places are zero, or not written where half of it is computed; blocks of no expert, and behind the last, are undefined.
    """
    (experts, both, hidden), (most, size) = w13.shape, blocks.row.shape
    inner = both // 2
    h = torch.empty((most, size, inner), dtype=x.dtype, device=x.device)
    _gate_and_up_kernel[(programs_of(tile, most * triton.cdiv(inner, tile.columns), x.device),)](
        x,
        described(w13.view(experts * 2, inner, hidden), 2, tile.columns, tile.depth) if tma else w13,
        weights,
        blocks.expert,
        blocks.row,
        blocks.count,
        h,
        ids.numel(),
        TOPK=ids.shape[1],
        HIDDEN=hidden,
        INNER=inner,
        SIZE=size,
        TMA=tma,
        **options_of(tile, size, x),
    )
    return h


def down(h: torch.Tensor, w2: torch.Tensor, rows: int, blocks: Blocks, tile: PrefillTile, tma: bool) -> torch.Tensor:
    """Each row's product with its expert's ``w2``, ``[rows, hidden]``; what rows of no expert hold is undefined."""
    (_, hidden, inner), (most, size) = w2.shape, blocks.row.shape
    out = torch.empty((rows, hidden), dtype=h.dtype, device=h.device)
    flat = h.view(most * size, inner)
    _down_rows_kernel[(programs_of(tile, most * triton.cdiv(hidden, tile.columns), h.device),)](
        described(flat, size, tile.depth) if tma else h,
        described(flat, size // 2, tile.depth) if tma else h,
        described(w2, 1, tile.columns, tile.depth) if tma else w2,
        blocks.expert,
        blocks.row,
        blocks.count,
        out,
        rows,
        HIDDEN=hidden,
        INNER=inner,
        SIZE=size,
        TMA=tma,
        **options_of(tile, size, h),
    )
    return out


def prefill_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    blocks: Blocks | None = None,
    tiles: Tiles | None = None,
    tma: bool | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``[tokens, hidden]`` in x's dtype; arguments as ``few_token_experts`` has, any tokens.

    Its reference is ``few_token_experts_reference``. The host does not wait for the device. Rows may lie in any order in an expert's
    blocks, empty places last: each row's sums are its own, so the result is the same every time.

    Args:
        blocks: of the rows, as many a block as ``tiles`` says; blocks of expert -1 are left out. None: ``expert_blocks``, whose
            programs each count all rows, so a card has something better for tens of thousands.
        tiles: rows a block and the tiles of the two products; None: :func:`tiles_for` the tokens.
        tma: whether weights and the activation are loaded through descriptors; None: where :func:`reason_against_descriptors` has none.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernels do not take.
    """
    reason = reason_against(x, w13, w2, weights, ids)
    size, first, second = tiles or tiles_for(x.shape[0], x.dtype)
    if reason is None and blocks is not None and blocks.row.shape[1:] != (size,):
        reason = f"rows lie in blocks {tuple(blocks.row.shape)}; the tiles take {size} a block"
    if reason:
        raise ValueError(reason)
    if x.shape[0] == 0:
        return torch.empty_like(x)
    if blocks is None:
        blocks = expert_blocks(ids, w13.shape[0], size)
    if tma is None:
        tma = reason_against_descriptors(w13, w2) is None
    h = gate_and_up(x, w13, weights, ids, blocks, first, tma)
    return sum_of_rows(down(h, w2, ids.numel(), blocks, second, tma), ids, SUM_COLUMNS)
