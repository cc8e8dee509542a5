"""An expert layer of 26B-A4B with random routing, and the GEMMs of SGLang's fused MoE one at a time, with any tile."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_gemma4.benchmark.kernels.harness import Place

HIDDEN, INNER, EXPERTS, TOPK = 2816, 704, 128, 8
"""The sizes of 26B-A4B."""
ROUTINGS = 3
"""Number of batches timed alternately, so that few tokens do not find their experts' weights in the cache."""
POPULARITY = 0.5
"""Standard deviation of the experts' mean logits (a token's own have 1): some experts are chosen more often, as in a trained router."""
Routing = tuple[torch.Tensor, torch.Tensor]
"""Router weights ``[tokens, topk]`` float32, expert ids ``[tokens, topk]`` int32."""


def logits(tokens: int, seed: int, experts: int = EXPERTS) -> torch.Tensor:
    """Router logits ``[tokens, experts]``, float32 on the host, about as uneven as a trained router's."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(tokens, experts, generator=generator) + POPULARITY * torch.randn(experts, generator=generator)


@functools.lru_cache(maxsize=64)
def routing(tokens: int, seed: int, device: str = "cuda", experts: int = EXPERTS, topk: int = TOPK) -> Routing:
    """The routing of :func:`logits`."""
    top = logits(tokens, seed, experts).topk(topk, dim=-1)
    return torch.softmax(top.values, dim=-1).to(device), top.indices.int().to(device)


def choose(logits: torch.Tensor, scale: torch.Tensor, topk: int) -> Routing:
    """Weights and expert ids of a router's logits, by SGLang's launch, or by torch without a GPU."""
    if not logits.is_cuda:
        top = logits.topk(topk)
        return torch.softmax(top.values, -1) * scale[top.indices], top.indices.int()
    from sglang.kernels.ops.moe.gemma4_routing import gemma4_fused_routing

    found: Routing = gemma4_fused_routing(logits, scale, topk)
    return found


@dataclass(frozen=True, eq=False)
class Experts:
    """Weights of a layer, 1.5 GB at full size: ``up`` ``[experts, 2 * inner, hidden]``, ``down`` ``[experts, hidden, inner]``."""

    up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def make(cls, place: Place, inner: int = INNER, blank: bool = False) -> "Experts":
        """Random weights, or unfilled ones (``blank``) for launches that only compile."""
        hidden, inner, experts = place.pick((HIDDEN, inner, EXPERTS), (64, 32, 8))
        shapes = ((experts, 2 * inner, hidden), (experts, hidden, inner))
        up, down = (torch.empty(shape, dtype=place.dtype, device=place.device) for shape in shapes)
        if not blank:
            for weight in (up, down):
                weight.normal_(std=weight.shape[2] ** -0.5)
        return cls(up, down)


experts_of = functools.lru_cache(maxsize=1)(Experts.make)
"""Cached, so that every row and set uses the same weights."""


def multiply(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, routed: Routing, aligned: Any, down: bool, tile: dict[str, Any]
) -> None:
    """One launch of SGLang's fused MoE kernel, as a server makes it; ``aligned`` is what ``moe_align_block_size`` returned."""
    import triton.language as tl
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel

    topk = routed[1].shape[1]
    options = {name: value for name, value in tile.items() if name != "USE_TMA"}
    invoke_fused_moe_kernel(
        x, weight, None, out, None, None, None, *routed, *aligned, down, 1 if down else topk, options,
        compute_type=tl.bfloat16, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False,
        per_channel_quant=False, b_use_tma=tile.get("USE_TMA", False), filter_expert=False, router_topk=topk,
    )  # fmt: skip


def align(ids: torch.Tensor, size: int, experts: int = EXPERTS) -> Any:
    """Run SGLang's launch that sorts rows into blocks of ``size`` rows of one expert."""
    from sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size import moe_align_block_size

    return moe_align_block_size(ids, size, experts)


def launcher(
    weights: Experts, down: bool, tokens: int, tile: dict[str, Any], seed: int, out: torch.Tensor | None = None, blank: bool = False
) -> Callable[[], torch.Tensor]:
    """A call of one GEMM for ``tokens`` tokens. Its rows are aligned here, once; with ``blank`` no row is computed."""
    routed = routing(tokens, seed)
    aligned = align(routed[1], tile["BLOCK_SIZE_M"])
    if blank:
        aligned[2].zero_()
    given, weight = (tokens * TOPK, weights.down) if down else (tokens, weights.up)
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(given, weight.shape[2], dtype=torch.bfloat16, device="cuda", generator=generator)
    target = out if out is not None else torch.empty(tokens, TOPK, weight.shape[1], dtype=torch.bfloat16, device="cuda")

    def call() -> torch.Tensor:
        multiply(x, weight, target, routed, aligned, down, tile)
        return target

    return call


def chosen(tokens: int) -> float:
    """Number of distinct experts in a batch, averaged over :data:`ROUTINGS` routings."""
    return sum(int(routing(tokens, seed, "cpu")[1].unique().numel()) for seed in range(ROUTINGS)) / ROUTINGS


def work(tokens: int, down: bool, inner: int = INNER) -> tuple[float, float]:
    """(bytes, FLOPs) of one GEMM; bytes are the chosen experts' weights and the rows in and out, each once."""
    columns, depth = (HIDDEN, inner) if down else (2 * inner, HIDDEN)
    rows = tokens * TOPK
    moved = 2 * (chosen(tokens) * columns * depth + (rows if down else tokens) * depth + rows * columns)
    return moved, 2.0 * rows * columns * depth
