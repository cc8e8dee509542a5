"""A request's cached keys in parts that fill the card: how many, and the join of what attention found in each.

The host knows their largest number only; a request's own follows from its length on the device, so that the host does not wait for it.
"""

import functools
import math

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options

MOST_PARTS = 64
LEAST_KEYS = 64
"""Keys that a part has at least, unless it is the only one: below, joining costs more than it saves."""
MOST_KEYS = 2048
"""Keys that a part has at most while parts are left: longer ones leave the card idle behind the last of them."""
PROGRAMS_PER_MULTIPROCESSOR = 2
"""That fill the card; ``MOST_PROGRAMS_PER_MULTIPROCESSOR`` bounds the memory of the parts."""
MOST_PROGRAMS_PER_MULTIPROCESSOR = 16
JOINING = 1.06
"""What cutting requests in two costs where they fill the card uncut: 4 of 78 µs at 32 requests of 1,000 keys."""


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a card; 1 elsewhere."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def parts_for(requests: int, kv_heads: int, multiprocessors: int) -> tuple[int, int]:
    """Parts a request is cut into to fill the card, and most that a long one is, both powers of two; its length decides on the device.

    Where requests fill the card more than once, they are cut in two if the last programs then leave less of it idle.
    """
    rows = max(1, requests * kv_heads)
    fill, room = (count * multiprocessors / rows for count in (PROGRAMS_PER_MULTIPROCESSOR, MOST_PROGRAMS_PER_MULTIPROCESSOR))
    wanted = 2 ** round(math.log2(max(1.0, fill)))
    if fill < 1 and room >= 2 and math.ceil(2 / fill) / 2 * JOINING < math.ceil(1 / fill):
        wanted = 2
    return min(MOST_PARTS, wanted), min(MOST_PARTS, max(wanted, 2 ** int(math.log2(max(1.0, room)))))


@triton.jit
def parts_of(length, wanted, most, LEAST: tl.constexpr, MOST: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Parts a request of ``length`` cached keys is cut into, and keys in each."""
    parts = tl.maximum(1, tl.minimum(tl.minimum(most, length // LEAST), tl.maximum(wanted, length // MOST)))
    return parts, tl.cdiv(length, parts)


@triton.jit(do_not_specialize=["wanted", "most"])
def _join_kernel(  # type: ignore[no-untyped-def]
    part_out_ptr,
    part_lse_ptr,
    kv_indptr_ptr,
    out_ptr,  # [tokens, heads, value dim]
    wanted,
    most,
    KV_HEADS: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    QUERIES: tl.constexpr,  # noqa: N803
    V_DIM: tl.constexpr,  # noqa: N803
    LEAST: tl.constexpr,  # noqa: N803 - keys in a part
    MOST: tl.constexpr,  # noqa: N803
    BLOCK_PARTS: tl.constexpr,  # noqa: N803
    PDL: tl.constexpr,  # noqa: N803
):
    await_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    request = token // QUERIES
    row = (token % QUERIES) * GROUP + head % GROUP
    length = tl.load(kv_indptr_ptr + request + 1).to(tl.int32) - tl.load(kv_indptr_ptr + request).to(tl.int32)
    parts, _ = parts_of(length, wanted, most, LEAST, MOST)
    only = tl.arange(0, 1)
    real = only == 0
    place = (request * KV_HEADS + head // GROUP) * most * (QUERIES * GROUP) + row + only
    dims = tl.arange(0, V_DIM)
    numbers = tl.arange(0, BLOCK_PARTS)
    there = real[:, None] & (numbers < parts)[None, :]
    lse = part_lse_ptr + place[:, None] + numbers[None, :] * (QUERIES * GROUP)
    top = tl.max(tl.load(lse, mask=there, other=float("-inf"), cache_modifier=".cg"), 1)
    safe = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros_like(safe)
    out = total[:, None] + tl.zeros_like(dims)[None, :]
    for number in range(parts):
        at = place + number * (QUERIES * GROUP)
        weight = tl.exp(tl.load(part_lse_ptr + at, mask=real, other=float("-inf"), cache_modifier=".cg") - safe)
        total += weight
        found = tl.load(part_out_ptr + at[:, None] * V_DIM + dims[None, :], mask=real[:, None], other=0.0, cache_modifier=".cg")
        out += weight[:, None] * found
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    stored = out_ptr + (token * (KV_HEADS * GROUP) + head) * V_DIM + only[:, None] + dims[None, :]
    tl.store(stored, out.to(out_ptr.dtype.element_ty))


def join_parts(part_out: torch.Tensor, part_lse: torch.Tensor, kv_indptr: torch.Tensor, out: torch.Tensor, wanted: int) -> torch.Tensor:
    """Write ``out`` ``[tokens, heads, value dim]`` from the outputs of the parts, weighted by their sums of exponents, and return it.

    Args:
        part_out: ``[requests, KV heads, parts there is room for, rows, value dim]`` float32; a row is a query token's query head.
        part_lse: ``[requests, KV heads, parts, rows]`` float32, the logarithm of each row's sum.
        kv_indptr: ``[requests + 1]`` int, where each request's slots begin.
        wanted: parts a request is cut into where its keys suffice.
    """
    requests, kv_heads, most, rows, v_dim = part_out.shape
    queries = out.shape[0] // requests
    _join_kernel[(out.shape[0], out.shape[1])](
        part_out, part_lse, kv_indptr, out, wanted, most,
        KV_HEADS=kv_heads,
        GROUP=rows // queries,
        QUERIES=queries,
        V_DIM=v_dim,
        LEAST=LEAST_KEYS,
        MOST=MOST_KEYS,
        BLOCK_PARTS=MOST_PARTS,
        num_warps=4,
        **launch_options(out.device),
    )  # fmt: skip
    return out
