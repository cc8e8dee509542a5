"""The experts' first GEMM with the activation in its epilogue: ``weight * gelu_tanh(x @ gate) * (x @ up)`` by row.

A row is a token and one of its experts. A program computes the same columns of gate and up, so neither is written to
memory. The router's weight is applied here, while the value is still float32, so the outputs of a token's experts
need only be added up. Weights of all experts' kernels may be fp8, with a scale per expert or per output, or 4-bit
(:mod:`~sglang_gemma4.kernels.weights`).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.card import reason_against_card
from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.experts.expert_blocks import Blocks
from sglang_gemma4.kernels.four_bits import by_place, four_bit_sums, place_of
from sglang_gemma4.kernels.matrices import DTYPES
from sglang_gemma4.kernels.weights import (
    Scaled,
    Weight,
    as_type,
    dequantised,
    levels_of,
    reason_against_weight,
    scale_of,
    words_in_group,
    zeros_of,
)


@dataclass(frozen=True)
class Tile:
    """Tile of a program: output columns, inner columns per step, warps, and steps loaded ahead."""

    columns: int
    depth: int
    warps: int
    stages: int


def gated_experts_reference(x: torch.Tensor, w13: Weight, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """``[tokens * experts a token, inner]`` float32; rows without an expert are zero."""
    topk, inner = ids.shape[1], w13.shape[1] // 2
    out, values = torch.zeros(ids.numel(), inner, dtype=torch.float32, device=x.device), dequantised(w13)
    for row, expert in enumerate(ids.flatten().tolist()):
        if expert >= 0:
            both = values[expert] @ x[row // topk].float()
            act = torch.nn.functional.gelu(both[:inner], approximate="tanh") * both[inner:]
            out[row] = weights.flatten()[row].float() * act
    return out


@triton.jit(do_not_specialize=["ROWS"])
def _gated_experts_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [tokens, HIDDEN]
    w13_ptr,  # [experts, 2 * INNER, HIDDEN], gate first; 4-bit: words
    scale_ptr,  # [experts, 2 * INNER] float32, or None; 4-bit: of groups
    scale_expert_stride,
    scale_stride,
    zero_ptr,  # of pairs of outputs of 4-bit levels that are not symmetric, or None
    weights_ptr,  # [rows] float32
    expert_ptr,  # [blocks]
    row_ptr,  # [blocks, SIZE]
    count_ptr,
    out_ptr,  # [rows, INNER]
    ROWS,
    TOPK: tl.constexpr,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,  # words of a 4-bit weight that share a scale; 0: it is another
    BITS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    await_inputs(PDL)
    block = tl.program_id(0)
    places = tl.arange(0, SIZE)
    # All loads at once, before it is known whether the block exists: what lies behind the last is undefined, and not used.
    count = tl.load(count_ptr)
    expert = tl.load(expert_ptr + block).to(tl.int64)
    rows = tl.load(row_ptr + block * SIZE + places).to(tl.int64)
    if (block < count) & (expert >= 0):
        real = rows < ROWS
        shares = tl.load(weights_ptr + rows, mask=real, other=0.0).to(tl.float32)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = columns < INNER
        if GROUP > 0:
            words_ptr = w13_ptr + expert * (2 * INNER * (HIDDEN // 8))
            zeros_ptr = None if zero_ptr is None else zero_ptr + expert * (INNER * (HIDDEN // 8 // GROUP))
            gate, up = four_bit_sums(
                x_ptr, rows // TOPK, real, words_ptr, scale_ptr + expert * (2 * INNER * (HIDDEN // 8 // GROUP)), zeros_ptr, columns,
                inside, 0, HIDDEN // 8, INNER, HIDDEN, SIZE, COLUMNS, DEPTH, GROUP, BITS,
            )  # fmt: skip
        else:
            depths = tl.arange(0, DEPTH)
            x_pointers = x_ptr + (rows // TOPK)[:, None] * HIDDEN + depths[None, :]
            gate_pointers = w13_ptr + expert * (2 * INNER * HIDDEN) + columns[None, :] * HIDDEN + depths[:, None]
            gate = tl.zeros([SIZE, COLUMNS], tl.float32)
            up = tl.zeros([SIZE, COLUMNS], tl.float32)
            for start in range(0, HIDDEN, DEPTH):
                if HIDDEN % DEPTH == 0 and INNER % COLUMNS == 0:
                    taken = tl.load(x_pointers + start, mask=real[:, None], other=0.0)
                    w_gate = tl.load(gate_pointers + start)
                    w_up = tl.load(gate_pointers + (INNER * HIDDEN + start))
                else:
                    left = depths < HIDDEN - start
                    read = left[:, None] & inside[None, :]
                    taken = tl.load(x_pointers + start, mask=real[:, None] & left[None, :], other=0.0)
                    w_gate = tl.load(gate_pointers + start, mask=read, other=0.0)
                    w_up = tl.load(gate_pointers + (INNER * HIDDEN + start), mask=read, other=0.0)
                gate = tl.dot(taken, as_type(w_gate, taken.dtype), gate, input_precision=PRECISION)
                up = tl.dot(taken, as_type(w_up, taken.dtype), up, input_precision=PRECISION)
            if scale_ptr is not None:
                scale_pointers = scale_ptr + expert * scale_expert_stride + columns * scale_stride
                gate *= tl.load(scale_pointers, mask=inside, other=0.0)[None, :]
                up *= tl.load(scale_pointers + INNER * scale_stride, mask=inside, other=0.0)[None, :]
        # 0.5 * (1 + tanh(z)) is sigmoid(2 z)
        act = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
        act *= shares[:, None]
        if GROUP > 0:
            columns = place_of(columns, INNER)
        stored = out_ptr + rows[:, None] * INNER + columns[None, :]
        tl.store(stored, act.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])


def gated_experts(x: torch.Tensor, w13: Weight, weights: torch.Tensor, ids: torch.Tensor, blocks: Blocks, tile: Tile) -> torch.Tensor:
    """The activation ``[tokens * experts per token, inner]`` in x's dtype; rows without an expert are not written.

    For 4-bit experts its columns are in the order of ``by_place``, as the second GEMM reads them.

    Args:
        x: ``[tokens, hidden]``, contiguous.
        w13: ``[experts, 2 * inner, hidden]`` in x's dtype, fp8 or 4-bit, contiguous, the gate's rows first.
        weights: ``[tokens, experts per token]`` float32, contiguous, the router's.
        ids: ``[tokens, experts per token]`` int, contiguous; -1: none.
        blocks: the rows in blocks.
        tile: how a program works.

    Raises:
        ValueError: what :func:`reason_against` says.
    """
    reason = reason_against(x, w13, None, weights, ids)
    if reason:
        raise ValueError(reason)
    rows, inner, group = ids.numel(), w13.shape[1] // 2, words_in_group(w13)
    out = torch.empty((rows, inner), dtype=x.dtype, device=x.device)
    _gated_experts_kernel[(blocks.expert.numel(), triton.cdiv(inner, tile.columns))](
        by_place(x) if group else x, levels_of(w13), *scale_of(w13), zeros_of(w13), weights, blocks.expert, blocks.row, blocks.count, out,
        rows, TOPK=ids.shape[1], HIDDEN=x.shape[1], INNER=inner, SIZE=blocks.row.shape[1], COLUMNS=tile.columns, DEPTH=tile.depth,
        GROUP=group, BITS=x.dtype == torch.bfloat16,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=tile.warps, num_stages=tile.stages,
        **launch_options(x.device),
    )  # fmt: skip
    return out


def reason_against(x: torch.Tensor, w13: Weight, w2: Weight | None, weights: torch.Tensor, ids: torch.Tensor) -> str | None:
    """Why the experts' kernels do not take these tensors, or None. ``w2`` is ``[experts, hidden, inner]``."""
    if x.dtype not in DTYPES:
        return f"x is {x.dtype}; float32, bfloat16 and float16 are supported"
    products: dict[str, Weight] = {"w13": w13} if w2 is None else {"w13": w13, "w2": w2}
    for name, weight in products.items():
        if reason := reason_against_weight(x, weight):
            return f"{name}: {reason}"
        if isinstance(weight, Scaled) and weight.block:
            return f"{name} is fp8 in blocks; a scale for each output or expert is supported"
    named = {"x": x, "weights": weights, "ids": ids, **{name: levels_of(weight) for name, weight in products.items()}}
    for name, tensor in named.items():
        if not tensor.is_contiguous():
            return f"{name} is not contiguous"
    if x.dim() != 2 or len(w13.shape) != 3 or w13.shape[1] % 2 or w13.shape[2] != x.shape[1]:
        return f"x is {tuple(x.shape)} and w13 {tuple(w13.shape)}; [tokens, hidden] and [experts, 2 * inner, hidden] are supported"
    if w2 is not None and w2.shape != (w13.shape[0], x.shape[1], w13.shape[1] // 2):
        return f"w2 is {tuple(w2.shape)}; {(w13.shape[0], x.shape[1], w13.shape[1] // 2)} is supported"
    if weights.shape != ids.shape or ids.dim() != 2 or ids.shape[0] != x.shape[0]:
        return f"weights are {tuple(weights.shape)} and ids {tuple(ids.shape)} for {x.shape[0]} tokens"
    if weights.dtype != torch.float32 or ids.dtype not in (torch.int32, torch.int64):
        return f"weights are {weights.dtype} and ids {ids.dtype}; float32 and int32 or int64 are supported"
    return reason_against_card(x.device)
