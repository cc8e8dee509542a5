"""An MoE router's top-k for up to 16 tokens, in one launch: the choice, its softmax, and the blocks of the experts.

SGLang chooses in one launch and gathers rows by expert in one or two more. For few tokens one program does both: its
choice is still in registers when it writes the blocks.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.experts.expert_blocks import Blocks, expert_blocks_reference
from sglang_gemma4.kernels.matrices import DTYPES

MOST_TOKENS = 16
"""Rows of the smallest tile a matrix instruction takes; a token's place in a block is its number."""
MOST_EXPERTS = 1024


def expert_routing_reference(logits: torch.Tensor, scale: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor, Blocks]:
    """What :func:`expert_routing` computes; ``expert`` and ``row`` of the blocks end with the last block."""
    order = torch.sort(logits.float(), dim=-1, descending=True, stable=True)
    ids = order.indices[:, :topk].int().contiguous()
    weights = torch.softmax(order.values[:, :topk], -1) * scale.float()[ids.long()]
    return weights, ids, expert_blocks_reference(ids, logits.shape[1], MOST_TOKENS, by_token=True)


@triton.jit
def choose(  # type: ignore[no-untyped-def]
    raw,  # [SIZE, BINS], logits as they lie in memory
    scale,  # [BINS] float32
    weights_ptr,  # [tokens, TOPK] float32
    ids_ptr,  # [tokens, TOPK] int32
    expert_ptr,  # [blocks] int32
    row_ptr,  # [blocks, SIZE] int32
    count_ptr,  # [1] int32
    tokens,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,  # experts, padded
    TOPK: tl.constexpr,
    PLACES: tl.constexpr,  # TOPK, padded
    SIZE: tl.constexpr,  # rows a block
    WIDE: tl.constexpr,  # logits of 32 bits, not 16
):
    """Choose for all tokens and write the result; for one program."""
    token = tl.arange(0, SIZE)
    bins = tl.arange(0, BINS)
    places = tl.arange(0, PLACES)
    real = token < tokens
    # A key is a logit, its bits turned so that integers order as floats do, and below it the expert, reversed so that of equal logits the
    # first wins. One maximum finds both, and an expert whatever the logits are.
    if WIDE:
        bits = raw.to(tl.int32, bitcast=True)
        keys = (tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) << 32) | (BINS - 1 - bins[None, :]).to(tl.int64)
        least = tl.full([SIZE, BINS], -(2**63), tl.int64)
    else:
        bits = raw.to(tl.int16, bitcast=True).to(tl.int32)
        keys = (tl.where(bits < 0, bits ^ 0x7FFF, bits) << 16) | (BINS - 1 - bins[None, :])
        least = tl.full([SIZE, BINS], -(2**31), tl.int32)
    keys = tl.where((bins < EXPERTS)[None, :], keys, least)
    rank = tl.zeros([SIZE, BINS], tl.int32)  # 1 + an expert's place among its token's, or 0
    ids = tl.zeros([SIZE, PLACES], tl.int32)
    weights = tl.zeros([SIZE, PLACES], tl.float32)
    largest = tl.zeros([SIZE], tl.float32)
    total = tl.zeros([SIZE], tl.float32)
    for place in tl.static_range(TOPK):
        best = tl.max(keys, 1)
        if WIDE:
            order = (best >> 32).to(tl.int32)
            logit = tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)
        else:
            order = best >> 16
            logit = tl.where(order < 0, order ^ 0x7FFF, order).to(tl.int16).to(raw.dtype, bitcast=True).to(tl.float32)
        chosen = BINS - 1 - (best & (BINS - 1)).to(tl.int32)
        if place == 0:
            largest = logit
        taken = bins[None, :] == chosen[:, None]
        keys = tl.where(taken, least, keys)
        rank = tl.where(taken, place + 1, rank)
        share = tl.exp(logit - largest)
        total += share
        scaled = share * tl.sum(tl.where(taken, scale[None, :], 0.0), 1)
        ids = tl.where(places[None, :] == place, chosen[:, None], ids)
        weights = tl.where(places[None, :] == place, scaled[:, None], weights)
    weights = weights / total[:, None]
    target = token[:, None] * TOPK + places[None, :]
    stored = real[:, None] & (places < TOPK)[None, :]
    tl.store(weights_ptr + target, weights, mask=stored)
    tl.store(ids_ptr + target, ids, mask=stored)
    rank = tl.where(real[:, None], rank, 0)
    present = tl.max((rank > 0).to(tl.int32), 0)
    block = tl.cumsum(present, 0) - 1
    tl.store(count_ptr, tl.sum(present, 0))
    tl.store(expert_ptr + block, bins, mask=present > 0)
    row = tl.where(rank > 0, token[:, None] * TOPK + rank - 1, tokens * TOPK)
    tl.store(row_ptr + block[None, :] * SIZE + token[:, None], row, mask=(present > 0)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def _expert_routing_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,  # [tokens, EXPERTS]
    scale_ptr,  # [EXPERTS]
    weights_ptr,
    ids_ptr,
    expert_ptr,
    row_ptr,
    count_ptr,
    tokens,
    logits_stride,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    TOPK: tl.constexpr,
    PLACES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.arange(0, SIZE)
    bins = tl.arange(0, BINS)
    scale = tl.load(scale_ptr + bins, mask=bins < EXPERTS, other=0.0).to(tl.float32)
    await_inputs(PDL)
    raw = tl.load(
        logits_ptr + token[:, None].to(tl.int64) * logits_stride + bins[None, :],
        mask=(token < tokens)[:, None] & (bins < EXPERTS)[None, :],
        other=0.0,
    )
    choose(raw, scale, weights_ptr, ids_ptr, expert_ptr, row_ptr, count_ptr, tokens, EXPERTS, BINS, TOPK, PLACES, SIZE, WIDE)


def reason_against(logits: torch.Tensor, scale: torch.Tensor, topk: int) -> str | None:
    """Why :func:`expert_routing` does not take these, or None."""
    if logits.dim() != 2 or logits.stride(1) != 1:
        return f"the logits are {tuple(logits.shape)} with strides {tuple(logits.stride())}; [tokens, experts] by rows are supported"
    return reason_against_choice(logits.shape[1], logits.dtype, scale, topk)


def reason_against_choice(experts: int, dtype: torch.dtype, scale: torch.Tensor, topk: int) -> str | None:
    """Why :func:`choose` does not take logits of ``dtype`` for so many experts, or None."""
    if dtype not in DTYPES or scale.dtype not in DTYPES:
        return f"the logits are {dtype} and the scale {scale.dtype}; float32, bfloat16 and float16 are supported"
    if scale.shape != (experts,) or not scale.is_contiguous():
        return f"the scale is {tuple(scale.shape)} with strides {tuple(scale.stride())}; [{experts}], adjacent, is supported"
    if not 1 <= topk <= experts <= MOST_EXPERTS:
        return f"{topk} of {experts} experts; 1 to all of up to {MOST_EXPERTS} are supported"
    return None


def expert_routing(logits: torch.Tensor, scale: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor, Blocks]:
    """Each token's experts, their weights, and the rows by expert. The host does not wait for the device.

    Args:
        logits: ``[tokens, experts]``, 1 to 16 tokens; float32, bfloat16 or float16, a token's logits contiguous.
        scale: ``[experts]``, multiplies an expert's weight after the softmax over a token's experts.
        topk: experts per token.

    Returns:
        weights ``[tokens, topk]`` float32, largest first; ids ``[tokens, topk]`` int32, the lower id where logits are
        equal; and :class:`Blocks` of 16 rows, a row's place in its block being its token's number.

    Raises:
        ValueError: shapes or dtypes that it does not take.
    """
    reason = reason_against(logits, scale, topk)
    tokens, experts = logits.shape[0], logits.shape[-1]
    if reason is None and not 1 <= tokens <= MOST_TOKENS:
        reason = f"{tokens} tokens; 1 to {MOST_TOKENS} are supported"
    if reason:
        raise ValueError(f"expert_routing: {reason}")
    weights, ids, blocks = unwritten(tokens, experts, topk, logits.device)
    _expert_routing_kernel[(1,)](
        logits, scale, weights, ids, blocks.expert, blocks.row, blocks.count, tokens, logits.stride(0),
        **constants(experts, topk, logits.dtype), num_warps=4, **launch_options(logits.device),
    )  # fmt: skip
    return weights, ids, blocks


def unwritten(tokens: int, experts: int, topk: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, Blocks]:
    """Uninitialised weights, ids and blocks for :func:`choose` to fill."""
    most = min(tokens * topk, experts)
    blocks = Blocks(
        torch.empty(most, dtype=torch.int32, device=device),
        torch.empty((most, MOST_TOKENS), dtype=torch.int32, device=device),
        torch.empty(1, dtype=torch.int32, device=device),
    )
    chosen = (tokens, topk)
    return torch.empty(chosen, dtype=torch.float32, device=device), torch.empty(chosen, dtype=torch.int32, device=device), blocks


def constants(experts: int, topk: int, dtype: torch.dtype) -> dict[str, Any]:
    """The constants that :func:`choose` is compiled with; ``dtype`` is the logits'."""
    padded = {"BINS": triton.next_power_of_2(experts), "PLACES": triton.next_power_of_2(topk)}
    return {"EXPERTS": experts, "TOPK": topk, "SIZE": MOST_TOKENS, "WIDE": dtype.itemsize == 4, **padded}
