"""Shared by few-row GEMMs: their tile, the sum over parts of the width after the loop, and the FFN's activation."""

from dataclasses import dataclass

import triton
import triton.language as tl


@dataclass(frozen=True)
class Tile:
    """Tile of a program: output columns, inputs per step, parts of the width, warps, and steps loaded ahead.

    ``across``: warps split the outputs, not the rows, so each weight is converted once, by one warp. ``late``: the
    next kernel's programs start when this one's have read the weight (``dependent_launch.LATE``); None: by the
    weight's bytes.
    """

    outputs: int
    depth: int
    parts: int
    warps: int = 4
    stages: int = 4
    across: bool = False
    late: bool | None = None


@triton.jit
def gelu_tanh(x):  # type: ignore[no-untyped-def]
    """The FFN's activation in float32."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * inner))


@triton.jit
def parts_summed(  # type: ignore[no-untyped-def]
    total,  # float32, of this part
    up_total,
    place,  # of each in [rows, outputs]
    real,
    size,  # rows * outputs
    parts_ptr,  # [PARTS, 1 or 2, rows, outputs] float32
    done_ptr,  # [blocks] int32, zeros; zeros again afterwards
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
):
    """All parts' sums and True in the program that ends a block last, which adds them in their order; others get False."""
    block = tl.program_id(0)
    part = tl.program_id(1)
    halves: tl.constexpr = 2 if GATED else 1
    mine = parts_ptr + part * halves * size + place
    tl.store(mine, total, mask=real)
    if GATED:
        tl.store(mine + size, up_total, mask=real)
    # Every thread's stores come before the count that tells the last program of them.
    tl.debug_barrier()
    last = tl.atomic_add(done_ptr + block, 1, sem="acq_rel", scope="gpu") == PARTS - 1
    if last:
        total = tl.zeros_like(total)
        up_total = tl.zeros_like(up_total)
        for other in range(PARTS):
            theirs = parts_ptr + other * halves * size + place
            # Not from the L1 cache, which does not see what other SMs write.
            total += tl.load(theirs, mask=real, other=0.0, cache_modifier=".cg")
            if GATED:
                up_total += tl.load(theirs + size, mask=real, other=0.0, cache_modifier=".cg")
        tl.store(done_ptr + block, 0)
    return total, up_total, last
