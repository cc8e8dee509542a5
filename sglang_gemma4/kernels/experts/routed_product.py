"""An MoE router's GEMM and top-k for up to 16 tokens, in one launch.

A program multiplies a slice of the width for all experts, and loads its weights before its input is ready. The last
program adds up the slices, always in the same order, rounds the logits like a GEMM's output in memory, and chooses
from them.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.experts import expert_routing
from sglang_gemma4.kernels.experts.expert_blocks import Blocks
from sglang_gemma4.kernels.experts.expert_routing import MOST_TOKENS, choose
from sglang_gemma4.kernels.matrices import reason_against_rows

DEPTH = 128
"""Part of the width that a program multiplies."""
MOST_BYTES = 64 << 10
"""Most bytes of weights that a program holds; they pass through shared memory, of which some GPUs have 99 KiB."""
MOST_PARTS = 64
WARPS = 8


def routed_product_reference(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, topk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Blocks]:
    """What :func:`routed_product` computes."""
    logits = (x.float() @ weight.float().T).to(x.dtype)
    return logits, *expert_routing.expert_routing_reference(logits, scale, topk)


@triton.jit(do_not_specialize=["tokens"])
def _routed_product_kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # [tokens, WIDTH]
    weight_ptr,  # [EXPERTS, WIDTH]
    scale_ptr,  # [EXPERTS]
    logits_ptr,  # [tokens, EXPERTS]
    weights_ptr,
    ids_ptr,
    expert_ptr,
    row_ptr,
    count_ptr,
    parts_ptr,  # [PARTS, tokens, EXPERTS] float32
    done_ptr,  # [1] int32, zero; zero again afterwards
    tokens,
    x_stride,
    weight_stride,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    TOPK: tl.constexpr,
    PLACES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    part = tl.program_id(0)
    token = tl.arange(0, SIZE)
    bins = tl.arange(0, BINS)
    column = part * DEPTH + tl.arange(0, DEPTH)
    real = (token < tokens)[:, None] & (bins < EXPERTS)[None, :]
    inside = column < WIDTH
    weight = tl.load(
        weight_ptr + bins[None, :].to(tl.int64) * weight_stride + column[:, None],
        mask=(bins < EXPERTS)[None, :] & inside[:, None],
        other=0.0,
    )
    scale = tl.load(scale_ptr + bins, mask=bins < EXPERTS, other=0.0).to(tl.float32)
    await_inputs(PDL)
    x = tl.load(
        x_ptr + token[:, None].to(tl.int64) * x_stride + column[None, :], mask=(token < tokens)[:, None] & inside[None, :], other=0.0
    )
    product = tl.dot(x, weight, input_precision=PRECISION)
    place = token[:, None] * EXPERTS + bins[None, :]
    tl.store(parts_ptr + part * (tokens * EXPERTS) + place, product, mask=real)
    # Every thread's stores come before the count that tells the last program of them.
    tl.debug_barrier()
    if tl.atomic_add(done_ptr, 1, sem="acq_rel", scope="gpu") == PARTS - 1:
        total = tl.zeros([SIZE, BINS], tl.float32)
        for other in tl.static_range(PARTS):
            # Not from the L1 cache, which does not see what other SMs write.
            total += tl.load(parts_ptr + other * (tokens * EXPERTS) + place, mask=real, other=0.0, cache_modifier=".cg")
        logits = total.to(logits_ptr.dtype.element_ty)
        tl.store(logits_ptr + place, logits, mask=real)
        choose(logits, scale, weights_ptr, ids_ptr, expert_ptr, row_ptr, count_ptr, tokens, EXPERTS, BINS, TOPK, PLACES, SIZE, WIDE)
        tl.store(done_ptr, 0)


def counter(device: torch.device) -> torch.Tensor:
    """A zeroed counter of finished programs for the calls of one router, ``[1]`` int32."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def reason_against(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, topk: int) -> str | None:
    """Why :func:`routed_product` does not take these, or None; the number of tokens is not checked."""
    if reason := reason_against_rows(x=x, weight=weight):
        return reason
    if x.shape[1] != weight.shape[1]:
        return f"x is {tuple(x.shape)} and the router's weight {tuple(weight.shape)}; [tokens, width] and [experts, width] are supported"
    experts, width = weight.shape
    most = MOST_BYTES // (DEPTH * weight.element_size())
    if triton.next_power_of_2(experts) > most or width > MOST_PARTS * DEPTH:
        taken = f"up to {most} experts of {weight.dtype} and a width of {MOST_PARTS * DEPTH} are supported"
        return f"the router's weight is {tuple(weight.shape)}; {taken}"
    return expert_routing.reason_against_choice(weight.shape[0], x.dtype, scale, topk)


def routed_product(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, topk: int, done: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Blocks]:
    """``x @ weight.T`` and the choice of ``expert_routing`` from it. The host does not wait for the device.

    Args:
        x: ``[tokens, width]``, 1 to 16 tokens, rows contiguous; float32, bfloat16 or float16.
        weight: ``[experts, width]`` of the same dtype, rows contiguous.
        scale: ``[experts]``, multiplies an expert's weight after the softmax over a token's experts.
        topk: experts per token.
        done: from :func:`counter`, for this router alone: two calls that may run at the same time must not share it.

    Returns:
        logits ``[tokens, experts]`` of x's dtype; weights ``[tokens, topk]`` float32, ids ``[tokens, topk]`` int32
        and :class:`Blocks` as ``expert_routing`` gives them for these logits.

    Raises:
        ValueError: shapes or dtypes that it does not take.
    """
    reason = reason_against(x, weight, scale, topk)
    tokens = x.shape[0]
    if reason is None and not 1 <= tokens <= MOST_TOKENS:
        reason = f"{tokens} tokens; 1 to {MOST_TOKENS} are supported"
    if reason is None and (done.dtype != torch.int32 or done.numel() != 1):
        reason = f"{done.numel()} counters of {done.dtype}; one of int32 is supported, see counter()"
    if reason:
        raise ValueError(f"routed_product: {reason}")
    experts, width = weight.shape
    parts = triton.cdiv(width, DEPTH)
    logits = torch.empty((tokens, experts), dtype=x.dtype, device=x.device)
    weights, ids, blocks = expert_routing.unwritten(tokens, experts, topk, x.device)
    products = torch.empty((parts, tokens, experts), dtype=torch.float32, device=x.device)
    _routed_product_kernel[(parts,)](
        x, weight, scale, logits, weights, ids, blocks.expert, blocks.row, blocks.count, products, done, tokens,
        x.stride(0), weight.stride(0), WIDTH=width, DEPTH=DEPTH, PARTS=parts, **expert_routing.constants(experts, topk, x.dtype),
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=WARPS, **launch_options(x.device),
    )  # fmt: skip
    return logits, weights, ids, blocks
