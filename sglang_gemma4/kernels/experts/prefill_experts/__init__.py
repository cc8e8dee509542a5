"""An MoE layer of a prefill chunk in three launches once rows are in blocks: gate and up with the activation, down, sum.

An expert has tens to thousands of rows here, so both GEMMs are bound by arithmetic and its inputs, not by reading
weights. Gate and up are one GEMM of twice the columns. Its result is stored in block order, so that it can be loaded
through tensor descriptors (Hopper's TMA), as the weights of both GEMMs are. Of an expert's last block only half is
computed if at most half of it is filled. 4-bit weights are dequantised to memory before each GEMM
(:mod:`~sglang_gemma4.kernels.written_out`).
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from sglang_gemma4.kernels.card import multiprocessors
from sglang_gemma4.kernels.dependent_launch import CAPABILITY, launch_options
from sglang_gemma4.kernels.experts.expert_blocks import Blocks, expert_blocks
from sglang_gemma4.kernels.experts.gated_experts import reason_against
from sglang_gemma4.kernels.experts.grouped_experts import sum_of_rows
from sglang_gemma4.kernels.experts.prefill_experts.kernels import down_rows_kernel, gate_and_up_kernel
from sglang_gemma4.kernels.weights import Scaled, Weight
from sglang_gemma4.kernels.written_out import place_of, room_for, write_out

ALIGNMENT = 16
"""Bytes: a tensor's start and strides must be multiples of it to be loaded through a descriptor."""
HALVED_FROM = 128
"""Rows per block from which half a block may be computed by itself: Hopper's matrix instruction takes 64 rows."""
SUM_COLUMNS = 1024


@dataclass(frozen=True)
class PrefillTile:
    """Tile of a program: output columns (of gate and of up each), inner columns per step, warps, and steps loaded ahead.

    ``group``: blocks of rows that go through each column tile together before the next blocks; 1: one block through
    all columns first. ``programs``: persistent programs per multiprocessor, which walk over all tiles; 0: one program
    per tile. ``ahead``: persistent programs load the first steps of a tile while they store the previous one; all
    blocks are then computed whole.
    """

    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 1
    programs: int = 0
    ahead: bool = False


Tiles = tuple[int, PrefillTile, PrefillTile]


def tiles_for(dtype: torch.dtype) -> Tiles:
    """Rows per block, and the tiles of the first and the second GEMM, for Hopper and 1,024 tokens and more.

    The fastest timed at 2,048, 8,192 and 16,384 tokens; at 1,024, 64 rows per block are as fast
    (runs/2026-11-23-prefill-expert-tiles).
    """
    if dtype == torch.float32:  # no matrix instruction, twice the bytes
        return 64, PrefillTile(32, 32, 4, 2), PrefillTile(64, 32, 4, 2)
    return 128, PrefillTile(128, 64, 8, 4), PrefillTile(256, 64, 8, 4, group=16, programs=1, ahead=True)


@functools.cache
def has_tma(device: torch.device) -> bool:
    """Whether programs can load through descriptors; interpreted ones can."""
    return device.type != "cuda" or bool(torch.cuda.get_device_capability(device) >= CAPABILITY)


@functools.cache
def reason_against_card(device: torch.device) -> str | None:
    """Why :func:`tiles_for` is not for this GPU, or None."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_capability(device)
    return None if found[0] == 9 else f"the GPU's compute capability is {found[0]}.{found[1]}; the tiles are for 9.0"


def reason_against_descriptors(*tensors: torch.Tensor) -> str | None:
    """Why these contiguous 16-bit tensors must be loaded through pointers, not descriptors, or None."""
    for tensor in tensors:
        if not has_tma(tensor.device):
            return f"the GPU is older than compute capability {CAPABILITY[0]}.{CAPABILITY[1]}"
        if tensor.dtype.itemsize != 2:
            return f"{tensor.dtype}; matrix instructions that read shared memory take 16 bits"
        if tensor.data_ptr() % ALIGNMENT or tensor.shape[-1] * tensor.dtype.itemsize % ALIGNMENT:
            return f"rows of {tuple(tensor.shape)} do not lie at multiples of {ALIGNMENT} bytes"
    return None


def described(tensor: torch.Tensor, *block: int) -> TensorDescriptor:
    """A descriptor that loads blocks of this shape from a contiguous tensor, with zeros outside of it."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def programs_of(tile: PrefillTile, most: int, device: torch.device) -> int:
    """How many programs are launched for at most ``most`` tiles."""
    return min(most, tile.programs * multiprocessors(device)) if tile.programs else most


