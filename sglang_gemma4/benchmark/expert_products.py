"""The two GEMMs of SGLang's fused MoE on this card, one at a time and with any tile, as the server launches them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

HIDDEN, INNER, EXPERTS, TOPK = 2816, 704, 128, 8
"""26B-A4B."""
ROUTINGS = 3
"""Batches timed in turn, so that few tokens do not find their experts' weights in the cache."""
POPULARITY = 0.5
"""Spread of the experts' mean logits beside the tokens' own of 1: some experts are asked for more often, as in a trained router."""


def logits(tokens: int, seed: int) -> torch.Tensor:
    """Of a router, ``[tokens, 128]`` float32 on the host, as random as a trained one's."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(tokens, EXPERTS, generator=generator) + POPULARITY * torch.randn(EXPERTS, generator=generator)


@functools.lru_cache(maxsize=64)
def routing(tokens: int, seed: int, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    """Router weights ``[tokens, 8]`` float32 and expert ids int32, of :func:`logits`."""
    top = logits(tokens, seed).topk(TOPK, dim=-1)
    return torch.softmax(top.values, dim=-1).to(device), top.indices.int().to(device)


class Experts:
    """Weights of a layer, 1.5 GB: ``up`` ``[128, 2 * inner, 2816]``, ``down`` ``[128, 2816, inner]``, bfloat16; ``blank``: not filled."""

    def __init__(self, inner: int = INNER, blank: bool = False) -> None:
        self.inner, self.blank = inner, blank
        shapes = ((EXPERTS, 2 * inner, HIDDEN), (EXPERTS, HIDDEN, inner))
        self.up, self.down = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes)
        if not blank:
            for weight in (self.up, self.down):
                weight.normal_(std=weight.shape[2] ** -0.5)


@functools.cache
def blank_experts(inner: int) -> Experts:
    """For launches that compile and compute nothing; one a process."""
    return Experts(inner, blank=True)


def launcher(
    weights: Experts, down: bool, tokens: int, tile: dict[str, Any], seed: int, out: torch.Tensor | None = None
) -> Callable[[], None]:
    """A call of one GEMM for ``tokens`` tokens. Rows are aligned here, once; with blank weights there are none to compute."""
    import triton.language as tl
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel
    from sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size import moe_align_block_size

    probabilities, ids = routing(tokens, seed)
    rows, count, known = moe_align_block_size(ids, tile["BLOCK_SIZE_M"], EXPERTS)
    if weights.blank:
        known.zero_()
    given, weight = (tokens * TOPK, weights.down) if down else (tokens, weights.up)
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(given, weight.shape[2], dtype=torch.bfloat16, device="cuda", generator=generator)
    if out is None:
        out = torch.empty(tokens, TOPK, weight.shape[1], dtype=torch.bfloat16, device="cuda")
    tile = dict(tile)
    tma = tile.pop("USE_TMA", False)

    def call() -> None:
        invoke_fused_moe_kernel(
            x, weight, None, out, None, None, None, probabilities, ids, rows, count, known,
            down, 1 if down else TOPK, tile,
            compute_type=tl.bfloat16, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False,
            per_channel_quant=False, b_use_tma=tma, filter_expert=False, router_topk=TOPK,
        )  # fmt: skip

    return call


def compile_tile(job: tuple[bool, dict[str, Any], Sequence[int], int]) -> str:
    """In a worker process: compile one tile for all numbers of tokens into Triton's cache. "" or why this card does not take it."""
    down, tile, tokens, inner = job
    try:
        weights = blank_experts(inner)
        for each in tokens:
            launcher(weights, down, each, tile, 0)()
        torch.cuda.synchronize()
    except Exception as error:  # out of shared memory or registers, or a tile that the compiler refuses: no candidate
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def floor_microseconds(tokens: int, down: bool, bandwidth: float, teraflops: float, inner: int = INNER) -> float:
    """The longer of reading the chosen experts' weights once and the arithmetic."""
    columns, depth = (HIDDEN, inner) if down else (2 * inner, HIDDEN)
    chosen = sum(int(routing(tokens, seed, "cpu")[1].unique().numel()) for seed in range(ROUTINGS)) / ROUTINGS
    rows = tokens * TOPK
    moved = 2 * (chosen * columns * depth + (rows if down else tokens) * depth + rows * columns)
    return max(moved / bandwidth / 1e3, 2 * rows * columns * depth / teraflops / 1e6)
