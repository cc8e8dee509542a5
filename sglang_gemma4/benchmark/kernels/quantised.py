"""Cases of fp8 weights: dense GEMMs and an expert layer of few tokens with SGLang's launches, ours, and ours in bfloat16."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from sglang_gemma4.benchmark.kernels import expert_products as products
from sglang_gemma4.benchmark.kernels.expert_products import Routing
from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, candidates, dependently, lazily, short
from sglang_gemma4.benchmark.kernels.layers import PRODUCTS, activation
from sglang_gemma4.benchmark.kernels.timer import Call
from sglang_gemma4.kernels import register_products
from sglang_gemma4.kernels.dense.few_row_linear import ACROSS_ROWS, counters, few_row_linear
from sglang_gemma4.kernels.dense.parts import Tile
from sglang_gemma4.kernels.experts import few_token_experts, grouped_experts
from sglang_gemma4.kernels.experts import gated_experts as gated
from sglang_gemma4.kernels.experts.expert_routing import MOST_TOKENS, expert_routing
from sglang_gemma4.kernels.weights import FP8, Grouped, Scaled, Weight, scaled

DENSE_TILES = (
    (32, 256, 4, 3), (32, 256, 4, 4), (32, 128, 4, 4), (32, 128, 4, 6), (64, 128, 4, 3), (64, 128, 4, 4), (64, 256, 4, 3), (64, 128, 8, 4),
    (128, 128, 4, 3), (128, 128, 8, 4), (32, 512, 4, 3),
)  # fmt: skip
"""Candidate tiles of dense GEMMs: outputs, depth, warps, stages."""
FIRST = ((32, 128, 4, 4), (32, 128, 4, 5), (32, 256, 4, 3), (32, 256, 4, 4), (64, 128, 4, 4), (64, 256, 4, 3), (64, 128, 8, 4))
SECOND = ((64, 128, 4, 4), (64, 128, 4, 5), (64, 256, 4, 3), (32, 256, 4, 3), (128, 128, 4, 4), (128, 64, 4, 4), (128, 128, 8, 4))
"""Candidate tiles of both GEMMs of the experts."""
FIRST_OF_FOUR = ((32, 256, 4, 3), (32, 256, 4, 4), (32, 256, 4, 5), (64, 256, 4, 3), (64, 256, 8, 3), (32, 128, 4, 5), (64, 128, 4, 4))
SECOND_OF_FOUR = ((64, 256, 4, 2), (64, 256, 4, 3), (32, 256, 4, 3), (128, 256, 4, 2), (128, 256, 8, 3), (64, 128, 4, 4))
"""Candidate tiles of both GEMMs of 4-bit experts."""
SMALL_BATCH = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 4}
LARGE_BATCH = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 8, "num_stages": 4}
"""SGLang's tiles of fp8 experts if it ships none, up to as many tokens as experts and above (``fused_moe_triton_config.py:219``)."""


def fp8_of(place: Place, *shape: int, per_output: bool = True) -> Scaled:
    """Random fp8 values and their scales; on "meta" without values."""
    scale = torch.full(shape[:-1] if per_output else shape[:-2], shape[-1] ** -0.5 / 100, dtype=torch.float32, device=place.device)
    if place.device == "meta":
        return scaled(torch.empty(shape, dtype=FP8, device="meta"), scale)
    levels = torch.empty(shape, dtype=FP8, device=place.device)
    for part in levels.view(torch.uint8) if levels.dim() > 2 else [levels.view(torch.uint8)]:
        part.copy_((100 * torch.randn(part.shape, device=place.device)).clamp(-448, 448).to(FP8).view(torch.uint8))
    return scaled(levels, scale)


