"""``sglang-gemma4 bench``: reads the command line, runs the comparison, writes the report."""

import argparse
import itertools
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.benchmark import mapping, workloads
from sglang_gemma4.benchmark.checked_plan import ACCEPT_LENGTH, plan_of
from sglang_gemma4.benchmark.plan import Plan
from sglang_gemma4.patching import switches
from sglang_gemma4.tiny.quantisation import FORMATS

EPILOG = """\
MODEL    a checkpoint's directory, a Hugging Face name, a tiny model
         (tiny-26b-a4b), or a real size with random weights (e2b, e4b, 12b,
         26b-a4b, 31b). What follows -- are server flags of every arm.
ARM      One of the sides that are compared: [NAME:]PART[,PART...]. A PART is
         stock, package, vllm, mtp, VARIABLE=VALUE, --flag=value, or
         only=WORKLOAD+WORKLOAD (this arm runs no other). The first arm is the
         baseline. vllm is vLLM's own server, from --vllm-python and with
         vLLM's flags. All arms then get token ids at /v1/completions.
loads    log-uniform, sharegpt-like and multi-turn arrive as a Poisson process
         at each of --rates, whatever the server has finished. mix is 120
         requests, 80 at once. 32x1000/200 is 32 requests at once, of 1000
         tokens in and 200 out.
sessions sessions-50x10000/8 is 50 sessions at once with a common system
         prompt and tools, which reach 10,000 tokens in 8 turns. Between an
         answer and the next turn they wait --think seconds. With @4 at the
         end, turns arrive as a Poisson process of 4 a second.

examples
  sglang-gemma4 bench 26b-a4b --workload chat,summarize
  sglang-gemma4 bench 26b-a4b --switch SGLANG_GEMMA4_NORMS --batches 1,32 \\
      --profile 1,32 --roofline
  sglang-gemma4 bench 26b-a4b --arm stock \\
      --arm ratio-0.15:stock,--swa-full-tokens-ratio=0.15 \\
      -- --max-running-requests=80
  sglang-gemma4 bench 26b-a4b --workload mix,log-uniform --rates 2,4,6,8 \\
      --arm package:package,mtp --arm vllm:vllm,mtp
  sglang-gemma4 bench --dry-run
"""


