"""Many tiles of our two products of a prefill chunk's experts, timed on this card: ``prefill_expert_times --sweep SECONDS``.

Both products of a layer share the rows a block, so the best are listed for each of them. Nothing is written: the ones chosen go to
``kernels/prefill_experts.tiles_for``.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from sglang_gemma4.benchmark import expert_products as products
from sglang_gemma4.benchmark.graph_timer import microseconds
from sglang_gemma4.kernels.experts.expert_blocks import Blocks
from sglang_gemma4.kernels.experts.grouped_experts import sum_of_rows
from sglang_gemma4.kernels.experts.prefill_experts import PrefillTile, down, gate_and_up
from sglang_gemma4.models.layers.expert_layers import aligned_blocks

SHARED_BYTES = 227 * 1024
"""Of a Hopper SM, for one program."""
SHOWN = 5
"""Tiles of each product and rows a block."""
Job = tuple[bool, int, PrefillTile]
"""Whether it is the second product, rows a block, the tile."""
SHAPES = {
    False: {
        128: ((128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (64, 64, 4, 3), (64, 64, 8, 3), (64, 64, 8, 4)),
        64: ((128, 64, 4, 3), (128, 64, 4, 4), (128, 64, 8, 4), (64, 64, 4, 4)),
    },
    True: {
        128: ((256, 64, 8, 3), (256, 64, 8, 4), (128, 64, 4, 3), (128, 64, 8, 3), (128, 64, 8, 4)),
        64: ((256, 64, 4, 3), (256, 64, 4, 4), (128, 64, 4, 3), (128, 64, 4, 4)),
    },
}
"""Columns, depth, warps and stages that compile without spilling, by the product and the rows a block."""
PLAIN = PrefillTile(64, 32, 4, 2)
"""Loads through pointers; what the others are compared with."""


def shared_bytes(job: Job) -> int:
    """What a program of a job takes, about: the steps that are loaded ahead, and beside them the part of a tile that is stored."""
    second, size, tile = job
    width = tile.columns * (1 if second else 2)
    stored = (64 * tile.columns if tile.warps == 4 else 32768) if tile.ahead else 0
    return 2 * tile.stages * (size + width) * tile.depth + stored + 64


def candidates() -> list[Job]:
    """The most promising first: a sweep that runs out of time has seen those."""
    found: list[Job] = []
    for group, ahead, second in itertools.product((1, 4, 16), (False, True), (False, True)):
        for size, shapes in SHAPES[second].items():
            for shape in shapes:
                job = (second, size, PrefillTile(*shape, group, int(ahead), ahead))
                if ahead and 2 * shared_bytes(job) <= SHARED_BYTES and shape[2] == 4:
                    job = (second, size, PrefillTile(*shape, group, 2, ahead))
                if shared_bytes(job) <= SHARED_BYTES:
                    found.append(job)
    return found


def name_of(job: Job) -> str:
    """One word for it, as the lists show it."""
    second, size, tile = job
    ahead = f" ahead {tile.programs}" if tile.ahead else ""
    return f"{'down' if second else 'up'} {size}x{tile.columns}x{tile.depth} g{tile.group} w{tile.warps} s{tile.stages}{ahead}"


def launcher(weights: products.Experts, tokens: int, job: Job, seed: int = 0, blocks: Blocks | None = None) -> Callable[[], torch.Tensor]:
    """A call of one product. Rows lie in blocks already, and the second has the first one's output, zeros where places are empty."""
    second, size, tile = job
    probabilities, ids = products.routing(tokens, seed)
    blocks = blocks or aligned_blocks(ids, products.EXPERTS, size)
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(tokens, products.HIDDEN, dtype=torch.bfloat16, device="cuda", generator=generator)
    up = partial(gate_and_up, x, weights.up, probabilities, ids, blocks)
    if not second:
        return partial(up, tile, tile != PLAIN)
    return partial(down, up(PrefillTile(*SHAPES[False][size][-1]), True), weights.down, ids.numel(), blocks, tile, tile != PLAIN)


