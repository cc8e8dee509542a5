"""Cases of 4-bit weights, dense and experts: SGLang's Triton and Marlin launches, ours, and ours in bfloat16."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sglang_gemma4.benchmark.kernels import expert_products as products
from sglang_gemma4.benchmark.kernels.expert_products import Routing
from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, candidates, dependently, lazily
from sglang_gemma4.benchmark.kernels.layers import PRODUCTS, activation
from sglang_gemma4.benchmark.kernels.quantised import in_registers, layer_of, with_eights
from sglang_gemma4.benchmark.kernels.timer import Call
from sglang_gemma4.kernels import register_products, warpgroup_products
from sglang_gemma4.kernels.dense.few_row_linear import MOST_ROWS, counters, few_row_linear
from sglang_gemma4.kernels.dense.parts import Tile
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.kernels.experts.prefill_experts import prefill_experts
from sglang_gemma4.kernels.register_products import Warps
from sglang_gemma4.kernels.weights import Grouped, Weight
from sglang_gemma4.kernels.written_out import room_for, write_out

CHUNK_TILES = (
    *(warpgroup_products.Tile(32, *each) for each in ((4, 2), (4, 3), (4, 4), (6, 4))),
    *(warpgroup_products.Tile(64, *each) for each in ((3, 1), (4, 2), (4, 3), (4, 4), (6, 2), (6, 4))),
)
"""Tiles of ``chunk_experts`` that fit into the registers."""
GROUP = 32
"""Group size of 26B-A4B's experts: their 704 inputs are not a multiple of 128."""
LINEAR_TILES = (
    (16, 256, 4, 3),
    (32, 256, 4, 3),
    (32, 256, 4, 4),
    (32, 512, 4, 3),
    (64, 256, 4, 3),
    (64, 256, 8, 3),
    (64, 128, 4, 4),
    (128, 256, 8, 2),
)
"""Tiles of dense GEMMs: outputs, depth, warps, stages."""
LINEAR_WARPS = ((16, 8, 1), (32, 8, 1), (16, 4, 1), (32, 4, 1), (32, 4, 2), (64, 4, 2), (16, 16, 1))
"""Layouts of the dense GEMMs in registers: outputs, warps along the width and across the outputs."""
FEW = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
MANY = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
"""SGLang's tiles if it ships none: FEW up to as many tokens as experts, MANY above (``fused_moe_triton_config.py:246``)."""


def made(place: Place) -> tuple[Grouped, Grouped]:
    """A layer's experts with random int4 values; the same for every row and set."""
    found = _kept.get((place.device, place.tiny))
    if found is None:
        hidden, inner, experts = place.pick((products.HIDDEN, products.INNER, products.EXPERTS), (64, 32, 8))
        found = _weight(place, experts, 2 * inner, hidden), _weight(place, experts, hidden, inner)
        _kept[place.device, place.tiny] = found
    return found


_kept: dict[tuple[str, bool], tuple[Grouped, Grouped]] = {}


