"""Attention of a verify or decode step on this card: our kernel beside SGLang's Triton kernels and the time to read the keys once.

    python -m sglang_gemma4.benchmark.attention_times [--tune] [--rounds 3] > times.md

Every cell is timed in a CUDA graph of calls over several sets of keys in turn; the median of the rounds.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.kernels.attention.attention_tiles import KeyTile
from sglang_gemma4.kernels.attention.few_query_attention import few_query_attention

SETS = 3
GROUPS = {"sliding": (16, 8, 256, 1023), "full": (16, 2, 512, -1)}
"""26B-A4B: query heads, KV heads, head dimension, distance (-1: no window)."""
TILES = {
    256: [KeyTile(*tile) for tile in ((64, 4, 3), (32, 4, 3), (64, 8, 3), (32, 8, 3, 64), (64, 8, 3, 64))],
    512: [KeyTile(*tile) for tile in ((32, 4, 3), (16, 4, 3), (32, 8, 3), (32, 8, 3, 64), (16, 8, 4, 64))],
}
"""Candidates by head dimension; the first are in use. Of 7 without padding to 64 rows they were the fastest
(``runs/2026-11-22-kernel-times``); with it no register of a full layer's verify step spills, and it was no faster
(``runs/2026-11-23-attention-tiles``)."""


@dataclass
class Inputs:
    """One set of tensors for a step of ``requests`` requests with ``keys`` cached keys each."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_new: torch.Tensor
    v_new: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    out: torch.Tensor

    @classmethod
    def make(cls, requests: int, keys: int, queries: int, heads: int, kv_heads: int, dim: int) -> "Inputs":
        """Random values, slots in no order."""

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")

        slots = requests * keys
        return cls(
            q=rand(requests * queries, heads, dim),
            k=rand(slots + 1, kv_heads, dim),
            v=rand(slots + 1, kv_heads, dim),
            k_new=rand(requests * queries, kv_heads, dim),
            v_new=rand(requests * queries, kv_heads, dim),
            indptr=torch.arange(0, slots + 1, keys, dtype=torch.int32, device="cuda"),
            indices=torch.randperm(slots, device="cuda"),
            out=torch.empty(requests * queries, heads, dim, dtype=torch.bfloat16, device="cuda"),
        )


def ours(given: Inputs, queries: int, distance: int, tile: KeyTile | None = None, parts: int | None = None) -> None:
    """Our kernel; a decode step's own key is among the cached ones."""
    new = {"k_new": given.k_new, "v_new": given.v_new} if queries > 1 else {}
    few_query_attention(
        given.q, given.k, given.v, given.indptr, given.indices, 1.0,
        out=given.out, queries=queries, window=distance, tile=tile, parts=parts, **new,
    )  # fmt: skip


def stock_verify(given: Inputs, queries: int, distance: int) -> None:
    """SGLang's extend kernel, as its triton backend calls it for a verify step."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    requests = given.indptr.numel() - 1
    qo = torch.arange(0, (requests + 1) * queries, queries, dtype=torch.int32, device="cuda")
    extend_attention_fwd(
        given.q, given.k_new, given.v_new, given.out, given.k, given.v, qo, given.indptr, given.indices,
        None, True, None, queries, 1.0, 1.0, 1.0, sliding_window_size=distance,
    )  # fmt: skip


def stock_decode(given: Inputs, _queries: int, _distance: int, splits: int = 8) -> None:
    """SGLang's grouped decode kernel with its usual number of splits."""
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    rows, heads, dim = given.q.shape
    logits = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device="cuda")
    lse = torch.empty(rows, heads, splits, dtype=torch.float32, device="cuda")
    counts = torch.full((rows,), splits, dtype=torch.int32, device="cuda")
    decode_attention_fwd(given.q, given.k, given.v, given.out, given.indptr, given.indices, logits, lse, counts, splits, 1.0, 1.0, 1.0)


def tuned(given: list[Inputs], queries: int, distance: int, tiles: list[KeyTile]) -> tuple[float, str]:
    """Best microseconds and what reached them, over ``tiles`` and the parts a request is cut into."""
    best = (float("inf"), "-")
    for tile, parts in itertools.product(tiles, (1, 2, 4, 8, 16, 32)):
        try:
            spent = microseconds([partial(ours, one, queries, distance, tile, parts) for one in given], 2)
        except OutOfResources as error:  # a tile that does not fit the card's shared memory is no candidate
            print(f"<!-- {tile}: {error} -->", flush=True)
            continue
        best = min(best, (spent, f"{tile.keys}/{tile.warps}/{tile.stages}/{tile.rows} x {parts}"))
    return best


def print_table(options: argparse.Namespace) -> None:
    """Markdown, row by row."""
    print("| layer | queries | requests | keys | stock µs | ours µs | read once µs | best tile x parts | best µs |", flush=True)
    print("|" + " --- |" * 9, flush=True)
    for name, queries, requests, keys in itertools.product(options.layers, options.queries, options.requests, options.keys):
        heads, kv_heads, dim, distance = GROUPS[name]
        if (distance >= 0 and keys > distance + 1) or requests * keys * kv_heads * dim * 4 > 12e9:
            continue
        sets = [Inputs.make(requests, keys, queries, heads, kv_heads, dim) for _ in range(SETS)]
        stock: Callable[..., None] = stock_verify if queries > 1 else stock_decode
        cells: list[Any] = [name, queries, requests, keys]
        spent = microseconds([partial(stock, one, queries, distance) for one in sets], options.rounds) if options.stock else 0.0
        cells.append(f"{spent:.1f}" if options.stock else "-")
        cells.append(f"{microseconds([partial(ours, one, queries, distance) for one in sets], options.rounds):.1f}")
        cells.append(f"{requests * keys * kv_heads * dim * 4 / options.bandwidth / 1000:.1f}")
        spent, which = tuned(sets, queries, distance, TILES[dim]) if options.tune else (0.0, "-")
        cells += [which, f"{spent:.1f}" if options.tune else "-"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        del sets
        torch.cuda.empty_cache()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tune", action="store_true", help="try other tiles and numbers of parts too")
    parser.add_argument(
        "--no-stock", dest="stock", action="store_false", help="leave SGLang's kernels out; then SGLang need not be installed"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="replays of each graph (default 5)")
    parser.add_argument("--layers", nargs="+", choices=GROUPS, default=list(GROUPS), help="kinds of layers (default both)")
    parser.add_argument("--queries", nargs="+", type=int, default=[1, 4], metavar="N", help="query tokens a request (default 1 4)")
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8, 32, 80], metavar="N", help="default 1 8 32 80")
    parser.add_argument("--keys", nargs="+", type=int, default=[512, 1024, 8192, 65536], metavar="N", help="default 512 1024 8192 65536")
    parser.add_argument(
        "--bandwidth", type=float, default=4295.0, metavar="GB/S", help="of the card's memory (default: measured on an H200)"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("attention_times needs a CUDA card")
    print_table(options)


if __name__ == "__main__":
    main()
