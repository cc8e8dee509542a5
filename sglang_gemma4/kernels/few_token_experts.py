"""A MoE layer of up to 16 tokens in two launches (one token) or three: no padding, no activation or sum of its own.

The second product's program owns some output columns of all tokens and walks over every chosen expert, so the sum over a token's experts
stays in its accumulator, in the order of the experts: the same result every time. Each expert's weights are read once.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.expert_blocks import expert_blocks
from sglang_gemma4.kernels.gated_experts import Tile, gated_experts, gated_experts_reference, reason_against

MOST_TOKENS = 16
"""Rows of the smallest tile a matrix instruction takes."""


def tiles_for(tokens: int) -> tuple[Tile, Tile]:
    """Of the first and the second product: with few experts narrow columns, so that there are programs for the whole card."""
    return Tile(32, 128, 4, 4) if tokens <= 4 else Tile(64, 128, 4, 3), Tile(16, 256, 4, 4)


def few_token_experts_reference(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """What :func:`few_token_experts` computes, in float32; ``[tokens, hidden]`` in x's dtype."""
    hidden = gated_experts_reference(x, w13, weights, ids)
    out = torch.zeros_like(x, dtype=torch.float32)
    for row, expert in enumerate(ids.flatten().tolist()):
        if expert >= 0:
            out[row // ids.shape[1]] += w2[expert].float() @ hidden[row]
    return out.to(x.dtype)


@triton.jit
def _down_and_sum_kernel(  # type: ignore[no-untyped-def]
    h_ptr,  # [rows, INNER]
    w2_ptr,  # [experts, HIDDEN, INNER]
    expert_ptr,  # [blocks]; of one token: its experts
    row_ptr,  # [blocks, SIZE] by token
    count_ptr,
    out_ptr,  # [tokens, HIDDEN]
    ROWS,  # noqa: N803
    TOKENS,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    INNER: tl.constexpr,  # noqa: N803
    ONE_TOKEN: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < HIDDEN
    places = tl.arange(0, SIZE)
    depths = tl.arange(0, DEPTH)
    STEPS: tl.constexpr = (INNER + DEPTH - 1) // DEPTH  # noqa: N806
    blocks = ROWS
    if not ONE_TOKEN:
        blocks = tl.load(count_ptr)
    out = tl.zeros([SIZE, COLUMNS], tl.float32)
    # One loop over experts and depth, so that loads run ahead from one expert to the next. Its addresses come from the step before:
    # loads that wait for another load of the same step are not taken ahead.
    expert = tl.load(expert_ptr).to(tl.int64)
    rows = tl.where(places == 0, 0, ROWS)
    if not ONE_TOKEN:
        rows = tl.load(row_ptr + places)
    for step in range(blocks * STEPS):
        at = (step % STEPS) * DEPTH + depths
        left = at < INNER
        real = (rows < ROWS) & (expert >= 0)
        chosen = tl.maximum(expert, 0)
        h = tl.load(h_ptr + rows[:, None].to(tl.int64) * INNER + at[None, :], mask=real[:, None] & left[None, :], other=0.0)
        w_pointers = w2_ptr + chosen * (HIDDEN * INNER) + columns[None, :] * INNER + at[:, None]
        w = tl.load(w_pointers, mask=left[:, None] & inside[None, :], other=0.0)
        out = tl.dot(h, w, out, input_precision=PRECISION)
        block = tl.minimum((step + 1) // STEPS, blocks - 1)
        expert = tl.load(expert_ptr + block).to(tl.int64)
        rows = tl.where(places == 0, block, ROWS) if ONE_TOKEN else tl.load(row_ptr + block * SIZE + places)
    stored = out_ptr + places[:, None].to(tl.int64) * HIDDEN + columns[None, :]
    tl.store(stored, out.to(out_ptr.dtype.element_ty), mask=(places < TOKENS)[:, None] & inside[None, :])


def few_token_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    tiles: tuple[Tile, Tile] | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``[tokens, hidden]`` in x's dtype. The host does not wait for the device.

    Args:
        x: ``[tokens, hidden]``, 1 to 16 tokens, float32, bfloat16 or float16; contiguous like the rest.
        w13: ``[experts, 2 * inner, hidden]`` in x's dtype, the gate's rows first.
        w2: ``[experts, hidden, inner]``.
        weights: ``[tokens, experts a token]`` float32.
        ids: ``[tokens, experts a token]`` int32 or int64, a token's experts all different; -1: none.
        tiles: of the two products; None: :func:`tiles_for` the tokens.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernels do not take.
    """
    tokens, hidden = x.shape[0], x.shape[-1]
    reason = reason_against(x, w13, w2, weights, ids)
    if reason is None and not 1 <= tokens <= MOST_TOKENS:
        reason = f"{tokens} tokens; 1 to {MOST_TOKENS} are taken"
    if reason:
        raise ValueError(reason)
    first, second = tiles or tiles_for(tokens)
    blocks = None if tokens == 1 else expert_blocks(ids, w13.shape[0], MOST_TOKENS, by_token=True)
    h = gated_experts(x, w13, weights, ids, blocks, first)
    out = torch.empty_like(x)
    expert, row, count = (ids, ids, ids) if blocks is None else (blocks.expert, blocks.row, blocks.count)
    _down_and_sum_kernel[(triton.cdiv(hidden, second.columns),)](
        h,
        w2,
        expert,
        row,
        count,
        out,
        ids.numel(),
        tokens,
        HIDDEN=hidden,
        INNER=w2.shape[2],
        ONE_TOKEN=blocks is None,
        SIZE=MOST_TOKENS,
        COLUMNS=second.columns,
        DEPTH=second.depth,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=second.warps,
        num_stages=second.stages,
    )
    return out
