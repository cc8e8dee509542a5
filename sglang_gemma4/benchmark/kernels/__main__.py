"""Times of single kernels on this card: stock functions, libraries and ours on the same inputs, beside the least time the card allows.

    python -m sglang_gemma4.benchmark.kernels CASE [--AXIS VALUE ...] [--tune [SECONDS]] [--raw FILE]
    python -m sglang_gemma4.benchmark.kernels --list
    python -m sglang_gemma4.benchmark.kernels --dry-run

Each way is timed in a CUDA graph of calls over several sets of inputs, the ways in turn; medians, their spread, and the ratio to the first
way with its bootstrap interval.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch


def parser() -> argparse.ArgumentParser:
    """With a command for each case, whose axes are its options."""
    from sglang_gemma4.benchmark.kernels.cases import CASES

    form = argparse.ArgumentParser(
        prog="python -m sglang_gemma4.benchmark.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    form.add_argument("--list", action="store_true", help="the cases, what they compare, their axes")
    form.add_argument("--dry-run", action="store_true", help="without a card: shapes of all cases, tiny rows in Triton's interpreter")
    commands = form.add_subparsers(dest="case", metavar="CASE")
    for case in CASES.values():
        of_case = commands.add_parser(case.name, help=case.compares, description=case.compares)
        for axis, values in case.axes.items():
            of_case.add_argument(
                f"--{axis}", nargs="+", type=type(values[0]), default=values, metavar="N" if isinstance(values[0], int) else "NAME",
                help=f"default: {', '.join(map(str, values))}",
            )  # fmt: skip
        of_case.add_argument("--ways", nargs="+", default=[], metavar="TEXT", help="only ways whose name contains one of these")
        of_case.add_argument(
            "--tune", nargs="?", type=float, const=float("inf"), metavar="S", help="try other tiles of ours, S seconds a row"
        )
        of_case.add_argument("--compilers", type=int, default=0, metavar="N", help="with --tune: first compile all tiles in N processes")
        of_case.add_argument("--rounds", type=int, default=9, metavar="N", help="counted replays of each way (default 9)")
        of_case.add_argument("--bandwidth", type=float, default=4295.0, metavar="GB/S", help="of the memory (default: an H200's, measured)")
        of_case.add_argument("--teraflops", type=float, default=793.7, metavar="T", help="of the card (default: an H200's, measured)")
        of_case.add_argument("--raw", type=Path, metavar="FILE", help="append a header and each way's times as lines of JSON")
        of_case.add_argument("--dry-run", action="store_true", default=argparse.SUPPRESS, help="of this case")
    return form


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 where a dry run could not compute what it should; 2 without a card or a case."""
    given = sys.argv[1:] if words is None else list(words)
    on_card = torch.cuda.is_available()
    if "--dry-run" in given and not on_card:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before any kernel is imported
    form = parser()
    asked = form.parse_args(given)
    from sglang_gemma4.benchmark.kernels.cases import CASES
    from sglang_gemma4.benchmark.kernels.compile_ahead import compile_all
    from sglang_gemma4.benchmark.kernels.harness import Options, Place, dry_run, run

    chosen = [CASES[asked.case]] if asked.case else list(CASES.values())
    if asked.list:
        for case in chosen:
            print(f"{case.name}: {case.compares}")
            for axis, values in case.axes.items():
                print(f"    --{axis} {' '.join(str(value) if isinstance(value, int) else repr(value) for value in values)}")
        return 0
    if asked.dry_run:
        import triton

        interpreted = bool(triton.knobs.runtime.interpret)
        if not interpreted:
            print("shapes only: kernels run in a dry run under Triton's interpreter, where no CUDA card is seen (CUDA_VISIBLE_DEVICES=)")
        well = [dry_run(case, interpreted) for case in chosen]
        return 0 if all(well) else 1
    if not asked.case:
        form.error("name a case, or --list or --dry-run")
    if not on_card:
        form.error(f"{asked.case} is measured on a CUDA card, and there is none here; --dry-run tries it without one")
    axes = {axis: getattr(asked, axis) for axis in chosen[0].axes}
    if asked.tune is not None and asked.compilers > 0:
        print(f"<!-- {compile_all(asked.case, axes, asked.compilers)} tiles compiled -->", flush=True)
    options = Options(asked.rounds, asked.bandwidth, asked.teraflops, asked.ways, asked.tune, asked.raw)
    run(chosen[0], axes, options, Place())
    return 0


if __name__ == "__main__":
    sys.exit(main())