def linear(place: Place, product: str, rows: int) -> Row:
    """The row of one GEMM: SGLang's two launches (rows to fp8, CUTLASS) and its activation if gated, ours in bfloat16, and ours."""
    outputs, width, is_gated = place.pick(PRODUCTS[product], (64, 128, PRODUCTS[product][2]))
    weight, x = fp8_of(place, outputs * (1 + is_gated), width), place.rand(rows, width)
    done = counters(outputs, x.device)

    def cutlass() -> torch.Tensor:
        from sglang.srt.layers.quantization.fp8_utils import apply_fp8_linear

        out = apply_fp8_linear(x, weight.levels.t(), weight.scale.view(1, -1))
        return activation(out) if is_gated else out

    def ours(tile: Tile | None = None) -> torch.Tensor:
        return few_row_linear(x, weight, done, gated=is_gated, tile=tile)

    def of_bfloat16() -> Call:
        plain = place.rand(outputs * (1 + is_gated), width, spread=width**-0.5)
        if rows > 16:
            wide = partial(torch.nn.functional.linear, x, plain)
            return (lambda: activation(wide())) if is_gated else wide
        return lambda: few_row_linear(x, plain, done, gated=is_gated)

    tiles = [
        Tile(each, depth, parts, warps, stages, across=rows <= ACROSS_ROWS)
        for each, depth, warps, stages in DENSE_TILES
        for parts in (1, 2, 3, 4, 6, 8)
        if width // depth >= 2 * parts and not (is_gated and each * depth > 8192)
    ]
    both = {"ours by Triton": dependently(ours), "ours": dependently(in_registers(ours))}
    return Row(
        {"SGLang": cutlass, "ours of bfloat16": lazily(of_bfloat16), **both},
        1.0 * weight.levels.numel(),
        tiles=candidates(ours, tiles),
    )


def in_registers(call: Call) -> Call:
    """The call with the small-M kernels that dequantise in registers, where they apply."""

    def launched() -> object:
        register_products.want(True)
        try:
            return call()
        finally:
            register_products.want(False)

    return launched


def experts_of(place: Place, per_output: bool) -> tuple[Scaled, Scaled]:
    """The fp8 experts of a layer of 26B-A4B; the same for every row and set."""
    found = _kept.get((place.device, place.tiny, per_output))
    if found is None:
        hidden, inner, experts = place.pick((products.HIDDEN, products.INNER, products.EXPERTS), (64, 32, 8))
        found = (
            fp8_of(place, experts, 2 * inner, hidden, per_output=per_output),
            fp8_of(place, experts, hidden, inner, per_output=per_output),
        )
        _kept[place.device, place.tiny, per_output] = found
    return found


_kept: dict[tuple[str, bool, bool], tuple[Scaled, Scaled]] = {}


def stock(x: torch.Tensor, w13: Scaled, w2: Scaled, per_output: bool, routed: Callable[[], Routing]) -> Call:
    """SGLang's launches from routing to the sum: align, rows to fp8, GEMM, gelu * up, its rows to fp8, GEMM, sum."""
    import triton.language as tl
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel, moe_sum_reduce_triton

    tile = SMALL_BATCH if x.shape[0] <= len(w13.levels) else LARGE_BATCH
    scales = [weight.scale.unsqueeze(-1) if per_output else weight.scale[:, 0] for weight in (w13, w2)]

    def multiply(
        rows: torch.Tensor, weight: Scaled, scale: torch.Tensor, out: torch.Tensor, down: bool, chosen: Routing, blocks: Any
    ) -> None:
        invoke_fused_moe_kernel(
            rows, weight.levels, None, out, None, scale, None, *chosen, *blocks, down, 1 if down else chosen[1].shape[1], tile,
            compute_type=tl.bfloat16, use_fp8_w8a8=True, use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False,
            per_channel_quant=per_output, filter_expert=False, router_topk=chosen[1].shape[1],
        )  # fmt: skip

    def call() -> torch.Tensor:
        from sgl_kernel import moe_sum_reduce

        chosen = routed()
        tokens, topk = chosen[1].shape
        blocks = products.align(chosen[1], tile["BLOCK_SIZE_M"], len(w13.levels))
        both, out = x.new_empty(tokens * topk, w13.shape[1]), torch.empty_like(x)
        each = x.new_empty(tokens, topk, x.shape[1])
        multiply(x, w13, scales[0], both, False, chosen, blocks)
        multiply(activation(both), w2, scales[1], each, True, chosen, blocks)
        (moe_sum_reduce_triton if tokens <= 32 else moe_sum_reduce)(each, out, 1.0)
        return out

    return call


def layer(place: Place, scales: str, tokens: int) -> Row:
    """The row of a layer's fp8 experts, from the router's logits on; each set of inputs has its own logits."""
    per_output = scales == "output"
    w13, w2 = experts_of(place, per_output)
    return layer_of(place, tokens, w13, w2, {"SGLang": partial(stock, w13=w13, w2=w2, per_output=per_output)})


