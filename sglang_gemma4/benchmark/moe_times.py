"""One layer's experts from the router's logits on, on this card: SGLang's launches, ours, and the time to read the chosen weights once.

    python -m sglang_gemma4.benchmark.moe_times [--tokens 1 4 ...] [--tune] > times.md

Stock: choose, align, GEMM, gelu * up, GEMM, sum, each as SGLang launches it, with the tiles that it ships for the card and then with those
that ``sglang-gemma4 tune-moe`` has written. Ours: up to 16 tokens ``expert_routing`` and ``few_token_experts``; beyond, SGLang's choice and
``grouped_experts``; launched dependently where the card can. Every cell is timed in a CUDA graph of calls over several batches in turn.
"""

import argparse
import functools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.benchmark import expert_products as products
from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.kernels import dependent_launch
from sglang_gemma4.kernels.experts import few_token_experts
from sglang_gemma4.kernels.experts.expert_routing import MOST_TOKENS, expert_routing
from sglang_gemma4.kernels.experts.gated_experts import Tile
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.models.layers import expert_tiles

PLAIN = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
"""What SGLang takes where it ships no tiles and the batch is large."""
Pair = tuple[Tile, Tile]
FIRST = [Tile(*tile) for tile in ((16, 128, 2, 6), (32, 64, 4, 6), (32, 128, 2, 4), (32, 128, 4, 4), (32, 128, 8, 4), (64, 64, 4, 5))]
SECOND = [Tile(*tile) for tile in ((64, 64, 2, 6), (64, 128, 4, 4), (64, 128, 4, 5), (128, 64, 4, 4), (128, 64, 8, 5), (256, 64, 8, 3))]


@functools.lru_cache(maxsize=64)
def logits_of(tokens: int, seed: int) -> torch.Tensor:
    """``[tokens, 128]`` bfloat16, as random as a trained router's."""
    return products.logits(tokens, seed).bfloat16().cuda()


def shipped(down: bool) -> expert_tiles.Tiles | None:
    """SGLang's own tiles for this card, of the newest Triton it has some for."""
    import sglang.srt.layers.moe.moe_runner.triton_utils as utils

    name = expert_tiles.file_name(products.EXPERTS, products.INNER, torch.cuda.get_device_name(), down)
    found = sorted(
        (Path(utils.__file__).parent / "configs").glob(f"*/{name}"), key=lambda path: [*map(int, path.parent.name.split("_")[1:])]
    )
    return {int(key): tile for key, tile in json.loads(found[-1].read_text()).items()} if found else None


def measured(down: bool) -> expert_tiles.Tiles | None:
    """As a server takes them: what ``tune-moe`` wrote for this card, and SGLang's where that has none."""
    path = expert_tiles.FOLDER / expert_tiles.file_name(products.EXPERTS, products.INNER, torch.cuda.get_device_name(), down)
    return {**(shipped(down) or {}), **expert_tiles.read(path)} if path.exists() else None


