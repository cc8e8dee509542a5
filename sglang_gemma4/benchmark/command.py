"""``sglang-gemma4 bench``: check the command line before anything starts, run the comparison, write the report."""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sglang_gemma4 import switches
from sglang_gemma4.benchmark import workloads
from sglang_gemma4.benchmark.checked_plan import ACCEPT_LENGTH, plan_of
from sglang_gemma4.benchmark.plan import Plan

EPILOG = """\
arms        [NAME:]PART[,PART...]; a part is stock, package, vllm, mtp, VARIABLE=VALUE, --flag=value, or only=WORKLOAD+WORKLOAD (the
            others are not for this arm). The first arm is the baseline. --switch NAME is short for the two arms that turn one switch off
            and on. vllm is vLLM's own server from --vllm-python, with vLLM's flags; all arms are then sent token ids to /v1/completions.
loads       log-uniform, sharegpt-like and multi-turn arrive as a Poisson process at each of --rates, whatever the server has finished;
            mix is a closed loop of 120 requests, 80 at once; 32x1000/200 are 32 requests at once, 1000 in and 200 out
model       a checkpoint's directory, a Hugging Face name, a tiny model (tiny-26b-a4b), or a real size with random weights
            (e2b, e4b, 26b-a4b, 31b)
flags       what follows -- are server flags of every arm
examples    sglang-gemma4 bench 26b-a4b --workload chat,summarize
            sglang-gemma4 bench 26b-a4b --switch SGLANG_GEMMA4_NORMS --batches 1,32 --profile 1,32 --roofline
            sglang-gemma4 bench 26b-a4b --arm stock --arm ratio-0.15:stock,--swa-full-tokens-ratio=0.15 -- --max-running-requests=80
            sglang-gemma4 bench 26b-a4b --workload mix,log-uniform --rates 2,4,6,8 --arm package:package,mtp --arm vllm:vllm,mtp
            sglang-gemma4 bench --dry-run
"""


