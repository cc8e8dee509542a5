"""Times of single kernels on this GPU: stock functions, libraries and ours on the same inputs, and the least time the GPU allows.

    python -m sglang_gemma4.benchmark.kernels CASE [--AXIS VALUE ...] [--tune [SECONDS]] [--raw FILE]
    python -m sglang_gemma4.benchmark.kernels --list
    python -m sglang_gemma4.benchmark.kernels --dry-run

Each way is timed in a CUDA graph of calls over several sets of inputs, alternating with the other ways. A row has the
median, the spread, and the ratio to the first way with its bootstrap interval.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.benchmark.machine import no_cuda

LISTED = Path(__file__).with_name("cases.json")
"""The output of ``--list --json --fresh``: what each case compares, and its axes, so that no list or help imports torch."""


def listed() -> dict[str, dict[str, Any]]:
    """By case, what it compares and its axes, from :data:`LISTED`; empty while that file is being written."""
    found: dict[str, dict[str, Any]] = json.loads((LISTED.read_text() if LISTED.exists() else "") or "{}")
    return found


def declared() -> dict[str, dict[str, Any]]:
    """What :data:`LISTED` must hold, from the cases themselves; importing them takes torch, Triton and SGLang."""
    from sglang_gemma4.benchmark.kernels.cases import CASES

    return {name: {"compares": case.compares, "axes": {axis: list(v) for axis, v in case.axes.items()}} for name, case in CASES.items()}


def list_text(cases: Mapping[str, Mapping[str, Any]], limit: int | None) -> str:
    """The list for a terminal of ``limit`` columns: each case, what it compares, and below it the values of its axes."""
    lines = []
    for name, case in cases.items():
        lines += terminal.wrapped(f"{name}: {case['compares']}", limit, "  ")
        for axis, values in case["axes"].items():
            said = " ".join(str(value) if isinstance(value, int) else repr(value) for value in values)
            lines += terminal.wrapped(f"    --{axis} {said}", limit, "      ")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The argument parser, with a command for each case; the case's axes are its options."""
    form = argparse.ArgumentParser(
        prog="python -m sglang_gemma4.benchmark.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    form.add_argument("--list", action="store_true", help="the cases, what they compare, their axes")
    form.add_argument("--json", action="store_true", help="with --list: print JSON")
    form.add_argument("--fresh", action="store_true", help="with --list: read the cases themselves, not cases.json (imports torch)")
    form.add_argument("--dry-run", action="store_true", help="without a GPU: shapes of all cases, tiny rows in Triton's interpreter")
    commands = form.add_subparsers(dest="case", metavar="CASE")
    for name, case in listed().items():
        of_case = commands.add_parser(name, help=case["compares"], description=case["compares"])
        for axis, values in case["axes"].items():
            of_case.add_argument(
                f"--{axis}", nargs="+", type=type(values[0]), default=tuple(values), metavar="N" if isinstance(values[0], int) else "NAME",
                help=f"default: {', '.join(map(str, values))}",
            )  # fmt: skip
        of_case.add_argument("--ways", nargs="+", default=[], metavar="TEXT", help="only ways whose name contains one of these texts")
        of_case.add_argument(
            "--tune", nargs="?", type=float, const=float("inf"), metavar="S", help="try other tiles of ours, S seconds a row"
        )
        of_case.add_argument("--compilers", type=int, default=0, metavar="N", help="with --tune: first compile all tiles in N processes")
        of_case.add_argument("--rounds", type=int, default=9, metavar="N", help="counted replays of each way (default 9)")
        of_case.add_argument(
            "--bandwidth",
            type=float,
            default=4295.0,
            metavar="GB/S",
            help="the GPU's memory bandwidth (default: an H200's)",
        )
        of_case.add_argument(
            "--teraflops",
            type=float,
            default=793.7,
            metavar="T",
            help="the GPU's matrix rate (default: an H200's)",
        )
        of_case.add_argument("--raw", type=Path, metavar="FILE", help="append a header and each way's times as lines of JSON")
        of_case.add_argument("--dry-run", action="store_true", default=argparse.SUPPRESS, help="without a GPU: this case only")
    return form


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 0, 1 if a dry run failed to compute something, 2 without a GPU or a case."""
    form = parser()
    asked = form.parse_args(words)
    if asked.list:
        cases = declared() if asked.fresh else listed()
        print(json.dumps(cases, indent=1) if asked.json else list_text(cases, terminal.width()))
        return 0
    if asked.json or asked.fresh:
        form.error("--json and --fresh go with --list")
    if not asked.case and not asked.dry_run:
        form.error("name a case, or --list or --dry-run")
    if not asked.dry_run and (reason := no_cuda()):
        form.error(f"{asked.case} is measured on a CUDA GPU, and there is none here ({reason}); --dry-run tries it without one")
    terminal.say("importing torch, Triton and SGLang, some 20 seconds")
    return _dry_run(asked.case) if asked.dry_run else _measure(form, asked)


def _dry_run(name: str | None) -> int:
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before any kernel is imported
    import triton

    from sglang_gemma4.benchmark.kernels.cases import CASES
    from sglang_gemma4.benchmark.kernels.harness import dry_run

    interpreted = bool(triton.knobs.runtime.interpret)
    if not interpreted:
        print("shapes only: kernels run in a dry run under Triton's interpreter, where no GPU is seen (CUDA_VISIBLE_DEVICES=)")
    well = [dry_run(case, interpreted) for case in ([CASES[name]] if name else CASES.values())]
    return 0 if all(well) else 1


def _measure(form: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    import torch

    if not torch.cuda.is_available():
        form.error(f"{asked.case} is measured on a CUDA GPU, and torch finds none; --dry-run tries it without one")
    from sglang_gemma4.benchmark.kernels.cases import CASES
    from sglang_gemma4.benchmark.kernels.compile_ahead import compile_all
    from sglang_gemma4.benchmark.kernels.harness import Options, Place, run

    axes = {axis: getattr(asked, axis) for axis in CASES[asked.case].axes}
    if asked.tune is not None and asked.compilers > 0:
        print(f"<!-- {compile_all(asked.case, axes, asked.compilers)} tiles compiled -->", flush=True)
    options = Options(asked.rounds, asked.bandwidth, asked.teraflops, asked.ways, asked.tune, asked.raw)
    run(CASES[asked.case], axes, options, Place())
    return 0


if __name__ == "__main__":
    sys.exit(main())
