"""``sglang-gemma4 bench``: check the command line before anything starts, run the comparison, write the report."""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from sglang_gemma4 import switches
from sglang_gemma4.benchmark import arms, workloads
from sglang_gemma4.benchmark.plan import Plan

ACCEPT_LENGTH = 2.8  # simulated under MTP on random weights; what the released assistant is reported to reach on this engine
DRY_MODEL = "tiny-26b-a4b"
_TINY_OF = {"e2b": "tiny-e2b", "e4b": "tiny-e2b", "26b": "tiny-26b-a4b", "31b": "tiny-31b"}
EPILOG = """\
arms        [NAME:]PART[,PART...]; a part is stock, package, mtp, VARIABLE=VALUE, --flag=value, or only=WORKLOAD+WORKLOAD (the others
            are not for this arm). The first arm is the baseline. --switch NAME is short for the two arms that turn one switch off and on.
model       a checkpoint's directory, a Hugging Face name, a tiny model (tiny-26b-a4b), or a real size with random weights
            (e2b, e4b, 26b-a4b, 31b)
flags       what follows -- are server flags of every arm
examples    sglang-gemma4 bench 26b-a4b --workload chat,summarize
            sglang-gemma4 bench 26b-a4b --switch SGLANG_GEMMA4_NORMS --batches 1,32 --profile --roofline
            sglang-gemma4 bench 26b-a4b --arm stock --arm ratio-0.15:stock,--swa-full-tokens-ratio=0.15 -- --max-running-requests=80
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
        help=f"joined by commas: {', '.join(workloads.WORKLOADS)}, sweep, prompts, ttft, images-sweep (through a server)",
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


def plan_of(arguments: argparse.Namespace, scratch: Path) -> Plan:
    """The checked plan; ``scratch`` takes the config of a model with random weights.

    Raises:
        ValueError: anything that can be known to be wrong before a process is started.
    """
    from sglang_gemma4.cpu.environment import has_accelerator

    if problems := switches.check_all():
        raise ValueError("; ".join(problems))
    name = _tiny(arguments.model) if arguments.dry_run else arguments.model
    if not name:
        raise ValueError("no model was given; name a checkpoint, a tiny model or a real size (sglang-gemma4 bench --help)")
    model, assistant, dummy = _model(name, arguments.assistant, scratch)
    specs = [*(arms.off_and_on(arguments.switch) if arguments.switch else ()), *arguments.arm] or [arms.STOCK, arms.PACKAGE]
    parsed = [arms.parse(spec, assistant=assistant, dummy_weights=dummy) for spec in specs]
    arms.check(parsed)
    chosen = workloads.named(filter(None, arguments.workload.split(",")))
    for arm in parsed:
        if strange := [name for name in arm.only if name not in {workload.name for workload in chosen}]:
            raise ValueError(
                f"arm {arm.name!r} is kept to {', '.join(strange)}, not in --workload {arguments.workload or '(none)'}; add it there"
            )
    batches, profile = _numbers("--batches", arguments.batches), _numbers("--profile", arguments.profile)
    if arguments.dry_run and not chosen and not batches and not profile:
        chosen, batches, profile = workloads.named(["chat"]), [1, 2], [2]
    if not chosen and not batches and not profile:
        raise ValueError("nothing to measure; give --workload, --batches or --profile (sglang-gemma4 bench --help)")
    step_tokens = _numbers("--step-tokens", arguments.step_tokens)
    if len(step_tokens) != 2 or step_tokens[1] < 2:
        raise ValueError(f"--step-tokens {arguments.step_tokens} is not IN,OUT with at least 2 tokens out; write for example 1000,200")
    if arguments.dry_run:
        chosen, step_tokens = [workloads.miniature(workload) for workload in chosen], [16, 12]
    _at_least("--together", arguments.together, 1)
    together = min(arguments.together, len(parsed))
    if arguments.share_weights and (together == 1 or not (dummy or arguments.dry_run)):
        raise ValueError(
            f"--share-weights is for --together and random weights; here are {together} arms at a time of {name}: leave it out"
        )
    rounds = arguments.rounds if arguments.rounds is not None else 2 if together == 1 else 1
    _at_least("--rounds", rounds, 1)
    _at_least("--repetitions", arguments.repetitions, 1)
    if arguments.roofline and not profile:
        raise ValueError("--roofline belongs to profiled kernels; add --profile with batch sizes, for example --profile 1,32")
    if arguments.dataset:
        _check_dataset(arguments.dataset)
    cpu = not has_accelerator()
    plan = Plan(
        model=model,
        label=name,
        arms=parsed,
        folder=arguments.out or Path("runs") / f"{date.today()}-{'dry-run' if arguments.dry_run else Path(name).name}",
        workloads=chosen,
        batches=batches,
        step_tokens=(step_tokens[0], step_tokens[1]),
        rounds=rounds,
        repetitions=arguments.repetitions,
        arguments=[*(["--load-format=dummy"] if dummy or arguments.share_weights else []), *arguments.server_flags],
        environment=_simulation(parsed, arguments.accept_length, dummy),
        profile=profile,
        roofline=arguments.roofline,
        together=together,
        share_weights=arguments.share_weights,
        card_lock=arguments.card_lock,
        dataset=arguments.dataset,
        dummy_weights=dummy,
        cpu=cpu,
        dry_run=arguments.dry_run,
        start_limit=arguments.start_limit,
    )
    _check_model(plan)
    if cpu and dummy:
        raise ValueError(
            f"{name} with random weights is as large as the real one, and there is no GPU here; give --dry-run or a tiny model"
        )
    return plan


def _tiny(name: str | None) -> str:
    """What a dry run serves in place of ``name``: a tiny model as it is, else the tiny one of its family."""
    for size, tiny in _TINY_OF.items():
        if name and size in name.lower():
            return tiny if not name.startswith("tiny-") else name
    return DRY_MODEL


def _model(name: str, assistant: str | None, scratch: Path) -> tuple[str, str | None, bool]:
    """Where the model is, where its assistant, and whether its weights are random."""
    from sglang_gemma4.serving.launch import resolve
    from sglang_gemma4.tiny import checkpoints

    if name in checkpoints.RANDOM_NAMES and not Path(name).exists():
        target, draft = checkpoints.write(name, str(scratch / name), random=True)
        return target, assistant or draft, True
    model = resolve(name)
    if assistant:
        return model, resolve(assistant), False
    beside = f"{model.rstrip('/')}-assistant"
    local = Path(model).is_dir()
    return model, beside if not local or Path(beside).is_dir() else None, False


def _simulation(parsed: list[arms.Arm], asked: float | None, dummy: bool) -> dict[str, str]:
    """SGLang's own simulation of an accept length; random weights would accept next to nothing."""
    length = asked if asked is not None else ACCEPT_LENGTH if dummy and any(arm.uses_mtp for arm in parsed) else None
    if length is None:
        return {}
    if not 1 <= length <= 4:
        raise ValueError(f"--accept-length {length} is not between 1 and 4, the tokens that 3 draft steps can give; choose one between")
    return {"SGLANG_SIMULATE_ACC_LEN": str(length), "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}


def _check_model(plan: Plan) -> None:
    """The preflight checks of every arm, whatever its switches are, and whether the workloads fit the context."""
    from sglang_gemma4.diagnostics import preflight
    from sglang_gemma4.models import config_files
    from sglang_gemma4.serving.launch import fields_of

    config = config_files.read_config(plan.model, "model") or {}
    text = config.get("text_config", config)
    for arm in plan.arms:
        fields = fields_of(["--model-path", plan.model, *plan.arguments, *arm.arguments])
        preflight.check(fields)
        context = int(fields.get("context_length") or text.get("max_position_embeddings") or sys.maxsize)
        for workload in plan.workloads:
            workloads.check_context(workload, context, "choose a shorter workload or a longer --context-length")
        steps = workloads.Workload("step times", *plan.step_tokens, requests=1)
        if plan.batches or plan.profile:
            workloads.check_context(steps, context, "choose a smaller --step-tokens")


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
        notes.append("Prompts are random words of the model's vocabulary, every request exactly as long as the workload says.")
    facts = {"versions": machine.versions(), "device": machine.device(), "environment": machine.environment(), "notes": notes}
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


def _check_dataset(path: Path) -> None:
    try:
        found = json.loads(path.read_text())
        fits = isinstance(found, list) and any(len(entry.get("conversations", entry.get("conversation", []))) >= 2 for entry in found)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, AttributeError, TypeError):
        fits = False
    if not fits:
        raise ValueError(
            f"--dataset {path} is not a JSON list of conversations with two turns or more (ShareGPT's format); give one, or leave it out"
        )


def _numbers(flag: str, text: str) -> list[int]:
    try:
        found = [int(number) for number in filter(None, text.split(","))]
    except ValueError:
        raise ValueError(f"{flag} {text!r} is not a list of numbers; write for example 1,8,32") from None
    for number in found:
        _at_least(flag, number, 1)
    return found


def _at_least(flag: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{flag} {value} is less than {least}; give {least} or more")
