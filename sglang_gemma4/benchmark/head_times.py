"""A draft step's head on this card: our kernels beside what SGLang and the chain launch, and the time to read the weights once.

    python -m sglang_gemma4.benchmark.head_times [--tune] [--rounds 5] > times.md

Stock: the product in bfloat16, its float32 copy, softmax, maximum. Chain: the same product and copy, SGLang's split argmax; for the
centroid head the gathered rows, a batched product, the argmax. Each cell is timed in a CUDA graph of calls over several heads in turn.
"""

import argparse
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.kernels.heads.centroid_argmax import centroid_argmax
from sglang_gemma4.kernels.heads.head_argmax import Tile, head_argmax

VOCABULARY, CENTROIDS, ACTIVE = 262144, 2048, 32
Calls = list[Callable[[], object]]
SETS = 2
"""Heads a cell takes in turn: a head of 537 MB leaves nothing of itself in the cache."""
TILES = [
    Tile(*tile)
    for tile in (
        (64, 128, 4, 4, 2),
        (64, 128, 4, 3, 3),
        (64, 256, 4, 3, 2),
        (128, 64, 4, 4, 2),
        (128, 128, 8, 3, 2),
        (128, 64, 8, 3, 2),
        (128, 64, 8, 5, 1),
        (128, 128, 8, 4, 1),
        (256, 64, 8, 4, 1),
        (256, 64, 8, 3, 1),
    )
]


def stock_head(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A step of SGLang's loop: logits, softmax, maximum."""
    return (hidden @ weight.T).float().softmax(-1).max(-1).indices


def chain_head(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A step of the chain with logits in memory."""
    from sglang_gemma4.speculative.chain import largest

    return largest((hidden @ weight.T).float())


def our_head(hidden: torch.Tensor, weight: torch.Tensor, tile: Tile | None = None) -> torch.Tensor:
    """Our kernel."""
    return head_argmax(hidden, weight, tile=tile)[0]


def centroid_model(width: int) -> Any:
    """What the centroid heads read of an assistant."""
    centroids = torch.nn.Linear(width, CENTROIDS, bias=False, dtype=torch.bfloat16, device="cuda").requires_grad_(False)
    return SimpleNamespace(
        centroids=centroids,
        centroid_intermediate_top_k=ACTIVE,
        num_centroids=CENTROIDS,
        vocab_size=VOCABULARY,
        hidden_size=width,
        vocab_size_per_centroid=VOCABULARY // CENTROIDS,
        token_ordering=torch.randperm(VOCABULARY, device="cuda"),
        lm_head=SimpleNamespace(weight=torch.randn(VOCABULARY, width, device="cuda").bfloat16()),
    )


def stock_centroids(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """SGLang's scattered logits, softmax, maximum."""
    from sglang.srt.models.gemma4_mtp import Gemma4AssistantForCausalLM

    logits: torch.Tensor = Gemma4AssistantForCausalLM._apply_centroid_masking(model, hidden)
    return logits.softmax(-1).max(-1).indices


def chain_centroids(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The chain's token of the gathered rows."""
    from sglang_gemma4.speculative.chain import centroid_tokens

    return centroid_tokens(model, hidden)


def our_centroids(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Our kernels."""
    scores = model.centroids(hidden)
    return centroid_argmax(hidden, scores, model.lm_head.weight, model.token_ordering, model.centroid_intermediate_top_k)


def tuned(hidden: torch.Tensor, weights: list[torch.Tensor]) -> str:
    """Each candidate tile's microseconds, the fastest first."""
    found = []
    for tile in TILES:
        try:
            found.append((microseconds([partial(our_head, hidden, weight, tile) for weight in weights], 2), tile))
        except OutOfResources as error:  # a tile that does not fit the card's shared memory is no candidate
            print(f"<!-- {tile}: {error} -->", flush=True)
    return ", ".join(
        f"{tile.tokens}/{tile.columns}/{tile.warps}/{tile.stages}/{tile.programs}: {spent:.1f}" for spent, tile in sorted(found)[:3]
    )


def row(name: str, rows: int, floor: float, cells: list[Calls], rounds: int, best: str) -> None:
    """One line of the table."""
    times = [f"{microseconds(calls, rounds):.1f}" for calls in cells]
    print(f"| {name} | {rows} | {' | '.join(times)} | {floor:.1f} | {best} |", flush=True)


def print_table(options: argparse.Namespace) -> None:
    """Markdown, row by row."""
    print("| head | rows | stock µs | chain µs | ours µs | read once µs | best tiles: µs |", flush=True)
    print("|" + " --- |" * 7, flush=True)
    for width in options.widths:
        weights = [torch.randn(VOCABULARY, width, device="cuda").bfloat16() for _ in range(SETS)]
        for rows in options.rows:
            hidden = torch.randn(rows, width, device="cuda").bfloat16()
            calls: list[Calls] = [[partial(head, hidden, weight) for weight in weights] for head in (stock_head, chain_head, our_head)]
            floor = VOCABULARY * width * 2 / options.bandwidth / 1000
            row(f"{width} wide", rows, floor, calls, options.rounds, tuned(hidden, weights) if options.tune else "-")
        del weights
        torch.cuda.empty_cache()
    models = [centroid_model(256) for _ in range(SETS)]
    for rows in options.rows:
        hidden = torch.randn(rows, 256, device="cuda").bfloat16()
        calls = [[partial(head, model, hidden) for model in models] for head in (stock_centroids, chain_centroids, our_centroids)]
        distinct = CENTROIDS * (1 - (1 - ACTIVE / CENTROIDS) ** rows)  # centroids of random rows, each read once
        floor = (distinct * VOCABULARY / CENTROIDS + CENTROIDS) * 256 * 2 / options.bandwidth / 1000
        row("centroids, 256 wide", rows, floor, calls, options.rounds, "-")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tune", action="store_true", help="try other tiles too")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="replays of each graph (default 5)")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 16, 32, 48, 80], metavar="N", help="default 1 8 16 32 48 80")
    parser.add_argument("--widths", nargs="+", type=int, default=[1024, 256], metavar="N", help="of the full heads (default 1024 256)")
    parser.add_argument(
        "--bandwidth", type=float, default=4295.0, metavar="GB/S", help="of the card's memory (default: measured on an H200)"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("head_times needs a CUDA card")
    print_table(options)


if __name__ == "__main__":
    main()
