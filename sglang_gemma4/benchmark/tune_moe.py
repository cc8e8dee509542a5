"""The command ``sglang-gemma4 tune-moe``; the work is done in ``kernels/tune_moe.py``, which needs torch."""

import argparse
import os
from pathlib import Path
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.benchmark.machine import no_cuda
from sglang_gemma4.models.layers.expert_tiles import FOLDER

INNER = 704
"""Inner columns of 26B-A4B's experts (``kernels/expert_products.py``)."""
TOKENS = (1, 4, 16, 32, 64, 128, 320, 1024, 2048, 4096, 8192, 16384)
"""Default numbers of tokens. A server uses the tile of the nearest number, so prefill chunks need entries of their own."""


def add_command(commands: Any) -> None:
    """Add ``tune-moe`` to the subcommands of the command line."""
    parser = commands.add_parser(
        "tune-moe",
        help="measure the fastest tiles of the experts' GEMMs on this GPU and write them for servers (patch moe_tiles)",
        description="26B-A4B's shape in bfloat16. It takes about 6 GB of GPU memory; run no server on that GPU meanwhile.",
    )
    option = parser.add_argument
    option("--tokens", nargs="+", type=int, default=list(TOKENS), metavar="N", help="tokens in a batch (default: 1 to 16384)")
    option("--tp-size", "--tp", dest="tp", type=int, default=1, metavar="N", help="SGLang's flag: tensor-parallel ranks (default 1)")
    option("--out", type=Path, default=FOLDER, metavar="FOLDER", help="where to write (default: in the package, where servers look)")
    option("--time-limit", type=float, default=600.0, metavar="SECONDS", help="for all; half of it for compiling (default 600)")
    option("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="processes that compile (default: the cores)")
    option("--bandwidth", type=float, default=4295.0, metavar="GB/S", help="the GPU's memory bandwidth, for the floor (default: an H200's)")
    option("--teraflops", type=float, default=793.7, metavar="T", help="the GPU's matrix rate, for the floor (default: an H200's)")
    option("--markdown", action="store_true", help="print a Markdown table")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.tp < 1 or INNER % arguments.tp:
        raise ValueError(f"--tp-size {arguments.tp} does not divide the experts' {INNER} inner columns")
    if reason := no_cuda():
        raise ValueError(f"tune-moe measures on a CUDA GPU, and there is none here ({reason})")
    terminal.say("importing torch, Triton and SGLang, some 20 seconds")
    from sglang_gemma4.benchmark.kernels import tune_moe

    return tune_moe.tune(arguments)