def options_of(tile: PrefillTile, size: int, x: torch.Tensor) -> dict[str, Any]:
    """Constants and options with which both GEMMs are launched."""
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
    """``weight * gelu_tanh(x @ gate) * (x @ up)`` in block order: ``[most blocks, rows per block, inner]`` of x's dtype.

    Empty places of a block are zero, or not written if only half of it is computed. Blocks without an expert and
    those after the last are undefined.
    """
    (experts, both, hidden), (most, size) = w13.shape, blocks.row.shape
    inner = both // 2
    h = torch.empty((most, size, inner), dtype=x.dtype, device=x.device)
    gate_and_up_kernel[(programs_of(tile, most * triton.cdiv(inner, tile.columns), x.device),)](
        x, described(w13.view(experts * 2, inner, hidden), 2, tile.columns, tile.depth) if tma else w13, weights, blocks.expert,
        blocks.row, blocks.count, h, ids.numel(),
        TOPK=ids.shape[1], HIDDEN=hidden, INNER=inner, SIZE=size, TMA=tma, **options_of(tile, size, x),
    )  # fmt: skip
    return h


def down(h: torch.Tensor, w2: torch.Tensor, rows: int, blocks: Blocks, tile: PrefillTile, tma: bool) -> torch.Tensor:
    """Each row times its expert's ``w2``, ``[rows, hidden]``; rows of no expert are undefined."""
    (_, hidden, inner), (most, size) = w2.shape, blocks.row.shape
    out = torch.empty((rows, hidden), dtype=h.dtype, device=h.device)
    flat = h.view(most * size, inner)
    down_rows_kernel[(programs_of(tile, most * triton.cdiv(hidden, tile.columns), h.device),)](
        described(flat, size, tile.depth) if tma else h, described(flat, size // 2, tile.depth) if tma else h,
        described(w2, 1, tile.columns, tile.depth) if tma else w2, blocks.expert, blocks.row, blocks.count, out, rows,
        HIDDEN=hidden, INNER=inner, SIZE=size, TMA=tma, **options_of(tile, size, h),
    )  # fmt: skip
    return out


def prefill_experts(
    x: torch.Tensor,
    w13: Weight,
    w2: Weight,
    weights: torch.Tensor,
    ids: torch.Tensor,
    blocks: Blocks | None = None,
    tiles: Tiles | None = None,
    tma: bool | None = None,
    room: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``[tokens, hidden]`` in x's dtype.

    Arguments are as in ``few_token_experts``, without fp8, but the number of tokens is not limited. Its reference is
    ``few_token_experts_reference``. The host does not wait for the device. Rows may be in any order within an expert's
    blocks, empty places last: each row's sums are its own, so the result is reproducible.

    Args:
        blocks: the rows in blocks of the size in ``tiles``; blocks of expert -1 are skipped. None: made by
            ``expert_blocks``, which is slow for tens of thousands of rows, since each of its programs counts all.
        tiles: rows per block and the tiles of the two GEMMs; None: :func:`tiles_for` their dtype.
        tma: whether weights and the activation are loaded through descriptors; None: unless
            :func:`reason_against_descriptors` objects.
        room: scratch of x's dtype for dequantised 4-bit weights, ``room_for(w13, w2)`` elements; None: allocated.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernels do not take.
    """
    reason = reason_against(x, w13, w2, weights, ids)
    size, first, second = tiles or tiles_for(x.dtype)
    if reason is None and (isinstance(w13, Scaled) or isinstance(w2, Scaled)):
        reason = "fp8 experts of so many tokens are SGLang's"
    if reason is None and blocks is not None and blocks.row.shape[1:] != (size,):
        reason = f"rows lie in blocks {tuple(blocks.row.shape)}; the tiles take {size} a block"
    if reason is None and room is not None and room.dtype != x.dtype:
        reason = f"room of {room.dtype} for x of {x.dtype}"
    if reason:
        raise ValueError(reason)
    if x.shape[0] == 0:
        return torch.empty_like(x)
    if blocks is None:
        blocks = expert_blocks(ids, w13.shape[0], size)
    if room is None:
        room = torch.empty(room_for(w13, w2), dtype=x.dtype, device=x.device)
    if tma is None:
        tma = reason_against_descriptors(place_of(w13, room), place_of(w2, room)) is None
    h = gate_and_up(x, write_out(w13, room), weights, ids, blocks, first, tma)
    return sum_of_rows(down(h, write_out(w2, room), ids.numel(), blocks, second, tma), ids, SUM_COLUMNS)
