"""Finds the fastest tiles of SGLang's fused MoE for Gemma 4 on this GPU, and writes them where the patch ``moe_tiles`` finds them.

Both GEMMs of a layer share one alignment of rows. They are timed separately for each number of rows per block, and
chosen together.
"""

import argparse
import functools
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from sglang_gemma4 import terminal
from sglang_gemma4.benchmark.kernels import expert_products as products
from sglang_gemma4.benchmark.kernels.harness import Place, reason, timed
from sglang_gemma4.models.layers.expert_tiles import file_name, write

SHARED_BYTES = 227 * 1024
"""Shared memory of a Hopper SM for one program, in bytes."""
SAY_SECONDS = 15
"""Seconds between two progress lines while compiling."""
PLAIN = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
"""The tile whose output the chosen tiles are checked against."""
Tile = dict[str, Any]
Job = tuple[bool, Tile, Sequence[int], int]
"""Whether it is the second GEMM, the tile, numbers of tokens, inner columns."""


def candidates(tokens: int, down: bool) -> list[Tile]:
    """Tiles worth trying. SGLang's kernel supports TMA for 16-bit weights in the first GEMM only; in the second it needs quantised rows."""
    mean = tokens * products.TOPK / products.EXPERTS  # rows per expert
    rows = [size for size in (16, 32, 64, 128) if (size <= 16 or size <= 2.5 * mean) and (size >= 64 or 4 * size > mean)]
    if mean < 16:
        choices = itertools.product(rows, (32, 64, 128), (64, 128, 256), (1,), (4,), (3, 4, 5))
    else:
        choices = itertools.product(rows, (64, 128, 256), (32, 64, 128), (1, 16), (4, 8), (2, 3, 4))
    found = []
    for m, n, k, group, warps, stages in choices:
        if 2 * stages * (m + n) * k > SHARED_BYTES or m * n > 128 * 32 * warps or (warps == 8 and m * n < 128 * 128):
            continue
        if mean >= 16 and stages not in {32: (4,), 64: (3, 4), 128: (2, 3)}[k]:
            continue
        tile = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group, "num_warps": warps, "num_stages": stages}
        found.append(tile)
        if not down and k == 64 and n >= 64 and mean >= 2:
            found.append({**tile, "USE_TMA": True})
    return found


def key_of(tile: Tile, down: bool) -> str:
    """The tile's name in the table."""
    values = "x".join(str(tile[f"BLOCK_SIZE_{axis}"]) for axis in "MNK")
    tma = " TMA" if tile.get("USE_TMA") else ""
    return f"{'down' if down else 'up'} {values} g{tile['GROUP_SIZE_M']} w{tile['num_warps']} s{tile['num_stages']}{tma}"


@functools.cache
def _blank(inner: int) -> products.Experts:
    return products.Experts.make(Place(), inner, blank=True)


def compile_tile(job: Job) -> str:
    """In a worker process: compile one tile for all numbers of tokens into Triton's cache; returns "" or why this GPU refuses it."""
    down, tile, tokens, inner = job
    try:
        for each in tokens:
            products.launcher(_blank(inner), down, each, tile, 0, blank=True)()
        torch.cuda.synchronize()
    except Exception as error:  # out of shared memory or registers, or refused by the compiler: not a candidate
        return reason(error)
    return ""


def compile_all(tokens: Sequence[int], inner: int, processes: int, deadline: float) -> dict[str, str]:
    """Compile every candidate on all cores; returns, by candidate, why this GPU refuses it."""
    jobs: dict[str, tuple[bool, Tile, list[int], int]] = {}
    for each, down in itertools.product(tokens, (False, True)):
        for tile in candidates(each, down):
            jobs.setdefault(key_of(tile, down), (down, tile, [], inner))[2].append(each)
    refused: dict[str, str] = {}
    started = said = time.monotonic()
    terminal.say(f"compiling {len(jobs)} tiles in {processes} processes, at most {max(0.0, deadline - started):.0f} s")
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pending = [(key, pool.apply_async(compile_tile, (job,))) for key, job in jobs.items()]
        for number, (key, result) in enumerate(pending):
            try:
                if why := result.get(max(1.0, deadline - time.monotonic())):
                    refused[key] = why
            except multiprocessing.TimeoutError:
                terminal.say("compiling took its half of the time limit; the rest compiles where it is timed")
                break
            if (now := time.monotonic()) > said + SAY_SECONDS:
                terminal.say(f"{number + 1} of {len(jobs)} tiles compiled")
                said = now
        pool.terminate()
    terminal.say(f"compiled in {time.monotonic() - started:.0f} s; {len(refused)} of {len(jobs)} tiles do not fit this GPU; timing")
    return refused


