"""A decoder layer's dense products of a few rows on this card: cuBLAS, our kernel, and the time to read the weight once.

    python -m sglang_gemma4.benchmark.linear_times [--tune] [--rounds 5] > times.md

Each cell is timed in a CUDA graph of calls over several weights in turn, which do not fit the cache together. A gated product is beside
cuBLAS's product and SGLang's activation.
"""

import argparse
from functools import partial

import torch
from triton.runtime.errors import OutOfResources

from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.kernels.dense.few_row_linear import Tile, counters, few_row_linear

# Outputs, width, gated: 26B-A4B's sliding and full layers, its assistant, E2B.
SHAPES: dict[str, tuple[int, int, bool]] = {
    "26B qkv, sliding": (8192, 2816, False),
    "26B qkv, full": (9216, 2816, False),
    "26B o, sliding": (2816, 4096, False),
    "26B o, full": (2816, 8192, False),
    "26B gate and up": (2112, 2816, True),
    "26B down": (2816, 2112, False),
    "26B router": (128, 2816, False),
    "assistant before": (1024, 5632, False),
    "assistant q": (4096, 1024, False),
    "assistant after": (2816, 1024, False),
    "E2B qkv, sliding": (2560, 1536, False),
    "E2B o, sliding": (1536, 2048, False),
    "E2B gate and up": (6144, 1536, True),
    "E2B down": (1536, 6144, False),
    "E2B per-layer gate": (256, 1536, False),
}
CACHE_BYTES = 200e6
"""Weights of a cell, together: four times an H200's L2 cache."""


def cublas(x: torch.Tensor, weight: torch.Tensor, gated: bool) -> torch.Tensor:
    """SGLang's way."""
    out = torch.nn.functional.linear(x, weight)
    if gated:
        from sglang.srt.layers.activation import gelu_tanh_and_mul

        acted = torch.empty((x.shape[0], weight.shape[0] // 2), dtype=x.dtype, device=x.device)
        gelu_tanh_and_mul(out, acted)
        return acted
    return out


def candidates(width: int, gated: bool) -> list[Tile]:
    """Tiles to try."""
    found = []
    for outputs, depth, warps, stages in (
        (64, 128, 4, 3), (64, 128, 4, 4), (64, 64, 4, 6), (64, 256, 4, 3), (128, 64, 4, 4), (128, 64, 8, 4),
        (32, 128, 4, 4), (32, 256, 4, 3), (32, 128, 2, 4), (16, 256, 4, 4), (16, 512, 4, 3),
    ):  # fmt: skip
        for parts in (1, 2, 3, 4, 6, 8, 12):
            if width // depth >= 2 * parts and width % depth == 0 and not (gated and outputs * depth > 8192):
                found.append(Tile(outputs, depth, parts, warps, stages))
    return found


def tuned(x: torch.Tensor, weights: list[torch.Tensor], done: list[torch.Tensor], gated: bool) -> str:
    """The three fastest tiles."""
    found: list[tuple[float, Tile]] = []
    for tile in candidates(x.shape[1], gated):
        calls = [partial(few_row_linear, x, weight, zeros, gated=gated, tile=tile) for weight, zeros in zip(weights, done, strict=True)]
        try:
            found.append((microseconds(calls, 2), tile))
        except OutOfResources:  # does not fit the card's shared memory: no candidate
            continue
    found.sort(key=lambda one: one[0])
    return ", ".join(f"{tile.outputs}/{tile.depth}/{tile.parts}/{tile.warps}/{tile.stages}: {spent:.1f}" for spent, tile in found[:3])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tune", action="store_true", help="try other tiles too")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="replays of each graph (default 5)")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 32], metavar="N", help="default 1 4 16 32")
    parser.add_argument("--only", default="", metavar="TEXT", help="shapes whose name has this in it")
    parser.add_argument(
        "--bandwidth", type=float, default=4295.0, metavar="GB/S", help="of the card's memory (default: measured on an H200)"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("linear_times needs a CUDA card")
    print("| product | rows | cuBLAS µs | ours µs | read once µs | best tiles: µs |", flush=True)
    print("|" + " --- |" * 6, flush=True)
    for name, (outputs, width, gated) in SHAPES.items():
        if options.only not in name:
            continue
        height = outputs * (2 if gated else 1)
        sets = max(2, min(10, round(CACHE_BYTES / (height * width * 2))))
        weights = [torch.randn(height, width, device="cuda").bfloat16() for _ in range(sets)]
        done = [counters(outputs, weights[0].device) for _ in weights]
        for rows in options.rows:
            x = torch.randn(rows, width, device="cuda").bfloat16()
            stock = microseconds([partial(cublas, x, weight, gated) for weight in weights], options.rounds)
            calls = [partial(few_row_linear, x, weight, zeros, gated=gated) for weight, zeros in zip(weights, done, strict=True)]
            ours = microseconds(calls, options.rounds)
            floor = height * width * 2 / options.bandwidth / 1000
            best = tuned(x, weights, done, gated) if options.tune else "-"
            print(f"| {name} | {rows} | {stock:.1f} | {ours:.1f} | {floor:.1f} | {best} |", flush=True)


if __name__ == "__main__":
    main()
