"""An engine of the CPU reference engine over one or two ranks (gloo), for ``test_parallel_gpu.py`` on a machine without GPUs."""

import os
import sys
from pathlib import Path
from typing import Any

import torch


def cpu_engine(**options: Any) -> Any:
    """The engine; what only a GPU has is left out of ``options``."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)  # else the ranks' threads wait for each other's cores
    ranks = int(options.get("tp_size", 1)) * int(options.get("pp_size", 1))
    if ranks > 1:
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(ranks)))
    for name in ("dtype", "attention_backend", "mem_fraction_static", "cuda_graph_max_bs_decode"):
        options.pop(name, None)
    sys.path.append(str(Path(__file__).parents[2] / "crash_repro"))
    import engines  # type: ignore[import-not-found]

    return engines.cpu_engine("tests.harness.instruments.gloo_ranks:install", **options)
