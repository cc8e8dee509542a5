"""The two products of a layer's experts at prefill sizes, on this card: SGLang's Triton kernel, the libraries that it ships with, ours.

    python -m sglang_gemma4.benchmark.prefill_expert_times [--tokens 1024 8192 ...] [--sweep SECONDS] > times.md

Columns: SGLang's launch with the tiles it ships and with those of ``sglang-gemma4 tune-moe``; ``triton_kernels`` over the checkpoint's
layout (each expert ``[out, in]``, so no second copy of the weights); torch's grouped product and DeepGEMM, whose rows must be gathered
before (the gather beside them); our own, the activation and the router's weights in the first. Sorting the tokens by expert is timed
only in the rows ``layer``, from routed tokens to their sums. A library that does not run here says why in its cell.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sglang_gemma4.benchmark import expert_products as products
from sglang_gemma4.benchmark import prefill_expert_tiles as ours
from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.benchmark.moe_times import measured, nearest, shipped, stock
from sglang_gemma4.kernels.experts.prefill_experts import tiles_for
from sglang_gemma4.models.layers.expert_layers import many_token_experts

Call = Callable[[], Any]


class Sorted:
    """Tokens in the order of their experts. ``order`` int32: which of the ``tokens * 8`` rows; ``sizes`` int32: rows of each expert."""

    def __init__(self, tokens: int, device: str = "cuda") -> None:
        probabilities, ids = products.routing(tokens, 0, device)
        flat = ids.flatten().long()
        self.order = flat.argsort(stable=True).int()
        self.sizes = torch.bincount(flat, minlength=products.EXPERTS).int()
        self.weights = probabilities.flatten()[self.order.long()]


def by_triton_kernels(weights: products.Experts, down: bool, tokens: int) -> Call:
    """SGLang's ``--moe-runner-backend triton_kernel``, on a view of the weights."""
    from triton_kernels.matmul import matmul
    from triton_kernels.tensor import make_ragged_tensor_metadata

    of = Sorted(tokens)
    rows = make_ragged_tensor_metadata(of.sizes, len(of.order))
    weight = (weights.down if down else weights.up).transpose(1, 2)
    x = torch.randn(len(of.order) if down else tokens, weight.shape[1], dtype=torch.bfloat16, device="cuda")
    if down:
        return lambda: matmul(x, weight, None, a_ragged_metadata=rows, scatter_indx=of.order, gammas=of.weights)
    gather = of.order // products.TOPK
    return lambda: matmul(x, weight, None, a_ragged_metadata=rows, gather_indx=gather)


