"""Compiles a case's candidate tiles in several processes, before they are timed one by one."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from sglang_gemma4.benchmark.kernels.cases import CASES
from sglang_gemma4.benchmark.kernels.harness import Place, compile_tiles


def compile_share(name: str, chosen: Mapping[str, Sequence[Any]], part: int, parts: int) -> int | None:
    """Compile one process's share; returns the number of candidates, or None if the GPU has no memory left for its rows."""
    try:
        return compile_tiles(CASES[name], chosen, part, parts, Place())
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return None


def compile_all(name: str, chosen: Mapping[str, Sequence[Any]], processes: int, say: Callable[[str], None] = print) -> int:
    """Compile the candidates of a case's rows into Triton's cache; returns how many. The rest compiles when it is timed."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        shares = [pool.submit(compile_share, name, chosen, number, processes) for number in range(processes)]
        found = [share.result() for share in shares]
    if failed := found.count(None):
        say(f"<!-- {failed} of {processes} processes had no memory for their rows: give fewer --compilers, or smaller rows -->")
    return sum(share or 0 for share in found)
