"""A request's cached keys in parts that fill the card: how many, and the join of what attention found in each.

The host knows their largest number only; a request's own follows from its length on the device, so that nobody waits for it.
"""

import functools
import math

import torch
import triton
import triton.language as tl

from sglang_gemma4.kernels.dependent_launch import await_inputs, launch_options

MOST_PARTS = 64
LEAST_KEYS = 128
"""Keys that a part has at least, unless it is the only one: below, joining costs more than it saves."""
MOST_KEYS = 2048
"""Keys that a part has at most while parts are left: longer ones leave the card idle behind the last of them."""
PROGRAMS_PER_MULTIPROCESSOR = 2
"""That fill the card; ``MOST_PROGRAMS_PER_MULTIPROCESSOR`` bounds the memory of the parts."""
MOST_PROGRAMS_PER_MULTIPROCESSOR = 16


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a card; 1 elsewhere."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def parts_for(requests: int, kv_heads: int, multiprocessors: int) -> tuple[int, int]:
    """Parts a request is cut into to fill the card, and most that a long one is, both powers of two; its length decides on the device."""
    rows = max(1, requests * kv_heads)
    fill, room = (count * multiprocessors / rows for count in (PROGRAMS_PER_MULTIPROCESSOR, MOST_PROGRAMS_PER_MULTIPROCESSOR))
    wanted = 2 ** round(math.log2(max(1.0, fill)))
    return min(MOST_PARTS, wanted), min(MOST_PARTS, max(wanted, 2 ** int(math.log2(max(1.0, room)))))


@triton.jit
def parts_of(length, wanted, most, LEAST: tl.constexpr, MOST: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Parts a request of ``length`` cached keys is cut into, and keys in each."""
    parts = tl.maximum(1, tl.minimum(tl.minimum(most, length // LEAST), tl.maximum(wanted, length // MOST)))
    return parts, tl.cdiv(length, parts)


@triton.jit
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
    first = (request * KV_HEADS + head // GROUP) * most
    part = tl.arange(0, BLOCK_PARTS)
    lse = tl.load(part_lse_ptr + (first + part) * (QUERIES * GROUP) + row, mask=part < parts, other=float("-inf"))
    top = tl.max(lse, 0)
    weights = tl.exp(lse - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weights, 0)
    dims = tl.arange(0, V_DIM)
    out = tl.zeros([V_DIM], tl.float32)
    for number in range(parts):
        at = (first + number) * (QUERIES * GROUP) + row
        weight = tl.exp(tl.load(part_lse_ptr + at) - tl.where(top == float("-inf"), 0.0, top))
        out += weight * tl.load(part_out_ptr + at * V_DIM + dims)
    out = out / tl.where(total > 0, total, 1.0)
    stored = out_ptr + (token * (KV_HEADS * GROUP) + head) * V_DIM + dims
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
