"""``gelu_tanh(gate) * embedding`` in one launch: the gate of a layer's per-layer embedding (E2B, E4B)."""

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options
from sglang_gemma4.kernels.matrices import reason_against_rows

BLOCK = 1024


def gated_embedding_reference(gate: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
    """What :func:`gated_embedding` computes; same arguments and result."""
    return (torch.nn.functional.gelu(gate.float(), approximate="tanh").to(gate.dtype).float() * embedding.float()).to(gate.dtype)


@triton.jit(do_not_specialize=["rows"])
def _gated_embedding_kernel(  # type: ignore[no-untyped-def]
    gate_ptr, embedding_ptr, out_ptr, gate_stride, embedding_stride, rows, width, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    await_inputs(PDL)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = place // width, place % width
    real = row < rows
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=real, other=0.0).to(tl.float32)
    embedding = tl.load(embedding_ptr + row * embedding_stride + column, mask=real, other=0.0).to(tl.float32)
    # 0.5 x (1 + tanh z) = x sigmoid(2 z) with z = sqrt(2/pi) (x + 0.044715 x^3)
    gelu = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    out = gelu.to(out_ptr.dtype.element_ty).to(tl.float32) * embedding
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=real)


def gated_embedding(gate: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
    """``gelu_tanh(gate) * embedding``, a new ``[rows, width]``; as in separate kernels, the gelu is rounded first.

    Args:
        gate: ``[rows, width]``, float32, bfloat16 or float16; its rows need not be adjacent.
        embedding: ``[rows, width]``, of the same dtype, such as one layer's slice of ``[rows, layers, width]``.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, or that the kernel does not take.
    """
    reason = reason_against(gate, embedding)
    if reason:
        raise ValueError(reason)
    rows, width = gate.shape
    out = torch.empty((rows, width), dtype=gate.dtype, device=gate.device)
    if out.numel():
        grid = (triton.cdiv(out.numel(), BLOCK),)
        _gated_embedding_kernel[grid](
            gate, embedding, out, gate.stride(0), embedding.stride(0), rows, width,
            BLOCK=BLOCK, num_warps=4, **launch_options(gate.device),
        )  # fmt: skip
    return out


def reason_against(gate: torch.Tensor, embedding: torch.Tensor) -> str | None:
    """Why the kernel does not take these tensors, or None."""
    reason = reason_against_rows(gate=gate, embedding=embedding)
    if reason is None and gate.shape != embedding.shape:
        reason = f"gate and embedding are {tuple(gate.shape)} and {tuple(embedding.shape)}; one shape is supported"
    return reason