def spent(weights: products.Experts, down: bool, tokens: int, tile: Tile, rounds: int) -> float | str:
    """Microseconds of one GEMM, the median of ``rounds`` replays of a graph over several routings; or why this GPU refuses the tile."""
    calls = [products.launcher(weights, down, tokens, tile, seed) for seed in range(products.ROUTINGS)]
    (found,) = timed({"": calls}, Place(), True, rounds).values()
    return found if isinstance(found, str) else statistics.median(found)


def best_pair(weights: products.Experts, tokens: int, refused: dict[str, str], deadline: float) -> list[tuple[Tile, float]] | None:
    """The fastest pair of tiles with the same rows per block, one per GEMM, with microseconds; None if time ran out before any pair."""
    best: dict[tuple[int, bool], tuple[float, Tile]] = {}
    listed = {down: candidates(tokens, down) for down in (False, True)}
    for size in sorted({tile["BLOCK_SIZE_M"] for tile in listed[False]}):
        for down in (False, True):
            for tile in listed[down]:
                if tile["BLOCK_SIZE_M"] != size or key_of(tile, down) in refused:
                    continue
                if time.monotonic() > deadline and (size, down) in best:
                    break
                taken = spent(weights, down, tokens, tile, 1)
                if isinstance(taken, str):  # a refusal that was not met while compiling
                    refused[key_of(tile, down)] = taken
                elif taken < best.get((size, down), (float("inf"), {}))[0]:
                    best[size, down] = (taken, tile)
    pairs = [(best[size, False], best[size, True]) for size, down in best if not down and (size, True) in best]
    if not pairs:
        return None
    first, second = min(pairs, key=lambda pair: pair[0][0] + pair[1][0])
    found = []
    for down, (_, tile) in ((False, first), (True, second)):
        check(weights, tokens, tile, down)
        taken = spent(weights, down, tokens, tile, 5)
        if isinstance(taken, str):
            raise ValueError(f"{key_of(tile, down)} at {tokens} tokens ran before and no longer does: {taken}")
        found.append((tile, taken))
    return found


def check(weights: products.Experts, tokens: int, tile: Tile, down: bool) -> None:
    """Check that this tile computes what a plain one does.

    Raises:
        ValueError: it does not, which is a compiler error.
    """
    width = (weights.down if down else weights.up).shape[1]
    outs = [torch.full((tokens, products.TOPK, width), 1e4, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    for out, one in zip(outs, (PLAIN, tile), strict=True):
        products.launcher(weights, down, tokens, one, 0, out)()
    apart = float((outs[0].float() - outs[1].float()).abs().max())
    if not apart < 0.1:
        raise ValueError(f"{key_of(tile, down)} at {tokens} tokens is {apart:g} away from a plain tile; it is not written")


def tune(options: argparse.Namespace) -> int:
    """Compile, time, choose and write tiles; prints two rows, one per GEMM, for each number of tokens."""
    if not torch.cuda.is_available():
        raise ValueError("tune-moe measures on a CUDA GPU, and torch finds none")
    inner = products.INNER // options.tp
    started = time.monotonic()
    refused = compile_all(options.tokens, inner, options.processes, started + options.time_limit / 2)
    weights = products.Experts.make(Place(), inner)
    paths = [options.out / file_name(products.EXPERTS, inner, torch.cuda.get_device_name(), down) for down in (False, True)]
    print(head(options.markdown), flush=True)
    for number, tokens in enumerate(options.tokens):
        now = time.monotonic()
        share = (started + options.time_limit - now) / (len(options.tokens) - number)
        found = best_pair(weights, tokens, refused, now + max(5.0, share))
        if found is None:
            print(line((str(tokens), "none runs on this GPU", "", ""), options.markdown), flush=True)
            continue
        for path, down, (tile, taken) in zip(paths, (False, True), found, strict=True):
            moved, flops = products.work(tokens, down, inner)
            floor = max(moved / options.bandwidth / 1e3, flops / options.teraflops / 1e6)
            print(line((str(tokens), key_of(tile, down), f"{taken:.1f}", f"{floor:.1f}"), options.markdown), flush=True)
            write(path, {tokens: tile})
    print(f"\nwritten: {paths[0]} and {paths[1].name}; a server uses them (patch moe_tiles)", flush=True)
    return 0


def head(markdown: bool) -> str:
    """The table's head; its columns have fixed widths, because rows come minutes apart."""
    heads = ("tokens", "tile", "µs", "floor µs")
    return f"{line(heads, True)}\n| ---: | --- | ---: | ---: |" if markdown else line(heads, False)


def line(cells: Sequence[str], markdown: bool) -> str:
    """One row: tokens, tile, microseconds, and the least microseconds that the GPU allows."""
    tokens, tile, taken, floor = cells
    return f"| {' | '.join(cells)} |" if markdown else f"{tokens:>6}  {tile:<32} {taken:>10} {floor:>10}".rstrip()
