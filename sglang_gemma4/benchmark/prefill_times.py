"""Attention of a prefill on this card: our kernel beside SGLang's, its FlashAttention-4 where that runs, and the products' least time.

    python -m sglang_gemma4.benchmark.prefill_times [--tune] > times.md

A cell is the median of several calls; inputs are those of one layer of 26B-A4B.
"""

import argparse
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from sglang_gemma4.attention.flash_choice import inputs, milliseconds
from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.kernels.attention.attention_tiles import PromptTile
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention

GROUPS = {"sliding": Kind(16, 8, 256, 1023), "full": Kind(16, 2, 512, -1)}
"""Of 26B-A4B."""
ROUNDS = 5
CASES = {"1 x 1000": (1, 1000, 0), "8 x 1000": (8, 1000, 0), "1 x 8192": (1, 8192, 0), "1 x 8192 after 8192": (1, 8192, 8192)}
"""Requests, new tokens of each, prefix of each."""
TILES = {
    256: [
        PromptTile(*tile) for tile in ((128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3))
    ],
    512: [PromptTile(*tile) for tile in ((64, 32, 8, 2), (64, 32, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2), (64, 32, 8, 3), (32, 32, 4, 2))],
}
TERAFLOPS = 793.7
"""Of a bfloat16 matrix product, measured on an H200."""


def stock(given: dict[str, Any]) -> None:
    """SGLang's extend kernel."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    extend_attention_fwd(
        given["q"], given["k"], given["v"], given["out"], given["k_buffer"], given["v_buffer"], given["qo_indptr"], given["kv_indptr"],
        given["kv_indices"], None, True, None, given["longest"], 1.0, 1.0, given["scale"], sliding_window_size=given["window"],
    )  # fmt: skip


def flash4(given: dict[str, Any]) -> None:
    """SGLang's FlashAttention-4 as SGLANG_GEMMA4_FLASH_PREFILL calls it: where there is a prefix, its keys are put in order first."""
    from sglang.kernels.ops.attention.flash_attention_v4 import flash_attn_varlen_func

    FlashPrefill(flash_attn_varlen_func)(**given)


def seen_pairs(tokens: int, prefix: int, distance: int) -> int:
    """Pairs of a query and a key that it sees, in one request."""
    return sum(min(position, distance) + 1 if distance >= 0 else position + 1 for position in range(prefix, prefix + tokens))


def cells(name: str, case: str, tune: bool) -> Iterator[str]:
    """One line of the table, cell by cell; FlashAttention-4, which compiles for a minute or more, comes last."""
    kind = GROUPS[name]
    requests, tokens, prefix = CASES[case]
    # A sliding layer lists only the keys its window reaches.
    given = inputs(kind, requests, tokens, torch.bfloat16, "cuda", prefix=min(prefix, kind.window) if kind.window >= 0 else prefix)
    pairs = requests * seen_pairs(tokens, prefix, kind.window)
    yield from (
        name,
        case,
        f"{milliseconds(partial(stock, given), ROUNDS):.3f}",
        f"{milliseconds(partial(prefill_attention, **given), ROUNDS):.3f}",
        f"{pairs * kind.heads * kind.dim * 4 / TERAFLOPS / 1e9:.3f}",
    )
    best = (float("inf"), "-")
    for tile in TILES[kind.dim] if tune else []:
        try:
            best = min(
                best, (milliseconds(partial(prefill_attention, **given, tile=tile)), f"{tile.rows}x{tile.keys}/{tile.warps}/{tile.stages}")
            )
        except OutOfResources:
            continue
    yield f"{best[1]} {best[0]:.3f}" if tune else "-"
    try:
        yield f"{milliseconds(partial(flash4, given), ROUNDS):.3f}"
    except Exception as error:  # FlashAttention-4 is optional and compiles for its card only; the table says why it has no number
        yield f"{type(error).__name__}: {str(error)[:60]}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tune", action="store_true", help="try other tiles too")
    parser.add_argument("--layers", nargs="+", choices=GROUPS, default=list(GROUPS), help="kinds of layers (default both)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("prefill_times needs a CUDA card")
    print(
        "| layer | requests x tokens | stock ms | ours ms | products ms | best tile | FlashAttention-4 ms |\n|" + " --- |" * 7, flush=True
    )
    for name, case in itertools.product(options.layers, CASES):
        for cell in cells(name, case, options.tune):
            print(f"| {cell} ", end="", flush=True)
        print("|", flush=True)


if __name__ == "__main__":
    main()