def with_eights(weight: Grouped) -> Grouped:
    """The same weight with its zero points of 8 as a tensor."""
    shape = (*weight.scale.shape[:-2], weight.scale.shape[-2] // 2, weight.scale.shape[-1])
    return Grouped(weight.levels, weight.scale, torch.full(shape, 0x88, dtype=torch.uint8, device=weight.device))


def layer_of(place: Place, tokens: int, w13: Weight, w2: Weight, theirs: Mapping[str, Callable[..., Call]]) -> Row:
    """The row of a layer's experts with any weights; each of ``theirs`` makes a call from the rows and a routing."""
    hidden, topk = w13.shape[2], place.pick(products.TOPK, 2)
    x, scale = place.rand(tokens, hidden), torch.ones(w13.shape[0], dtype=place.dtype, device=place.device)
    logits = products.logits(tokens, place.seed, w13.shape[0]).to(place.device, place.dtype)
    done = few_token_experts.counters(hidden, x.device)
    choice = partial(products.choose, logits, scale, topk)

    def compute(first: Weight, second: Weight, tiles: Any = None) -> torch.Tensor:
        if tokens > MOST_TOKENS:
            return grouped_experts.grouped_experts(x, first, second, *choice(), tiles=tiles)
        shares, ids, blocks = expert_routing(logits, scale, topk)
        return few_token_experts.few_token_experts(x, first, second, shares, ids, done, blocks, tiles=tiles)

    def of_bfloat16() -> Call:
        weights = products.experts_of(place)
        return dependently(partial(compute, weights.up, weights.down))

    ways = {name: lazily(partial(make, x, routed=choice)) for name, make in theirs.items()}
    ways |= {"ours of bfloat16": lazily(of_bfloat16)}
    ways["ours by Triton"] = dependently(partial(compute, w13, w2))
    if isinstance(w13, Grouped) and isinstance(w2, Grouped):
        ways["ours, zero points"] = dependently(partial(compute, with_eights(w13), with_eights(w2)))
    ways["ours"] = dependently(in_registers(partial(compute, w13, w2)))
    both = [products.work(tokens, down) for down in (False, True)]
    saved = 2.0 - (0.5 + 2 / w13.group if isinstance(w13, Grouped) else 1)  # bytes per element
    moved = sum(bytes_ for bytes_, _ in both) - saved * products.chosen(tokens) * 3 * products.HIDDEN * products.INNER
    tiles = {name: dependently(partial(compute, w13, w2, tile)) for name, tile in _pairs(tokens, isinstance(w13, Grouped))}
    return Row(ways, moved, sum(flops for _, flops in both), tiles)


def _pairs(tokens: int, four: bool) -> list[tuple[str, Any]]:
    """Names and tiles with another tile for one GEMM and the served tile for the other."""
    few = tokens <= MOST_TOKENS
    usual = few_token_experts.tiles_for(tokens) if few else grouped_experts.tiles_for(tokens)[1:]
    first, second = grouped_experts.four_bit_tiles_for(tokens)[1:] if four else usual
    firsts, seconds = (FIRST_OF_FOUR, SECOND_OF_FOUR) if four else (FIRST, SECOND)
    pairs = [*((gated.Tile(*tile), second) for tile in firsts), *((first, gated.Tile(*tile)) for tile in seconds)]
    if few:
        return [(f"ours, {short(*pair)}", pair) for pair in pairs]
    sizes = (16, 32, 64) if tokens > 64 else (16, 32)
    return [(f"ours, {size} rows, {short(*pair)}", (size, *pair)) for size in sizes for pair in pairs]


CASES = (
    Case(
        "linear-fp8",
        "a small-M dense GEMM with an fp8 weight: SGLang's launches, ours of bfloat16 (cuBLAS from 17 rows), ours by Triton, ours; "
        "floor: the weight read once",
        {"product": tuple(name for name in PRODUCTS if "router" not in name), "rows": (1, 4, 8, 16, 24, 32, 48, 64)},
        linear,
        {"product": ("26B down", "26B gate and up"), "rows": (3,)},
        alike=False,  # bfloat16 has other weights
    ),
    Case(
        "experts-fp8",
        "a layer's fp8 experts from the router's logits on: SGLang's launches, ours of bfloat16, ours by Triton, ours; "
        "floor: the chosen experts read once",
        {"scales": ("expert", "output"), "tokens": (1, 4, 8, 16, 32, 64, 128, 320)},
        layer,
        {"scales": ("expert", "output"), "tokens": (3, 20)},
        sets=products.ROUTINGS,
        alike=False,
    ),
)