def _positive_number(text: str) -> float:
    if not (math.isfinite(value := float(text)) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0; give one")
    return value


def _positive_integer(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1; give 1 or more")
    return value


def _rates(text: str) -> list[float]:
    found = _list(text, _positive_number)
    if any(later <= earlier for earlier, later in itertools.pairwise(found)):
        raise argparse.ArgumentTypeError(f"{text} does not rise; write each rate once, the lowest first")
    return found


def _sizes(text: str) -> list[int]:
    found: list[int] = []
    for first, *last in (part.split("-") for part in text.split(",") if part):
        if len(last) > 1 or not all(end.isdecimal() for end in (first, *last)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers; write for example 1,8,32 or 1-16,32")
        if last and int(last[0]) < int(first):
            raise argparse.ArgumentTypeError(f"{first}-{last[0]} ends before it begins; write {last[0]}-{first}")
        found += range(_positive_integer(first), int((last or [first])[0]) + 1)
    return found


def _in_and_out(text: str) -> tuple[int, int]:
    match _sizes(text):
        case [tokens_in, tokens_out] if tokens_out > 1:
            return tokens_in, tokens_out
    raise argparse.ArgumentTypeError(f"{text} is not IN,OUT with at least 2 tokens out; write for example 1000,200")


def _list(text: str, read: Any) -> list[Any]:
    try:
        return [read(word) for word in text.split(",") if word]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers; write for example 1,8,32") from None


def add_command(commands: Any) -> None:
    """Add ``bench`` to the subcommands of the command line."""
    bench = commands.add_parser(
        "bench",
        help="measure speed here: stock, this package, a switch off and on, or vLLM, with confidence intervals and a report",
        description="Compare arms, each in processes of its own, alternating (A B A B).\nWrite raw lines, plots and REPORT.md to a folder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = bench.add_argument
    option("model", nargs="?", metavar="MODEL", help="what to serve: see below")
    option(
        "--arm",
        action="append",
        default=[],
        metavar="ARM",
        help="one side, as below; repeat it (default: stock and package)",
    )
    option("--switch", metavar="NAME", help="compare this switch off and on: short for two arms")
    others = "NxIN/OUT, sessions-NxTOKENS[/TURNS][@RATE]"
    names = f"joined by commas: {', '.join(workloads.WORKLOADS)}, {others}; with --rates {', '.join(workloads.LOADS)}"
    sweep = "sweep the package's bound on pauses and vLLM's batch budget, and plot pauses against first tokens and tokens/s (MTP; load mix)"
    option("--frontier", action="store_true", help=sweep)
    option("--workload", default="", metavar="NAMES", help=f"requests to a server, {names}")
    option("--rates", type=_rates, default=[], metavar="R,R", help="requests per second of the loads, rising, for example 1,2,4")
    for name, default, unit, meaning in (
        ("load-seconds", workloads.LOAD_SECONDS, "S", "seconds of arrivals at each rate"),
        ("think", workloads.THINK_SECONDS, "S", "mean seconds between an answer and a session's next turn"),
        ("ttft-limit", workloads.TTFT_LIMIT, "MS", "goodput's limit of p99 time to first token"),
        ("itl-limit", workloads.ITL_LIMIT, "MS", "goodput's limit of p99 inter-token latency"),
    ):
        option(f"--{name}", type=_positive_number, default=default, metavar=unit, help=f"{meaning} (default {default:g})")
    option("--vllm-python", metavar="PYTHON", help=f"the Python that has vLLM (default ${switches.VLLM_PYTHON}, else this one)")
    option("--batches", type=_sizes, default=[], metavar="N,N", help="batch sizes for step times (offline engine), for example 1-8,32")
    curve = "step times at every batch size from N to 1 in one pass: N requests end one after another, OUT of --step-tokens apart"
    option("--curve", type=_positive_integer, default=0, metavar="N", help=curve)
    option("--step-tokens", type=_in_and_out, default=(1000, 200), metavar="IN,OUT", help="tokens of each request in the step times")
    once = "for step times of very long prompts: only the warm-up prefills them; counted passes find them in the prefix cache"
    option("--prefill-once", action="store_true", help=once)
    option("--rounds", type=_positive_integer, metavar="N", help="processes of each arm (default 2: A B A B; 1 with --together)")
    together = "run N arms (without N: all) side by side, one pass at a time; they must fit the GPU (--max-total-tokens)"
    option("--together", type=_positive_integer, nargs="?", const=sys.maxsize, default=1, metavar="N", help=together)
    option("--share-weights", action="store_true", help="with --together and random weights: one copy of the weights for these arms")
    lock = "each pass waits for this file's lock (flock), which other users of the GPU take too"
    option("--gpu-lock", "--card-lock", dest="card_lock", type=Path, metavar="FILE", help=lock)
    option(
        "--repetitions", type=_positive_integer, default=5, metavar="N", help="counted passes of each arm and workload in all (default 5)"
    )
    option("--out", type=Path, metavar="FOLDER", help="the run's folder (default runs/DATE-MODEL); an unfinished run is continued")
    option("--assistant", metavar="MODEL", help="the MTP draft (default: MODEL-assistant)")
    option("--quantization", metavar="FORMAT", help=f"quantise a tiny model, or a real size with random weights: {', '.join(FORMATS)}")
    option(
        "--accept-length",
        type=float,
        metavar="L",
        help=f"simulate it under MTP (default {ACCEPT_LENGTH} on random weights)",
    )
    option("--dataset", type=Path, metavar="FILE", help="prompts in ShareGPT's format (default: random tokens)")
    option("--profile", type=_sizes, default=[], metavar="N,N", help="record the kernels at these batch sizes (offline engine)")
    option("--roofline", action="store_true", help="with --profile: compare the kernels with the least time that this GPU allows")
    option("--time-limit", type=_positive_number, metavar="S", help="stop after S seconds; the same command continues the run")
    option("--dry-run", action="store_true", help="try everything on a tiny model with tiny workloads, without a measurement")
    option("--no-report", action="store_true", help="write raw lines only; --report makes the report later or elsewhere")
    option("--report", type=Path, metavar="FOLDER", help="only write plots and REPORT.md of a run again; without matplotlib no plots")
    option("--index", type=Path, metavar="RUNS", help="only write the README.md of a folder of runs")
    claims = "only write the README's table and chart and docs/benchmarks.md from the runs that a claims file names"
    option("--claims", type=Path, metavar="FILE", help=claims)
    bench.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; exit status 0 if everything was measured, 1 if an arm crashed (see the report), 3 if the time limit ended it."""
    if arguments.index:
        from sglang_gemma4.benchmark import runs_index

        print(runs_index.write(arguments.index))
        return 0
    if arguments.claims:
        from sglang_gemma4.benchmark import claims_pages

        print(*claims_pages.write(arguments.claims), sep="\n")
        return 0
    if arguments.report:
        return _report(arguments.report)
    with tempfile.TemporaryDirectory() as scratch:
        return _run(plan_of(arguments, Path(scratch)), arguments)


def _run(plan: Plan, arguments: argparse.Namespace) -> int:
    from sglang_gemma4.benchmark import plots, records, runner

    if not arguments.no_report and (reason := plots.reason_against()):
        terminal.say(f"the report will have no plots: {reason}")  # say it before the run, which takes hours
    started = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - started:7.1f} s] {text}", file=sys.stderr, flush=True)

    for ending in (signal.SIGTERM, signal.SIGHUP):  # the arms' processes must not survive this one
        signal.signal(ending, signal.default_int_handler)
    if plan.share_weights and not plan.cpu:
        in_a_process(mapping.__name__, "processes on this GPU cannot map each other's memory", "--share-weights")
    card = None
    if plan.roofline:
        progress("measuring this GPU's bandwidth and matrix rate")
        card = json.loads(in_a_process("sglang_gemma4.benchmark.card", "this GPU could not be measured for --roofline", "--roofline"))
    finished = runner.run(plan, _header(plan), card, arguments.time_limit, progress)
    if not arguments.no_report:
        _report(plan.folder)
    crashed = any(line["kind"] == "crash" for line in records.read(plan.raw))
    return 3 if not finished else int(crashed)


def _report(folder: Path) -> int:
    from sglang_gemma4.benchmark import records

    if not records.read(folder / records.NAME):
        raise ValueError(f"{folder} holds no {records.NAME}, or an empty one; give the folder of a run")
    terminal.say(f"writing the report and the plots of {folder}")
    from sglang_gemma4.benchmark import plots, report

    if reason := plots.reason_against():
        terminal.say(f"no plots are drawn: {reason}")
    print(report.write(folder))
    return 0


def _header(plan: Plan) -> dict[str, Any]:
    from sglang_gemma4.benchmark import machine

    who = "all arms" if plan.together == len(plan.arms) else f"{plan.together} arms at a time"
    notes = {
        "Random weights with a realistic spread: speed is measured, text is not. Stock keeps the switch that fills them.": (
            plan.dummy_weights
        ),
        f"The accept length under MTP is simulated: {plan.environment.get('SGLANG_SIMULATE_ACC_LEN')} tokens per verify step.": (
            plan.environment
        ),
        f"The servers or engines of {who} ran side by side on the GPU; one pass at a time, the arms in turn.": plan.together > 1,
        "They mapped a single copy of the weights.": plan.share_weights,
        "Prompts of step times were prefilled in the warm-up and found in the prefix cache afterwards.": plan.prefill_once,
        "A dry run on a tiny model: it shows that the benchmark works and measures nothing.": plan.dry_run,
        "On the CPU reference engine: times here say nothing about a GPU.": plan.cpu and not plan.dry_run,
        "Prompts are random tokens of the model's vocabulary, every request exactly as long as the workload says or draws.": (
            plan.workloads and not plan.dataset
        ),
        "Every workload was sent as token ids to /v1/completions, to SGLang and vLLM alike.": plan.token_ids,
        "vLLM served the language model alone, SGLang the checkpoint with its image encoder.": plan.token_ids and plan.dummy_weights,
    }
    facts = machine.facts(["sglang-gemma4", *sys.argv[1:]])
    if plan.vllm_version:
        facts["versions"]["vllm"] = plan.vllm_version
    return {
        **plan.header(),
        **facts,
        "notes": [note for note, holds in notes.items() if holds],
    }


def in_a_process(module: str, failed: str, flag: str) -> str:
    """The output of a module that uses the GPU, run in a separate process: a CUDA context here would stay for the whole run.

    Raises:
        ValueError: it failed or took too long; the message says to leave ``flag`` out.
    """
    try:
        done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{failed} within 300 s; leave {flag} out") from None
    if done.returncode:
        # torch warns at exit about memory that was shared
        said = [line for line in done.stderr.strip().splitlines() if not line.startswith("[W")]
        raise ValueError(f"{failed} ({(said or ['no output'])[-1]}); leave {flag} out")
    return done.stdout