def choice(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """SGLang's launch for router weights and expert ids."""
    from sglang.kernels.ops.moe.gemma4_routing import gemma4_fused_routing

    routed: tuple[torch.Tensor, torch.Tensor] = gemma4_fused_routing(logits_of(tokens, seed), scale(), products.TOPK)
    return routed


@functools.cache
def scale() -> torch.Tensor:
    """Of each expert's weight; ones."""
    return torch.ones(products.EXPERTS, dtype=torch.bfloat16, device="cuda")


@functools.cache
def counters() -> torch.Tensor:
    """Of :func:`ours`, whose calls come one after the other."""
    return few_token_experts.counters(products.HIDDEN, torch.device("cuda"))


def stock(
    x: torch.Tensor,
    weights: products.Experts,
    seed: int,
    tiles: list[dict[str, Any]],
    routed: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """SGLang's launches of a layer's experts, from the router's logits, or from routed tokens, to their sum."""
    import triton.language as tl
    from sgl_kernel import moe_sum_reduce
    from sglang.kernels.ops.activation.activation import gelu_and_mul
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel, moe_sum_reduce_triton
    from sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size import moe_align_block_size

    tokens = x.shape[0]
    probabilities, ids = routed or choice(tokens, seed)
    rows, count, known = moe_align_block_size(ids, tiles[0]["BLOCK_SIZE_M"], products.EXPERTS)
    both = torch.empty(tokens * products.TOPK, 2 * products.INNER, dtype=x.dtype, device=x.device)
    act = torch.empty(tokens * products.TOPK, products.INNER, dtype=x.dtype, device=x.device)
    each = torch.empty(tokens, products.TOPK, products.HIDDEN, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    for given, weight, target, down, tile in ((x, weights.up, both, False, tiles[0]), (act, weights.down, each, True, tiles[1])):
        if down:
            gelu_and_mul(both, act)
        tile = dict(tile)
        tma = tile.pop("USE_TMA", False)
        invoke_fused_moe_kernel(
            given, weight, None, target, None, None, None, probabilities, ids, rows, count, known,
            down, 1 if down else products.TOPK, tile,
            compute_type=tl.bfloat16, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False,
            per_channel_quant=False, b_use_tma=tma, filter_expert=False, router_topk=products.TOPK,
        )  # fmt: skip
    (moe_sum_reduce_triton if tokens <= 32 else moe_sum_reduce)(each, out, 1.0)
    return out


def ours(x: torch.Tensor, weights: products.Experts, seed: int, tiles: Pair | None = None) -> torch.Tensor:
    """Our launches from the router's logits on."""
    tokens = x.shape[0]
    if tokens > MOST_TOKENS:
        return grouped_experts(x, weights.up, weights.down, *choice(tokens, seed))
    probabilities, ids, blocks = expert_routing(logits_of(tokens, seed), scale(), products.TOPK)
    given = (x, weights.up, weights.down, probabilities, ids, counters(), blocks)
    return few_token_experts.few_token_experts(*given, tiles=tiles)


def nearest(tiles: expert_tiles.Tiles | None, tokens: int) -> dict[str, Any]:
    """As SGLang picks one."""
    return tiles[min(tiles, key=lambda known: abs(known - tokens))] if tiles else PLAIN


def tuned(timer: Callable[[Callable[..., Any]], float], tokens: int) -> str:
    """For few tokens: the best tile of the first product, then with it of the second; and the microseconds with both."""
    if tokens > MOST_TOKENS:
        return "-"
    best, found = timer(ours), few_token_experts.tiles_for(tokens)
    for place, candidates in enumerate((FIRST, SECOND)):
        for tile in candidates:
            tried = (tile, found[1]) if place == 0 else (found[0], tile)
            try:
                taken = timer(partial(ours, tiles=tried))
            except Exception as error:  # a tile that does not fit the card's shared memory is no candidate
                print(f"<!-- {tried}: {type(error).__name__} -->", flush=True)
                continue
            print(f"<!-- {tokens} tokens, {tried}: {taken:.1f} -->", flush=True)
            if taken < best:
                best, found = taken, tried
    return f"{best:.1f}: {' '.join(str(tile).replace('Tile', '') for tile in found)}"


def print_table(options: argparse.Namespace) -> None:
    """Markdown, row by row."""
    weights = products.Experts()
    dependent_launch.want(True)
    sources = {"stock": [shipped(down) for down in (False, True)], "stock, measured tiles": [measured(down) for down in (False, True)]}
    print("| tokens | stock µs | stock, measured tiles µs | ours µs | floor µs | away from stock | ours, best tiles |\n|" + " --- |" * 7)
    for tokens in options.tokens:
        batches = [torch.randn(tokens, products.HIDDEN, dtype=torch.bfloat16, device="cuda") for _ in range(products.ROUTINGS)]

        def timer(call: Callable[..., Any], batches: list[torch.Tensor] = batches) -> float:
            return microseconds([partial(call, x, weights, seed) for seed, x in enumerate(batches)], options.rounds)

        cells: list[Any] = [tokens]
        for name, files in sources.items():
            tiles = [nearest(file, tokens) for file in files]
            cells.append("-" if name != "stock" and None in files else f"{timer(partial(stock, tiles=tiles)):.1f}")
        floor = sum(products.floor_microseconds(tokens, down, options.bandwidth, options.teraflops) for down in (False, True))
        apart = "-"
        if tokens <= options.ours_up_to:
            cells.append(f"{timer(ours):.1f}")
            plain = [nearest(file, tokens) for file in sources["stock"]]
            apart = f"{float((ours(batches[0], weights, 0).float() - stock(batches[0], weights, 0, plain).float()).abs().max()):.3f}"
        else:
            cells.append("-")
        cells += [f"{floor:.1f}", apart, tuned(timer, tokens) if options.tune else "-"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 8, 16, 32, 64, 128, 320, 8192], metavar="N", help="in a batch")
    parser.add_argument("--ours-up-to", type=int, default=320, metavar="N", help="tokens that our kernels are timed with (default 320)")
    parser.add_argument("--tune", action="store_true", help="try other tiles of our kernels too (minutes)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="replays of each graph (default 5)")
    parser.add_argument(
        "--bandwidth", type=float, default=4295.0, metavar="GB/S", help="of the card's memory (default: measured on an H200)"
    )
    parser.add_argument("--teraflops", type=float, default=793.7, metavar="T", help="of the card (default: measured on an H200)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("moe_times needs a CUDA card")
    print_table(options)


if __name__ == "__main__":
    main()