def padded(of: Sorted, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """DeepGEMM's layout, an expert's rows from a multiple of ``step`` on: the expert (int32) and the token (int64) of each place."""
    numbers = torch.arange(len(of.sizes), dtype=torch.int32, device=of.order.device)
    places = (of.sizes + step - 1) // step * step
    experts = torch.repeat_interleave(numbers, places)
    source = torch.zeros(len(experts), dtype=torch.long, device=of.order.device)  # 0 where nothing lies
    shift = (torch.cumsum(places, 0) - places) - (torch.cumsum(of.sizes, 0) - of.sizes)
    expert = torch.repeat_interleave(numbers, of.sizes).long()
    source[torch.arange(len(of.order), device=of.order.device) + shift[expert]] = of.order.long() // products.TOPK
    return experts, source


def by_deep_gemm(weights: products.Experts, down: bool, tokens: int) -> Call:
    """``m_grouped_bf16_gemm_nt_contiguous`` over rows that lie ready."""
    import deep_gemm

    experts, _ = padded(Sorted(tokens), deep_gemm.get_mk_alignment_for_contiguous_layout())
    weight = weights.down if down else weights.up
    x = torch.randn(len(experts), weight.shape[2], dtype=torch.bfloat16, device="cuda")
    out = torch.empty(len(experts), weight.shape[1], dtype=torch.bfloat16, device="cuda")
    return lambda: deep_gemm.m_grouped_bf16_gemm_nt_contiguous(x, weight, out, experts)


def by_torch(weights: products.Experts, down: bool, tokens: int) -> Call:
    """``torch.nn.functional.grouped_mm`` over rows that lie ready."""
    of = Sorted(tokens)
    weight = (weights.down if down else weights.up).transpose(1, 2)
    x = torch.randn(len(of.order), weight.shape[1], dtype=torch.bfloat16, device="cuda")
    ends = torch.cumsum(of.sizes, 0, dtype=torch.int32)
    return lambda: torch.nn.functional.grouped_mm(x, weight, offs=ends)


def by_us(weights: products.Experts, down: bool, tokens: int) -> Call:
    """With the tiles that a server takes."""
    size, first, second = tiles_for(torch.bfloat16)
    return ours.launcher(weights, tokens, (down, size, second if down else first))


def layer_of(weights: products.Experts, tokens: int, tiles: list[dict[str, Any]] | None) -> Call:
    """All launches of a layer's experts: SGLang's with these tiles, or ours."""
    x = torch.randn(tokens, products.HIDDEN, dtype=torch.bfloat16, device="cuda")
    if tiles is not None:
        return lambda: stock(x, weights, 0, tiles, products.routing(x.shape[0], 0))
    probabilities, ids = products.routing(tokens, 0)
    return lambda: many_token_experts(x, weights.up, weights.down, probabilities, ids)


def gather(tokens: int) -> Call:
    """The copy of each token's row to its experts' places."""
    _, source = padded(Sorted(tokens), 128)
    x = torch.randn(tokens, products.HIDDEN, dtype=torch.bfloat16, device="cuda")
    out = torch.empty(len(source), products.HIDDEN, dtype=torch.bfloat16, device="cuda")
    return lambda: torch.index_select(x, 0, source, out=out)


def cell(make: Callable[[], Call], work: float) -> str:
    """Microseconds, and TFLOP/s of ``work`` useful floating-point operations, if any."""
    try:
        taken = microseconds([make()], 3)
    except Exception as error:  # this card or this machine lacks what the library needs: that is the answer
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:80]}"
    return f"{taken:.0f} ({work / taken / 1e6:.0f})" if work else f"{taken:.0f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 2048, 8192, 16384], metavar="N", help="in a chunk")
    parser.add_argument("--sweep", type=float, metavar="SECONDS", help="time many tiles of ours instead, half of it for compiling")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("prefill_expert_times needs a CUDA card")
    if options.sweep:
        ours.sweep(options.tokens, options.sweep)
        return
    weights = products.Experts()
    names = ("tokens", "product", "stock µs (TFLOP/s)", "measured tiles", "triton_kernels", "torch", "DeepGEMM", "gather", "ours")
    print(f"| {' | '.join(names)} |\n|" + " --- |" * len(names))
    libraries = (by_triton_kernels, by_torch, by_deep_gemm)
    for tokens in options.tokens:
        tiles = {down: [nearest(file, tokens) for file in (shipped(down), measured(down))] for down in (False, True)}
        for down in (False, True):
            work = 2.0 * tokens * products.TOPK * (products.INNER if down else 2 * products.INNER) * products.HIDDEN
            cells = [cell(partial(products.launcher, weights, down, tokens, tile, 0), work) for tile in tiles[down]]
            cells += [cell(partial(library, weights, down, tokens), work) for library in libraries]
            cells.append("-" if down else cell(partial(gather, tokens), 0))
            cells.append(cell(partial(by_us, weights, down, tokens), work))
            print(f"| {tokens} | {'down' if down else 'up'} | {' | '.join(cells)} |", flush=True)
        pairs = [list(pair) for pair in zip(tiles[False], tiles[True], strict=True)]
        layers = [cell(partial(layer_of, weights, tokens, pair), 0) for pair in (*pairs, None)]
        print(f"| {tokens} | layer | {layers[0]} | {layers[1]} | - | - | - | - | {layers[2]} |", flush=True)


if __name__ == "__main__":
    main()
