"""Cases of the experts: a layer of a step, and the GEMMs of a prefill chunk compared with the libraries that SGLang ships with."""

import functools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.benchmark.kernels import expert_products as products
from sglang_gemma4.benchmark.kernels.expert_products import Experts, Routing
from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, dependently, lazily, short
from sglang_gemma4.benchmark.kernels.timer import Call
from sglang_gemma4.kernels.experts import few_token_experts, prefill_experts
from sglang_gemma4.kernels.experts.expert_routing import MOST_TOKENS, expert_routing
from sglang_gemma4.kernels.experts.gated_experts import Tile
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.models.layers import expert_tiles
from sglang_gemma4.models.layers.expert_layers import aligned_blocks, many_token_experts

PLAIN = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
"""SGLang's tile for large batches if it ships none for the GPU."""
FIRST = ((16, 128, 2, 6), (32, 64, 4, 6), (32, 128, 2, 4), (32, 128, 4, 4), (32, 128, 8, 4), (64, 64, 4, 5))
SECOND = ((64, 64, 2, 6), (64, 128, 4, 4), (64, 128, 4, 5), (128, 64, 4, 4), (128, 64, 8, 5), (256, 64, 8, 3))
"""Candidate tiles of both GEMMs for few tokens (runs/2026-11-23-few-token-experts)."""
CHUNK_TILES = {
    "up": ((128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (64, 64, 8, 3), (64, 64, 8, 4)),
    "down": ((256, 64, 8, 3), (256, 64, 8, 4), (128, 64, 4, 3), (128, 64, 8, 3), (128, 64, 8, 4)),
}
"""Candidate tiles at 128 rows per block: columns, depth, warps, stages (runs/2026-11-23-prefill-expert-tiles)."""


def tiles_of(source: str, tokens: int) -> list[dict[str, Any]]:
    """SGLang's tiles of both GEMMs on this GPU, from its own files ("shipped") or with those of ``tune-moe`` ("tuned").

    Raises:
        ValueError: ``tune-moe`` has written none.
    """
    import sglang.srt.layers.moe.moe_runner.triton_utils as utils

    found = []
    for down in (False, True):
        name = expert_tiles.file_name(products.EXPERTS, products.INNER, torch.cuda.get_device_name(), down)
        newest = max(
            (Path(utils.__file__).parent / "configs").glob(f"*/{name}"),
            key=lambda path: [*map(int, path.parent.name.split("_")[1:])],
            default=None,
        )
        tiles = {int(key): tile for key, tile in json.loads(newest.read_text()).items()} if newest else {}
        if source == "tuned":
            if not (expert_tiles.FOLDER / name).exists():
                raise ValueError("tune-moe has written no tiles for this GPU")
            tiles |= expert_tiles.read(expert_tiles.FOLDER / name)
        found.append(tiles[min(tiles, key=lambda known: abs(known - tokens))] if tiles else PLAIN)
    return found


def stock(x: torch.Tensor, weights: Experts, source: str, routed: Callable[[], Routing]) -> Call:
    """SGLang's launches from routing to the sum: align, GEMM, gelu * up, GEMM, sum."""
    tiles = tiles_of(source, x.shape[0])

    def call() -> torch.Tensor:
        from sgl_kernel import moe_sum_reduce
        from sglang.kernels.ops.activation.activation import gelu_and_mul
        from sglang.kernels.ops.moe.fused_moe_triton_kernels import moe_sum_reduce_triton

        probabilities, ids = routed()
        tokens, topk = ids.shape
        aligned = products.align(ids, tiles[0]["BLOCK_SIZE_M"], len(weights.up))
        both, act = (x.new_empty(tokens * topk, width) for width in (weights.up.shape[1], weights.down.shape[2]))
        each = x.new_empty(tokens, topk, x.shape[1])
        out = torch.empty_like(x)
        products.multiply(x, weights.up, both, (probabilities, ids), aligned, False, tiles[0])
        gelu_and_mul(both, act)
        products.multiply(act, weights.down, each, (probabilities, ids), aligned, True, tiles[1])
        (moe_sum_reduce_triton if tokens <= 32 else moe_sum_reduce)(each, out, 1.0)
        return out

    return call


def layer(place: Place, tokens: int) -> Row:
    """The row of a layer's experts, from the router's logits on; each set of inputs has its own logits."""
    weights = products.experts_of(place)
    hidden, topk = weights.up.shape[2], place.pick(products.TOPK, 2)
    x, scale = place.rand(tokens, hidden), torch.ones(len(weights.up), dtype=place.dtype, device=place.device)
    logits = products.logits(tokens, place.seed, len(weights.up)).to(place.device, place.dtype)
    done = few_token_experts.counters(hidden, x.device)

    choice = partial(products.choose, logits, scale, topk)

    def few(tiles: tuple[Tile, Tile] | None = None) -> torch.Tensor:
        shares, ids, blocks = expert_routing(logits, scale, topk)
        return few_token_experts.few_token_experts(x, weights.up, weights.down, shares, ids, done, blocks, tiles=tiles)

    def grouped() -> torch.Tensor:
        return grouped_experts(x, weights.up, weights.down, *choice())

    ours, tiles = (grouped, {}) if tokens > MOST_TOKENS else (few, _pairs(tokens, few))
    moved, flops = map(sum, zip(*(products.work(tokens, down) for down in (False, True)), strict=True))
    ways = {"SGLang": lazily(stock, x, weights, "shipped", choice), "SGLang, tuned tiles": lazily(stock, x, weights, "tuned", choice)}
    return Row({**ways, "ours": dependently(ours)}, moved, flops, tiles)


def _pairs(tokens: int, few: Callable[[tuple[Tile, Tile]], torch.Tensor]) -> dict[str, Call]:
    """Calls with another tile for one GEMM and the served tile for the other."""
    usual = few_token_experts.tiles_for(tokens)
    pairs = [*((Tile(*tile), usual[1]) for tile in FIRST), *((usual[0], Tile(*tile)) for tile in SECOND)]
    return {f"ours, {short(one, two)}": dependently(partial(few, (one, two))) for one, two in pairs}


def padded(ids: torch.Tensor, experts: int, step: int) -> torch.Tensor:
    """DeepGEMM's layout, in which each expert's rows begin at a multiple of ``step``: the expert (int32) of each row."""
    sizes = torch.bincount(ids.flatten(), minlength=experts)
    return torch.arange(experts, dtype=torch.int32, device=ids.device).repeat_interleave((sizes + step - 1) // step * step)


def by_triton_kernels(weight: torch.Tensor, x: torch.Tensor, routed: Routing, down: bool) -> Call:
    """SGLang's ``--moe-runner-backend triton_kernel`` on a view of the weights."""
    from triton_kernels.matmul import matmul
    from triton_kernels.tensor import make_ragged_tensor_metadata

    shares, flat, topk = routed[0].flatten(), routed[1].flatten().long(), routed[1].shape[1]
    order = flat.argsort(stable=True).int()  # the order of the tokens * topk rows
    rows = make_ragged_tensor_metadata(torch.bincount(flat, minlength=len(weight)).int(), len(order))
    gammas = shares[order.long()]
    if down:
        return lambda: matmul(x, weight.mT, None, a_ragged_metadata=rows, scatter_indx=order, gammas=gammas)
    return lambda: matmul(x, weight.mT, None, a_ragged_metadata=rows, gather_indx=order // topk)


def by_deep_gemm(weight: torch.Tensor, x: torch.Tensor, routed: Routing) -> Call:
    """``m_grouped_bf16_gemm_nt_contiguous`` over rows that are already gathered."""
    import deep_gemm

    experts = padded(routed[1], len(weight), deep_gemm.get_mk_alignment_for_contiguous_layout())
    rows, out = x.new_empty(len(experts), weight.shape[2]).normal_(), x.new_empty(len(experts), weight.shape[1])
    return lambda: deep_gemm.m_grouped_bf16_gemm_nt_contiguous(rows, weight, out, experts)


def chunk(place: Place, product: str, tokens: int) -> Row:
    """The row of a prefill chunk: the "up" GEMM (ours with its activation), the "down" GEMM, or the whole "layer" after routing."""
    weights = products.experts_of(place)
    experts, hidden, inner = weights.down.shape
    down, weight = product == "down", weights.down if product == "down" else weights.up
    routed = products.routing(tokens, 0, place.device, experts, place.pick(products.TOPK, 2))
    x = place.rand(tokens, hidden)
    moved, flops = products.work(tokens, down)
    if product == "layer":
        ways = {name: lazily(stock, x, weights, source, lambda: routed) for name, source in _SOURCES.items()}
        more = products.work(tokens, True)
        all_of_it = partial(many_token_experts if place.device == "cuda" else prefill_experts.prefill_experts, x, weights.up, weights.down)
        return Row({**ways, "ours": partial(all_of_it, *routed)}, moved + more[0], flops + more[1])

    def alone(source: str) -> Call:
        return products.launcher(weights, down, tokens, tiles_of(source, tokens)[down], 0)

    @functools.cache
    def sorted_rows() -> tuple[Any, torch.Tensor]:
        """The expert blocks, and the input rows of the GEMM."""
        if place.device == "cuda":
            blocks = aligned_blocks(routed[1], experts, size)
        else:
            from sglang_gemma4.kernels.experts.expert_blocks import expert_blocks

            blocks = expert_blocks(routed[1], experts, size)
        return blocks, prefill_experts.gate_and_up(x, weights.up, *routed, blocks, usual[0], tma) if down else x

    def ours(tile: prefill_experts.PrefillTile) -> object:
        blocks, rows = sorted_rows()
        if down:
            return prefill_experts.down(rows, weights.down, routed[1].numel(), blocks, tile, tma)
        return (
            prefill_experts.gate_and_up(rows, weights.up, *routed, blocks, tile, tma),
        )  # not compared: blocks without an expert are undefined

    size, *usual = prefill_experts.tiles_for(place.dtype)
    tma = prefill_experts.reason_against_descriptors(weights.up, weights.down) is None
    rows = place.rand(routed[1].numel(), inner) if down else x
    ways = {name: lazily(alone, source) for name, source in _SOURCES.items()}
    ways |= {
        "triton_kernels": lazily(by_triton_kernels, weight, rows, routed, down),
        "DeepGEMM": lazily(by_deep_gemm, weight, x, routed),
    }
    tiles = {
        f"ours, {short(tile)} g{group}{' ahead' * ahead}": partial(ours, prefill_experts.PrefillTile(*tile, group, int(ahead), ahead))
        for tile in CHUNK_TILES[product]
        for group in (1, 4, 16)
        for ahead in (False, True)
    }
    return Row({**ways, "ours": partial(ours, usual[down])}, moved, flops, tiles)


_SOURCES = {"SGLang": "shipped", "SGLang, tuned tiles": "tuned"}

CASES = (
    Case(
        "experts",
        "a layer's experts from the router's logits on: SGLang's six launches with shipped and with tune-moe's tiles; ours for few or "
        "some tokens; floor: the chosen experts read once",
        {"tokens": (1, 4, 8, 16, 32, 64, 128, 320)},
        layer,
        {"tokens": (3,)},
        sets=products.ROUTINGS,
    ),
    Case(
        "prefill-experts",
        "a prefill chunk's experts: SGLang, triton_kernels, DeepGEMM (without the gather it needs), ours; floor: the GEMMs",
        {"product": ("up", "down", "layer"), "tokens": (1024, 2048, 8192, 16384)},
        chunk,
        {"product": ("up", "down", "layer"), "tokens": (9,)},
        sets=1,
        alike=False,  # a library's rows are in another order
    ),
)
