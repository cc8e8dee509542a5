"""A case's candidate tiles compiled in several processes, before they are timed one by one."""

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from sglang_gemma4.benchmark.kernels.cases import CASES
from sglang_gemma4.benchmark.kernels.harness import Place, compile_tiles


def compile_share(name: str, chosen: Mapping[str, Sequence[Any]], part: int, parts: int) -> int:
    """What one of the processes compiles; how many candidates."""
    return compile_tiles(CASES[name], chosen, part, parts, Place())


def compile_all(name: str, chosen: Mapping[str, Sequence[Any]], processes: int) -> int:
    """Compile the candidates of a case's rows into Triton's cache; how many there are."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        shares = [pool.submit(compile_share, name, chosen, number, processes) for number in range(processes)]
        return sum(share.result() for share in shares)
