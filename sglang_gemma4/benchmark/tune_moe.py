"""The command ``sglang-gemma4 tune-moe``; what it does is in ``kernels/tune_moe.py``."""

import argparse
import os
from pathlib import Path
from typing import Any

from sglang_gemma4.models.layers.expert_tiles import FOLDER

TOKENS = (1, 4, 16, 32, 64, 128, 320, 1024, 2048, 4096, 8192, 16384)
"""A server takes the nearest number of tokens that there is, so a prefill chunk needs its own."""


def add_command(commands: Any) -> None:
    """Add ``tune-moe`` to the subcommands of the command line."""
    parser = commands.add_parser(
        "tune-moe",
        help="measure the fastest tiles of the experts' GEMMs on this card and write them for servers (patch moe_tiles)",
        description="26B-A4B's shape in bfloat16; about 6 GB of the card's memory and no server beside it.",
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS), metavar="N", help="in a batch (default: 1 to 16384)")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks (default 1)")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER", help="default: the package's own, where a server looks")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="SECONDS", help="half of it for compiling (default 600)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="that compile (default: the cores)")
    parser.add_argument("--bandwidth", type=float, default=4295.0, metavar="GB/S", help="for the floor (default: measured on an H200)")
    parser.add_argument("--teraflops", type=float, default=793.7, metavar="T", help="for the floor (default: measured on an H200)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.benchmark.kernels import tune_moe

    return tune_moe.tune(arguments)
