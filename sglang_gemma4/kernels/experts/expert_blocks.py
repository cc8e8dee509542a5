"""Group an MoE layer's rows by expert: which rows (a token and one of its experts) each block of a grouped GEMM takes.

It takes one launch: every program counts all rows and finds its own expert's place, so none waits and nothing has to
be cleared first.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options

CHUNK = 1024
"""Rows counted at a time."""
THREADS = 128
"""Threads of a program. At least as many rows are counted at a time, so that no row lies in two threads."""


@dataclass
class Blocks:
    """Blocks of rows of one expert each, in the order of the experts.

    ``expert`` is ``[most blocks]`` int32, ``row`` ``[most blocks, rows per block]`` int32 (an empty place holds the
    number of rows) and ``count`` ``[1]`` int32; entries from ``count`` on are undefined.
    """

    expert: torch.Tensor
    row: torch.Tensor
    count: torch.Tensor


def most_blocks(rows: int, experts: int, size: int) -> int:
    """Most blocks of ``size`` that ``rows`` rows of ``experts`` experts can need."""
    if rows <= experts:
        return rows
    return experts + (rows - experts) // size


def expert_blocks_reference(ids: torch.Tensor, experts: int, size: int, by_token: bool = False) -> Blocks:
    """What :func:`expert_blocks` computes; ``expert`` and ``row`` end with the last block."""
    rows, topk = ids.numel(), ids.shape[1]
    flat = ids.flatten().tolist()
    blocks: list[tuple[int, list[int]]] = []
    for expert in range(experts):
        mine = [row for row in range(rows) if flat[row] == expert]
        if by_token and mine:
            taken = {row // topk: row for row in mine}
            blocks.append((expert, [taken.get(token, rows) for token in range(size)]))
            continue
        for start in range(0, len(mine), size):
            part = mine[start : start + size]
            blocks.append((expert, part + [rows] * (size - len(part))))
    kinds = torch.tensor([expert for expert, _ in blocks], dtype=torch.int32)
    places = torch.tensor([part for _, part in blocks], dtype=torch.int32).view(-1, size)
    return Blocks(kinds.to(ids.device), places.to(ids.device), torch.tensor([len(blocks)], dtype=torch.int32, device=ids.device))


@triton.jit(do_not_specialize=["ROWS"])
def _expert_blocks_kernel(  # type: ignore[no-untyped-def]
    ids_ptr,  # [rows]
    expert_ptr,
    row_ptr,
    count_ptr,
    ROWS,
    TOPK: tl.constexpr,
    SIZE: tl.constexpr,  # rows a block, a power of two
    BY_TOKEN: tl.constexpr,
    BINS: tl.constexpr,  # experts, padded
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    mine = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, ROWS, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        ids = tl.load(ids_ptr + rows, mask=rows < ROWS, other=-1).to(tl.int32)
        counts += tl.histogram(tl.maximum(ids, 0), BINS, mask=ids >= 0).to(tl.int32)
    blocks = (counts + SIZE - 1) // SIZE
    first = tl.sum(tl.where(bins < mine, blocks, 0), 0)
    count = tl.sum(tl.where(bins == mine, counts, 0), 0)
    if mine == 0:
        tl.store(count_ptr, tl.sum(blocks, 0))
    if count > 0:
        places = row_ptr + first * SIZE
        if BY_TOKEN:
            tl.store(places + tl.arange(0, SIZE), tl.full([SIZE], 0, tl.int32) + ROWS)
            tl.debug_barrier()  # other threads of this program write the same places next
        else:
            padding = count + tl.arange(0, SIZE)
            tl.store(places + padding, tl.full([SIZE], 0, tl.int32) + ROWS, mask=padding < (count + SIZE - 1) // SIZE * SIZE)
        for number in range((count + SIZE - 1) // SIZE):
            tl.store(expert_ptr + first + number, mine)
        done = 0
        for start in range(0, ROWS, CHUNK):
            rows = start + tl.arange(0, CHUNK)
            match = tl.load(ids_ptr + rows, mask=rows < ROWS, other=-1).to(tl.int32) == mine
            if BY_TOKEN:
                tl.store(places + rows // TOPK, rows, mask=match)
            else:
                chosen = match.to(tl.int32)
                tl.store(places + done + tl.cumsum(chosen, 0) - 1, rows, mask=match)
                done += tl.sum(chosen, 0)


def expert_blocks(ids: torch.Tensor, experts: int, size: int, by_token: bool = False) -> Blocks:
    """Gather the rows of each expert into blocks, in row order. The host does not wait for the device.

    Args:
        ids: ``[tokens, experts per token]`` int, contiguous: each row's expert, -1 for none. A token's experts differ.
        experts: number of experts.
        size: rows per block, a power of two.
        by_token: a row's place in its block is its token's number, so that a block is a tile of tokens.

    Raises:
        ValueError: ``size`` is no power of two, or smaller than the number of tokens under ``by_token``.
    """
    rows = ids.numel()
    if size < 1 or size & (size - 1):
        raise ValueError(f"blocks of {size} rows: a power of two is supported")
    if by_token and ids.shape[0] > size:
        raise ValueError(f"{ids.shape[0]} tokens do not fit blocks of {size} by token")
    most = experts if by_token else most_blocks(rows, experts, size)
    most = min(most, rows)
    expert = torch.empty(most, dtype=torch.int32, device=ids.device)
    row = torch.empty((most, size), dtype=torch.int32, device=ids.device)
    count = torch.empty(1, dtype=torch.int32, device=ids.device)
    _expert_blocks_kernel[(experts,)](
        ids, expert, row, count, rows,
        TOPK=ids.shape[1], SIZE=size, BY_TOKEN=by_token, BINS=triton.next_power_of_2(experts),
        CHUNK=min(CHUNK, max(THREADS, triton.next_power_of_2(rows))), num_warps=THREADS // 32, **launch_options(ids.device),
    )  # fmt: skip
    return Blocks(expert, row, count)