def _weight(place: Place, *shape: int) -> Grouped:
    levels = torch.empty((*shape[:-1], shape[-1] // 2), dtype=torch.uint8, device=place.device)
    if place.device != "meta":
        levels.random_(0, 256)
    scale = torch.full((*shape[:-1], shape[-1] // GROUP), shape[-1] ** -0.5 / 4.6, dtype=place.dtype, device=place.device)
    return Grouped(levels, scale)


def by_triton(x: torch.Tensor, w13: Grouped, w2: Grouped, routed: Callable[[], Routing]) -> Call:
    """SGLang's launches from routing to the sum: align, GEMM, gelu * up, GEMM, sum."""
    import triton.language as tl
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel, moe_sum_reduce_triton

    tile = FEW if x.shape[0] <= w13.shape[0] else MANY

    def multiply(rows: torch.Tensor, weight: Grouped, out: torch.Tensor, down: bool, chosen: Routing, blocks: Any) -> None:
        invoke_fused_moe_kernel(
            rows, weight.levels, None, out, None, weight.scale, weight.zeros, *chosen, *blocks, down, 1 if down else chosen[1].shape[1],
            tile, compute_type=tl.bfloat16, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=True,
            per_channel_quant=False, block_shape=[0, weight.group], filter_expert=False, router_topk=chosen[1].shape[1],
        )  # fmt: skip

    def call() -> torch.Tensor:
        from sgl_kernel import moe_sum_reduce

        chosen = routed()
        tokens, topk = chosen[1].shape
        blocks = products.align(chosen[1], tile["BLOCK_SIZE_M"], w13.shape[0])
        both, out = x.new_empty(tokens * topk, w13.shape[1]), torch.empty_like(x)
        each = x.new_empty(tokens, topk, x.shape[1])
        multiply(x, w13, both, False, chosen, blocks)
        multiply(activation(both), w2, each, True, chosen, blocks)
        (moe_sum_reduce_triton if tokens <= 32 else moe_sum_reduce)(each, out, 1.0)
        return out

    return call


def by_marlin(x: torch.Tensor, w13: Grouped, w2: Grouped, routed: Callable[[], Routing]) -> Call:
    """SGLang's Marlin launches on a repacked copy of the weights; they support only silu."""
    from sglang.kernels.ops.quantization.gptq_marlin_repack import gptq_marlin_repack
    from sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe import fused_marlin_moe
    from sglang.srt.layers.quantization.marlin_utils import marlin_moe_permute_scales

    packed, scales = [], []
    none = torch.empty(0, dtype=torch.int32, device=x.device)
    for weight in (w13, w2):
        experts, outputs, width = weight.shape
        words = weight.levels.view(torch.int32)
        packed.append(torch.stack([gptq_marlin_repack(words[one].t().contiguous(), none, width, outputs, 4) for one in range(experts)]))
        scales.append(marlin_moe_permute_scales(weight.scale.mT.contiguous(), width, outputs, weight.group))
    logits = x.new_empty(x.shape[0], w13.shape[0])

    def call() -> torch.Tensor:
        out: torch.Tensor = fused_marlin_moe(x, *packed, *scales, logits, *routed(), num_bits=4)
        return out

    return call


def layer(place: Place, tokens: int) -> Row:
    """The row of a layer's experts, from the router's logits on; each set of inputs has its own logits."""
    w13, w2 = made(place)
    theirs: dict[str, Callable[..., Call]] = {
        "SGLang, Triton": partial(by_triton, w13=w13, w2=w2),
        "SGLang, Triton, zero points": partial(by_triton, w13=with_eights(w13), w2=with_eights(w2)),
        "SGLang, Marlin": partial(by_marlin, w13=w13, w2=w2),
    }
    return layer_of(place, tokens, w13, w2, theirs)


def chunk(place: Place, tokens: int) -> Row:
    """The row of a layer's experts in a prefill chunk; its floor is that of bfloat16 GEMMs, so the gap is the cost of dequantising."""
    w13, w2 = made(place)
    experts, _, hidden = w13.shape
    x, topk = place.rand(tokens, hidden), place.pick(products.TOPK, 2)
    routed = products.routing(tokens, place.seed, place.device, experts, topk)
    room = torch.empty(room_for(w13, w2), dtype=place.dtype, device=place.device)
    cuda = place.device == "cuda"

    def compute(first: Weight, second: Weight) -> torch.Tensor:
        from sglang_gemma4.models.layers.expert_layers import many_token_experts

        return (many_token_experts if cuda else prefill_experts)(x, first, second, *routed, room=room)

    def both_written() -> None:
        write_out(w13, room)
        write_out(w2, room)

    def of_bfloat16() -> Call:
        plain = products.experts_of(place)
        return partial(compute, plain.up, plain.down)

    ways: dict[str, Callable[[], object]] = {
        "SGLang, Triton": lazily(lambda: by_triton(x, w13, w2, lambda: routed)),
        "SGLang, Marlin": lazily(lambda: by_marlin(x, w13, w2, lambda: routed)),
        "ours of few rows": lambda: grouped_experts(x, w13, w2, *routed),
        "ours of bfloat16": lazily(of_bfloat16),
        "writing out alone": both_written,
        "ours": partial(compute, w13, w2),
    }
    tiles = {}
    if warpgroup_products.reason_against_card(x.device) is None:
        from sglang_gemma4.models.layers.expert_layers import chunk_of_four_bits

        ways["in registers"] = partial(chunk_of_four_bits, x, w13, w2, *routed)
        tiles = candidates(lambda tile: chunk_of_four_bits(x, w13, w2, *routed, tile), CHUNK_TILES)
    work = [products.work(tokens, down) for down in (False, True)]
    return Row(ways, sum(moved for moved, _ in work), sum(flops for _, flops in work), tiles=tiles)


def linear(place: Place, product: str, rows: int) -> Row:
    """The row of one dense GEMM: Marlin with SGLang's activation, cuBLAS in bfloat16 and on the dequantised weight, and ours."""
    outputs, width, is_gated = place.pick(PRODUCTS[product], (64, 128, PRODUCTS[product][2]))
    weight, x = _weight(place, outputs * (1 + is_gated), width), place.rand(rows, width)
    done = counters(outputs, x.device)
    room = torch.empty(room_for(weight), dtype=place.dtype, device=place.device)

    def marlin() -> Call:
        from sglang.kernels.ops.quantization.gptq_marlin_repack import gptq_marlin_repack
        from sglang.srt.layers.quantization import marlin_utils
        from sglang.srt.layers.quantization.utils import get_scalar_types

        none = marlin_utils.marlin_make_empty_g_idx(x.device)
        packed = gptq_marlin_repack(weight.levels.view(torch.int32).t().contiguous(), none, width, weight.shape[0], 4)
        scale = marlin_utils.marlin_permute_scales(weight.scale.t().contiguous(), width, weight.shape[0], weight.group)
        space = marlin_utils.marlin_make_workspace(x.device)

        def call() -> torch.Tensor:
            out: torch.Tensor = marlin_utils.apply_gptq_marlin_linear(
                input=x, weight=packed, weight_scale=scale, weight_zp=none, g_idx=none, g_idx_sort_indices=none, workspace=space,
                wtype=get_scalar_types()[1].uint4b8, output_size_per_partition=weight.shape[0], input_size_per_partition=width,
                is_k_full=True, bias=None,
            )  # fmt: skip
            return activation(out) if is_gated else out

        return call

    def ours(tile: Tile | Warps | None = None) -> torch.Tensor:
        of_triton = tile if isinstance(tile, Tile) else None
        return few_row_linear(x, weight, done, gated=is_gated, tile=of_triton, warps=tile if isinstance(tile, Warps) else None)

    def by_cublas(make: Callable[[], torch.Tensor]) -> torch.Tensor:
        out = torch.nn.functional.linear(x, make())
        return activation(out) if is_gated else out

    def of_bfloat16() -> Call:
        plain = place.rand(outputs * (1 + is_gated), width, spread=width**-0.5)
        return partial(by_cublas, lambda: plain)

    ways: dict[str, Callable[[], object]] = {
        "SGLang, Marlin": lazily(marlin),
        "cuBLAS of bfloat16": lazily(of_bfloat16),
        "ours, written out for cuBLAS": partial(by_cublas, partial(write_out, weight, room)),
    }
    if rows > MOST_ROWS:
        return Row(ways, weight.levels.numel() * (1 + 4 / weight.group))
    on_card = rows <= register_products.MOST_ROWS and register_products.reason_against(x.device) is None
    warps_of = LINEAR_WARPS if on_card else ()
    tiles = [
        *(Warps(each, along, across, ahead) for each, along, across in warps_of for ahead in (2, 6, 12)),
        *(
            Tile(each, depth, parts, warps, stages)
            for each, depth, warps, stages in LINEAR_TILES
            for parts in (1, 2, 3, 4, 6, 8)
            if width // depth >= 2 * parts
        ),
    ]
    ways["ours by Triton"] = dependently(ours)
    ways["ours, zero points"] = dependently(partial(few_row_linear, x, with_eights(weight), done, gated=is_gated))
    ways["ours"] = dependently(in_registers(ours))
    return Row(ways, weight.levels.numel() * (1 + 4 / weight.group), tiles=candidates(ours, tiles))


CASES = (
    Case(
        "linear-int4",
        "a dense GEMM with a 4-bit weight in groups of 32: SGLang's Marlin, cuBLAS of bfloat16, cuBLAS of the dequantised weight, ours by "
        "Triton (by_place and the GEMM), with zero points and in registers; floor: the 4-bit weight read once",
        {"product": tuple(name for name in PRODUCTS if "router" not in name), "rows": (1, 4, 16, 32, 64, 128, 320, 2048)},
        linear,
        {"product": ("26B down", "26B gate and up"), "rows": (3, 70)},
        alike=False,  # bfloat16 has other weights
    ),
    Case(
        "experts-int4",
        "a layer's 4-bit experts from the router's logits on: SGLang's Triton launches (with gelu), its Marlin ones (silu), ours of "
        "bfloat16, ours by Triton, ours in registers, both Triton ones with zero points too; floor: the chosen experts read once",
        {"tokens": (1, 4, 8, 16, 32, 64, 128, 320)},
        layer,
        {"tokens": (3, 20)},
        sets=products.ROUTINGS,
        alike=False,
    ),
    Case(
        "experts-int4-prefill",
        "a layer's 4-bit experts in a prefill chunk, routed already: SGLang's Triton launches (with gelu), its Marlin ones (silu), our "
        "small-M kernels, ours of bfloat16, dequantising alone, ours behind it, and ours in registers; floor: of bfloat16",
        {"tokens": (128, 256, 384, 512, 1024, 2048, 8192)},
        chunk,
        {"tokens": (3, 20)},
        sets=products.ROUTINGS,
        alike=False,
    ),
)