def add_command(commands: Any) -> None:
    """Add ``bench`` to the subcommands of the command line."""
    bench = commands.add_parser(
        "bench",
        help="compare arms (stock, package, one switch off and on) on this machine, with confidence intervals and a report",
        description="Run every arm in processes of its own, in turn (A B A B), and write raw lines, plots and REPORT.md to a folder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("model", nargs="?", metavar="MODEL", help="what to serve; see below")
    bench.add_argument("--arm", action="append", default=[], metavar="ARM", help="one side; repeat it (default: stock and package)")
    bench.add_argument("--switch", metavar="NAME", help="compare this switch off and on")
    bench.add_argument(
        "--workload",
        default="",
        metavar="NAMES",
        help=f"joined by commas: {', '.join(workloads.WORKLOADS)}, sweep, prompts, ttft, images-sweep, NxIN/OUT; "
        f"with --rates {', '.join(workloads.LOADS)} (through a server)",
    )
    bench.add_argument("--rates", default="", metavar="R,R", help="requests/s of the loads, rising, for example 1,2,4")
    bench.add_argument(
        "--load-seconds",
        type=float,
        default=workloads.LOAD_SECONDS,
        metavar="S",
        help=f"of arrivals at each rate (default {workloads.LOAD_SECONDS:g})",
    )
    for name, default in (("ttft", workloads.TTFT_LIMIT), ("itl", workloads.ITL_LIMIT)):
        bench.add_argument(
            f"--{name}-limit",
            type=float,
            default=default,
            metavar="MS",
            help=f"of the 99th percentile of {name.upper()}, for goodput (default {default:g})",
        )
    bench.add_argument(
        "--vllm-python",
        metavar="PYTHON",
        help=f"the Python whose environment has vLLM, for arms of it (default ${switches.VLLM_PYTHON}, else this one)",
    )
    bench.add_argument("--batches", default="", metavar="N,N", help="batch sizes for step times (offline engine), for example 1,8,32,64")
    bench.add_argument("--step-tokens", default="1000,200", metavar="IN,OUT", help="tokens of each request in the step times")
    bench.add_argument("--rounds", type=int, help="processes of each arm (default 2: A B A B; 1 with --together)")
    bench.add_argument(
        "--together",
        type=int,
        nargs="?",
        const=sys.maxsize,
        default=1,
        metavar="N",
        help="run N arms side by side (without N: all), their passes in turn; together they must fit the card (--max-total-tokens)",
    )
    bench.add_argument(
        "--share-weights",
        action="store_true",
        help="with --together and random weights: arms that run side by side map a single copy of them, so that more arms fit",
    )
    bench.add_argument(
        "--card-lock",
        type=Path,
        metavar="FILE",
        help="each pass waits for this file's lock (flock), which other programs on the card take too",
    )
    bench.add_argument("--repetitions", type=int, default=5, help="counted passes of each arm and workload in all (default 5)")
    bench.add_argument("--out", type=Path, metavar="FOLDER", help="the run's folder (default runs/DATE-MODEL); an unfinished run resumes")
    bench.add_argument("--assistant", metavar="MODEL", help="draft model of mtp (default: MODEL-assistant)")
    bench.add_argument(
        "--accept-length", type=float, metavar="L", help=f"simulate it under mtp (default {ACCEPT_LENGTH} on random weights)"
    )
    bench.add_argument("--dataset", type=Path, metavar="FILE", help="prompts in ShareGPT's format (default: random words)")
    bench.add_argument("--profile", default="", metavar="N,N", help="record the kernels at these batch sizes (offline engine)")
    bench.add_argument(
        "--roofline",
        action="store_true",
        help="compare the profiled kernels with the least time that their bytes and FLOPs take on this card",
    )
    bench.add_argument("--time-limit", type=float, metavar="S", help="stop after this many seconds; the same command resumes the run")
    bench.add_argument("--start-limit", type=float, default=1200, metavar="S", help="how long a server may take to come up (default 1200)")
    bench.add_argument(
        "--dry-run", action="store_true", help="run everything on the tiny model of that family, with tiny workloads; measures nothing"
    )
    bench.add_argument("--no-report", action="store_true", help="write raw lines only; make the report later or elsewhere with --report")
    bench.add_argument("--report", type=Path, metavar="FOLDER", help="only write the plots and REPORT.md of a finished run again")
    bench.add_argument("--index", type=Path, metavar="RUNS", help="only write README.md of a folder of runs")
    bench.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0 everything was measured, 1 an arm crashed (the report says where), 3 the time limit ended the run early."""
    if arguments.index:
        from sglang_gemma4.benchmark import runs_index

        print(runs_index.write(arguments.index))
        return 0
    if arguments.report:
        return _report(arguments.report)
    with tempfile.TemporaryDirectory() as scratch:
        plan = plan_of(arguments, Path(scratch))
        return _run(plan, arguments)


def _run(plan: Plan, arguments: argparse.Namespace) -> int:
    from sglang_gemma4.benchmark import plots, records, runner

    if not arguments.no_report:
        plots.require()  # now, not after hours
    started = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - started:7.1f} s] {text}", file=sys.stderr, flush=True)

    for ending in (signal.SIGTERM, signal.SIGHUP):  # the arms' processes must not outlive this one
        signal.signal(ending, signal.default_int_handler)
    if plan.share_weights and not plan.cpu:
        _in_a_process("mapping", "processes on this card cannot map each other's memory", "--share-weights")
    finished = runner.run(plan, _header(plan), _card(plan, progress), arguments.time_limit, progress)
    if not arguments.no_report:
        _report(plan.folder)
    crashed = any(line["kind"] == "crash" for line in records.read(plan.raw))
    return 3 if not finished else int(crashed)


def _report(folder: Path) -> int:
    from sglang_gemma4.benchmark import records, report

    if not records.read(folder / records.NAME):
        raise ValueError(f"{folder} holds no {records.NAME}, or an empty one; give the folder of a run")
    print(report.write(folder))
    return 0


def _header(plan: Plan) -> dict[str, Any]:
    from sglang_gemma4.benchmark import machine

    notes = []
    if plan.dummy_weights:
        notes.append("Random weights with a realistic spread: speed is measured, text is not. Stock keeps the switch that fills them.")
    if plan.environment:
        notes.append(f"The accept length under MTP is simulated: {plan.environment['SGLANG_SIMULATE_ACC_LEN']} tokens per verify step.")
    if plan.together > 1:
        who = "all arms" if plan.together == len(plan.arms) else f"{plan.together} arms at a time"
        notes.append(f"The servers or engines of {who} ran side by side on the card; one pass at a time, the arms in turn.")
    if plan.share_weights:
        notes.append("They mapped a single copy of the weights.")
    if plan.dry_run:
        notes.append("A dry run on a tiny model: it shows that the benchmark works and measures nothing.")
    if plan.cpu and not plan.dry_run:
        notes.append("On the CPU reference engine: times here say nothing about a GPU.")
    if plan.workloads and not plan.dataset:
        notes.append("Prompts are random words of the model's vocabulary, every request exactly as long as the workload says or draws.")
    if plan.token_ids:
        notes.append("Every workload was sent as token ids to /v1/completions, to SGLang and vLLM alike.")
        if plan.dummy_weights:
            notes.append("vLLM served the language model alone, SGLang the checkpoint with its image encoder.")
    peer = {"vllm": plan.vllm_version} if plan.vllm_version else {}
    facts = {"versions": {**machine.versions(), **peer}, "device": machine.device(), "environment": machine.environment(), "notes": notes}
    return plan.header() | {"command": _command()} | facts


def _command() -> list[str]:
    # Paths of this machine do not belong in a committed run.
    return ["sglang-gemma4", *(Path(word).name if word.startswith("/") else word for word in sys.argv[1:])]


def _card(plan: Plan, progress: Any) -> dict[str, Any] | None:
    if not plan.roofline:
        return None
    progress("measuring this card's bandwidth and matrix rate")
    measured: dict[str, Any] = json.loads(_in_a_process("card", "this card could not be measured for --roofline", "--roofline"))
    return measured


def _in_a_process(module: str, failed: str, flag: str) -> str:
    """Output of a module that uses the card, in a process of its own: a CUDA context here would stay for the whole run."""
    try:
        done = subprocess.run([sys.executable, "-m", f"sglang_gemma4.benchmark.{module}"], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{failed} within 300 s; leave {flag} out") from None
    if done.returncode:
        # torch warns when it ends with memory that was shared
        said = [line for line in done.stderr.strip().splitlines() if not line.startswith("[W")]
        raise ValueError(f"{failed} ({(said or ['no output'])[-1]}); leave {flag} out")
    return done.stdout
