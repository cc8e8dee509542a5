"""Dequantise 4-bit weights to memory, in the activation's type, for GEMMs of so many rows that arithmetic is the limit.

A prefill chunk multiplies each weight with tens to thousands of rows. Dequantising it again for every block of rows
costs more than writing it once. A layer of 26B-A4B's experts grows from 0.4 to 1.5 GB, which takes 0.6 ms of an
H100's memory bandwidth. SGLang's Triton kernel, which dequantises in its loop, takes 30 ms for 8,192 tokens
(``runs/2026-11-25-26b-h100-int4``). A weight is rounded once, as in few-row kernels and in a dequantised checkpoint.
"""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.weights import Grouped, Weight, levels_of, words_in_group

WORDS = 512
"""int32 words that a program dequantises, eight values each."""


@triton.jit
def _write_out_kernel(  # type: ignore[no-untyped-def]
    words_ptr,
    scale_ptr,
    zero_ptr,  # of pairs of outputs, or None
    out_ptr,
    words,
    GROUPS: tl.constexpr,  # of an output
    GROUP: tl.constexpr,
    WORDS: tl.constexpr,
    PDL: tl.constexpr,
):
    # The product before reads what is written here.
    await_inputs(PDL)
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    inside = word < words
    levels = tl.load(words_ptr + word, mask=inside, other=0)
    scale = tl.load(scale_ptr + word // GROUP, mask=inside, other=0.0).to(tl.float32)
    place = tl.arange(0, 8)
    zero = 8
    if zero_ptr is not None:
        output = word // GROUP // GROUPS
        pair = tl.load(zero_ptr + output // 2 * GROUPS + word // GROUP % GROUPS, mask=inside, other=0)
        zero = ((pair.to(tl.int32) >> (4 * (output % 2)).to(tl.int32)) & 15)[:, None]
    values = ((levels[:, None] >> (4 * place)[None, :]) & 15) - zero
    numbers = (values.to(tl.float32) * scale[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + word[:, None] * 8 + place[None, :], numbers, mask=inside[:, None])


def room_for(*weights: Weight) -> int:
    """Elements of scratch needed to dequantise these weights one at a time (the largest 4-bit one; 0 if none)."""
    return max((weight.shape.numel() for weight in weights if isinstance(weight, Grouped)), default=0)


def place_of(weight: Weight, room: torch.Tensor) -> torch.Tensor:
    """The part of ``room`` that :func:`write_out` fills, in the weight's shape; an unquantised weight itself.

    Raises:
        ValueError: the weight is fp8, or ``room`` is too small or not one-dimensional.
    """
    if isinstance(weight, torch.Tensor):
        return weight
    if not isinstance(weight, Grouped):
        raise ValueError("an fp8 weight is not dequantised; SGLang's GEMMs read it")
    if room.dim() != 1 or room.numel() < weight.shape.numel():
        raise ValueError(
            f"room for {room.numel()} numbers; a weight of {tuple(weight.shape)} needs {weight.shape.numel()} in one dimension"
        )
    return room[: weight.shape.numel()].view(weight.shape)


def write_out(weight: Weight, room: torch.Tensor) -> torch.Tensor:
    """Dequantise a weight to the start of ``room`` and return it: ``[experts, outputs, width]`` of ``room``'s dtype.

    An unquantised weight is returned itself. ``room``'s old contents are lost. The host does not wait for the device.

    Args:
        weight: a 4-bit weight is contiguous, as ``reason_against_weight`` checks.
        room: scratch, one-dimensional, with at least as many elements as the weight.

    Raises:
        ValueError: as in :func:`place_of`.
    """
    out = place_of(weight, room)
    if isinstance(weight, Grouped):
        words = levels_of(weight)
        _write_out_kernel[(triton.cdiv(words.numel(), WORDS),)](
            words, weight.scale, weight.zeros, out, words.numel(), GROUPS=weight.scale.shape[-1], GROUP=words_in_group(weight),
            WORDS=WORDS, num_warps=4, **launch_options(out.device),
        )  # fmt: skip
    return out
