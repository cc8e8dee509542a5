"""Attention of a verify or decode step on this card: our kernel beside SGLang's Triton kernels and the time to read the keys once.

    python -m sglang_gemma4.benchmark.attention_times [--tune] [--rounds 3] > times.md

Every cell is timed in a CUDA graph of :data:`CALLS` calls over several sets of keys in turn; the median of the rounds.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_gemma4.kernels.few_query_attention import Tile, few_query_attention

CALLS = 20
SETS = 3
GROUPS = {"sliding": (16, 8, 256, 1023), "full": (16, 2, 512, -1)}
"""26B-A4B: query heads, KV heads, head dimension, distance (-1: no window)."""
TILES = [Tile(keys, warps, stages) for keys, warps, stages in itertools.product((16, 32, 64, 128), (4, 8), (2, 3))]


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


def ours(given: Inputs, queries: int, distance: int, tile: Tile | None = None, parts: int | None = None) -> None:
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


def microseconds(call: Callable[[Inputs], None], sets: list[Inputs], rounds: int) -> float:
    """Of one call: median over ``rounds`` replays of a graph that goes through the sets in turn."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for given in sets:
            call(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(CALLS):
            call(sets[number % len(sets)])
    taken = []
    for _ in range(rounds + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(1000 * start.elapsed_time(end) / CALLS)
    return float(statistics.median(taken[1:]))


def print_table(rounds: int, tune: bool, bandwidth: float) -> None:
    """Markdown, row by row; ``bandwidth`` in GB/s gives the time to read the keys and values once."""
    print("| layer | queries | requests | keys | stock µs | ours µs | read once µs | best tile | best µs |\n|" + " --- |" * 9, flush=True)
    for name, queries, requests, keys in itertools.product(GROUPS, (1, 4), (1, 8, 32, 64), (512, 1024, 8192, 65536)):
        heads, kv_heads, dim, distance = GROUPS[name]
        if (distance >= 0 and keys > distance + 1) or requests * keys * kv_heads * dim * 4 > 12e9:
            continue
        sets = [Inputs.make(requests, keys, queries, heads, kv_heads, dim) for _ in range(SETS)]
        stock: Callable[..., None] = stock_verify if queries > 1 else stock_decode
        cells: list[Any] = [name, queries, requests, keys]
        cells.append(f"{microseconds(lambda given: stock(given, queries, distance), sets, rounds):.1f}")  # noqa: B023
        cells.append(f"{microseconds(lambda given: ours(given, queries, distance), sets, rounds):.1f}")  # noqa: B023
        cells.append(f"{requests * keys * kv_heads * dim * 4 / bandwidth / 1000:.1f}")
        best: tuple[float, str] = (float("inf"), "-")
        for tile in TILES if tune else []:
            for parts in (1, 2, 4, 8, 16, 32):
                try:
                    spent = microseconds(lambda given: ours(given, queries, distance, tile, parts), sets, 2)  # noqa: B023
                except Exception as error:  # a tile that does not fit the card's shared memory is no candidate
                    print(f"<!-- {name} {queries} {requests} {keys} {tile} {parts}: {type(error).__name__} -->", flush=True)
                    break
                best = min(best, (spent, f"{tile.keys}/{tile.warps}/{tile.stages} parts {parts}"))
        cells += [best[1], f"{best[0]:.1f}" if tune else "-"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        del sets
        torch.cuda.empty_cache()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tune", action="store_true", help="try other tiles and numbers of parts too")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="replays of each graph (default 5)")
    parser.add_argument(
        "--bandwidth", type=float, default=4295.0, metavar="GB/S", help="of the card's memory (default: measured on an H200)"
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("attention_times needs a CUDA card")
    print_table(arguments.rounds, arguments.tune, arguments.bandwidth)


if __name__ == "__main__":
    main()