def compile_one(job: Job) -> str:
    """In a worker process: into Triton's cache, by a launch over no blocks. "" or why this card does not take it."""
    second, size, tile = job
    try:
        weights, rows = products.blank_experts(products.INNER), 16 * products.TOPK
        ids = torch.zeros(16, products.TOPK, dtype=torch.int32, device="cuda")
        places = torch.zeros(16, size, dtype=torch.int32, device="cuda")
        blocks = Blocks(torch.zeros(16, dtype=torch.int32, device="cuda"), places, torch.zeros(1, dtype=torch.int32, device="cuda"))
        if second:
            h = torch.empty(16, size, products.INNER, dtype=torch.bfloat16, device="cuda")
            down(h, weights.down, rows, blocks, tile, tile != PLAIN)
        else:
            x = torch.empty(16, products.HIDDEN, dtype=torch.bfloat16, device="cuda")
            gate_and_up(x, weights.up, torch.zeros(16, products.TOPK, device="cuda"), ids, blocks, tile, tile != PLAIN)
        torch.cuda.synchronize()
    except Exception as error:  # out of shared memory or registers, or a tile that the compiler refuses: no candidate
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
    return ""


def compiled(jobs: Sequence[Job], deadline: float, processes: int) -> list[Job]:
    """Those that compile, on all cores; the ones that were not reached are left out."""
    started, done = time.monotonic(), []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        waiting = [(job, pool.apply_async(compile_one, (job,))) for job in jobs]
        for job, result in waiting:
            try:
                reason = result.get(max(0.1, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                continue
            if reason:
                print(f"<!-- {name_of(job)}: {reason} -->", flush=True)
            else:
                done.append(job)
        pool.terminate()
    print(f"{len(done)} of {len(jobs)} tiles compiled in {time.monotonic() - started:.0f} s", flush=True)
    return done


def apart(weights: products.Experts, tokens: int, job: Job) -> float:
    """The greatest difference from a plain tile, over the rows of an expert."""
    second, size, _ = job
    _, ids = products.routing(tokens, 0)
    blocks = aligned_blocks(ids, products.EXPERTS, size)
    found, expected = (launcher(weights, tokens, each, 0, blocks)() for each in (job, (second, size, PLAIN)))
    if not second:
        count = int(blocks.count)
        taken = blocks.row[:count] < ids.numel()
        found, expected = found[:count][taken], expected[:count][taken]
    return float((found - expected).abs().max())


def best_of(weights: products.Experts, tokens: int, jobs: Sequence[Job], deadline: float) -> list[tuple[float, Job]]:
    """Microseconds of each job that time allows, the fastest first, those of the front timed once more."""
    timed: list[tuple[float, Job]] = []
    for job in jobs:
        if time.monotonic() > deadline:
            break
        try:
            timed.append((microseconds([launcher(weights, tokens, job)], 1), job))
        except Exception as error:  # a refusal that was not met while compiling
            print(f"<!-- {name_of(job)}: {type(error).__name__} -->", flush=True)
    timed.sort(key=lambda one: one[0])
    again = [(microseconds([launcher(weights, tokens, job)], 3), job) for _, job in timed[:SHOWN]]
    return sorted(again, key=lambda one: one[0]) + timed[SHOWN:]


def sweep(tokens: Sequence[int], seconds: float, processes: int | None = None) -> None:
    """Compile for at most half of the time, then time; print the best of each product and rows a block."""
    started = time.monotonic()
    plain = [(second, size, PLAIN) for second in (False, True) for size in (128, 64)]
    jobs = compiled([*plain, *candidates()], started + seconds / 2, processes or os.cpu_count() or 1)
    weights = products.Experts()
    rest = started + seconds - time.monotonic()
    parts = [(each, second, size) for each in tokens for second in (False, True) for size in (128, 64)]
    for number, (each, second, size) in enumerate(parts):
        deadline = started + seconds - rest * (1 - (number + 1) / len(parts))
        mine = [job for job in jobs if job[:2] == (second, size) and job[2] != PLAIN]
        found = best_of(weights, each, mine, deadline)
        print(f"\n{each} tokens, {len(found)} of {len(mine)} timed", flush=True)
        work = 2.0 * each * products.TOPK * products.INNER * (1 if second else 2) * products.HIDDEN
        for taken, job in found[:SHOWN]:
            print(f"- {taken:.0f} µs ({work / taken / 1e6:.0f} TFLOP/s): {name_of(job)}", flush=True)
        if found:
            print(f"- the first is {apart(weights, each, found[0][1]):.4f} away from a plain tile", flush=True)
    _, ids = products.routing(tokens[0], 0)
    rows = torch.randn(ids.numel(), products.HIDDEN, dtype=torch.bfloat16, device="cuda")
    sums = {columns: microseconds([partial(sum_of_rows, rows, ids, columns)], 3) for columns in (256, 512, 1024, 4096)}
    print(
        f"\nsum of {tokens[0]} tokens: {', '.join(f'{taken:.0f} µs at {columns} columns' for columns, taken in sums.items())}", flush=True
    )
