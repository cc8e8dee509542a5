"""The command line of ``sglang-gemma4 bench`` as a checked plan: what can be known to be wrong is refused before a process is started."""

import argparse
import itertools
import json
import math
import sys
from datetime import date
from pathlib import Path

from sglang_gemma4 import switches
from sglang_gemma4.benchmark import arms, vllm_server, workloads
from sglang_gemma4.benchmark.plan import Plan

ACCEPT_LENGTH = 2.8  # simulated under MTP on random weights; what the released assistant is reported to reach on this engine
DRY_MODEL = "tiny-26b-a4b"
_TINY_OF = {"e2b": "tiny-e2b", "e4b": "tiny-e2b", "26b": "tiny-26b-a4b", "31b": "tiny-31b"}


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
    rates = _rates(arguments.rates)
    parsed = [arms.parse(spec, assistant=assistant, dummy_weights=dummy, rates=rates) for spec in specs]
    arms.check(parsed)
    _positive("--load-seconds", arguments.load_seconds)
    chosen = workloads.named(filter(None, arguments.workload.split(",")), rates, arguments.load_seconds)
    if rates and not any(workload.open_loop for workload in chosen):
        raise ValueError(f"--rates {arguments.rates} belongs to loads; add --workload with {', '.join(workloads.LOADS)}")
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
        if streamed := [workload.name for workload in chosen if workload.lengths]:
            raise ValueError(f"--dataset holds prompts for workloads of one length; {', '.join(streamed)} draws its own, leave one out")
    limits = (arguments.ttft_limit, arguments.itl_limit)
    for flag, limit in zip(("--ttft-limit", "--itl-limit"), limits, strict=True):
        _positive(flag, limit)
    vllm_python, vllm_version = _vllm(parsed, arguments, bool(batches or profile), chosen)
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
        limits=limits,
        vllm_python=vllm_python,
        vllm_version=vllm_version,
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
        fields = fields_of(["--model-path", plan.model, *plan.arguments, *(() if arm.vllm else arm.arguments)])
        if arm.vllm:
            plan.flags(arm)  # refuses what vLLM has not
        else:
            preflight.check(fields)
        context = int(fields.get("context_length") or text.get("max_position_embeddings") or sys.maxsize)
        for workload in plan.workloads:
            workloads.check_context(workload, context, "choose a shorter workload or a longer --context-length")
        steps = workloads.Workload("step times", *plan.step_tokens, requests=1)
        if plan.batches or plan.profile:
            workloads.check_context(steps, context, "choose a smaller --step-tokens")


def _vllm(parsed: list[arms.Arm], arguments: argparse.Namespace, steps: bool, chosen: list[workloads.Workload]) -> tuple[str, str]:
    """The Python and the version of vLLM, empty without arms of it; refuses what such an arm cannot do."""
    names = [arm.name for arm in parsed if arm.vllm]
    if not names:
        return "", ""
    arm = ", ".join(names)
    if steps:
        raise ValueError(
            f"--batches and --profile time SGLang's offline engine, which arm {arm} has not; compare it with "
            "--workload NxIN/OUT (N requests at once)"
        )
    if images := [workload.name for workload in chosen if workload.images and any(own.takes(workload.name) for own in parsed if own.vllm)]:
        raise ValueError(f"arm {arm} takes text only, and {', '.join(images)} has images; keep the arm to other workloads with only=")
    if arguments.dataset or arguments.share_weights:
        flag = "--dataset" if arguments.dataset else "--share-weights"
        raise ValueError(f"{flag} is not for arm {arm} of vLLM; leave one of them out")
    interpreter = vllm_server.python(arguments.vllm_python)
    versions = [vllm_server.version(own, interpreter) for own in parsed if own.vllm]
    return interpreter, ", ".join(dict.fromkeys(versions))


def _rates(text: str) -> list[float]:
    """Requests/s, ascending.

    Raises:
        ValueError: one is not a positive number, or they do not rise.
    """
    try:
        found = [float(number) for number in filter(None, text.split(","))]
    except ValueError:
        raise ValueError(f"--rates {text!r} is not a list of numbers; write requests/s, for example 1,2,4") from None
    for rate in found:
        _positive("--rates", rate)
    if any(later <= earlier for earlier, later in itertools.pairwise(found)):
        raise ValueError(f"--rates {text} does not rise; write each rate once, the lowest first")
    return found


def _positive(flag: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{flag} {value:g} is not a number above 0; give one")


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
