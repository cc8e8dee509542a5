"""Turns the command line of ``sglang-gemma4 bench`` into a plan, and refuses known mistakes before any process is started."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from sglang_gemma4.benchmark import arms, frontier, step_curve, vllm, workloads
from sglang_gemma4.benchmark.plan import Plan
from sglang_gemma4.benchmark.workloads import Workload
from sglang_gemma4.diagnostics import variables
from sglang_gemma4.patching import switches

ACCEPT_LENGTH = 2.8  # simulated under MTP on random weights; what the released assistant is reported to reach on this engine
DRY_MODEL = "tiny-26b-a4b"
DRY_CURVE = 4
_TINY_OF = {"e2b": "tiny-e2b", "e4b": "tiny-e2b", "12b": "tiny-12b", "26b": "tiny-26b-a4b", "31b": "tiny-31b"}
_AS_ASKED = ("repetitions", "roofline", "share_weights", "prefill_once", "card_lock", "dataset", "dry_run", "profile", "batches", "curve")


def plan_of(arguments: argparse.Namespace, scratch: Path) -> Plan:
    """The checked plan; ``scratch`` is the folder for the config of a model with random weights.

    Raises:
        ValueError: an option is wrong, or two options do not fit together; the message says what to change.
    """
    from sglang_gemma4.cpu.environment import has_accelerator

    if problems := variables.problems():
        raise ValueError("; ".join(problems))
    dry = arguments.dry_run
    name = _tiny(arguments.model or "") if dry else arguments.model
    if not name:
        raise ValueError("no model was given; name a checkpoint, a tiny model or a real size (sglang-gemma4 bench --help)")
    model, assistant, dummy = _model(name, arguments.assistant, arguments.quantization, scratch)
    specs = arguments.arm or [arms.STOCK, arms.PACKAGE]
    if arguments.frontier:
        if arguments.switch:
            raise ValueError("--frontier and --switch each choose the arms; leave one of them out")
        specs = [*frontier.arms(mtp=assistant is not None, vllm=not dry), *arguments.arm]
    if switch := arguments.switch:
        switches.check_name(switch, "1")  # SwitchError, a ValueError
        specs = [f"off:{switch}=0", f"on:{switch}=1", *arguments.arm]
    parsed = [arms.parse(spec, assistant=assistant, dummy_weights=dummy, rates=arguments.rates) for spec in specs]
    arms.check(parsed)
    asked_for = arguments.workload or ("mix" if arguments.frontier else "")
    chosen = workloads.named(filter(None, asked_for.split(",")), arguments.rates, arguments.load_seconds, arguments.think)
    asked = {option: getattr(arguments, option) for option in _AS_ASKED}
    if not (chosen or asked["batches"] or asked["profile"] or asked["curve"]):
        if not dry:
            raise ValueError("nothing to measure; give --workload, --batches, --curve or --profile (sglang-gemma4 bench --help)")
        chosen, asked["batches"], asked["profile"] = workloads.named(["chat"]), [1, 2], [2]
    if dry:
        asked["curve"] = min(asked["curve"], DRY_CURVE)
    together, python = min(arguments.together, len(parsed)), vllm.python(arguments.vllm_python)
    plan = Plan(
        model,
        label=f"{name}, {arguments.quantization}" if arguments.quantization else name,
        arms=parsed,
        folder=arguments.out or Path("runs") / f"{date.today()}-{'dry-run' if dry else Path(name).name}",
        workloads=[workloads.miniature(workload) for workload in chosen] if dry else chosen,
        step_tokens=(16, 12) if dry else tuple(arguments.step_tokens),
        rounds=arguments.rounds or (2 if together == 1 else 1),
        arguments=[*(["--load-format=dummy"] if dummy or arguments.share_weights else []), *arguments.server_flags],
        environment=_simulation(parsed, arguments.accept_length, dummy),
        together=together,
        limits=(arguments.ttft_limit, arguments.itl_limit),
        vllm_python=python,
        vllm_version=", ".join(dict.fromkeys(vllm.version(arm, python) for arm in parsed if arm.vllm)),
        dummy_weights=dummy,
        cpu=not has_accelerator(),
        **asked,
    )
    _check_options(plan, arguments)
    _check_model(plan)
    if plan.cpu and dummy:
        raise ValueError(
            f"{name} with random weights is as large as the real one, and there is no GPU here; give --dry-run or a tiny model"
        )
    return plan


def _tiny(name: str) -> str:
    """The model that a dry run serves instead of ``name``: a tiny model itself, otherwise the tiny one of its family."""
    found = next((tiny for size, tiny in _TINY_OF.items() if size in name.lower()), DRY_MODEL)
    return name if name.startswith("tiny-") else found


def _model(name: str, assistant: str | None, quantised: str | None, scratch: Path) -> tuple[str, str | None, bool]:
    """(path of the model, path of its assistant, whether its weights are random).

    Raises:
        ValueError: ``quantised`` is not a format, or not one for this model.
    """
    from sglang_gemma4.serving.launch import resolve
    from sglang_gemma4.tiny import checkpoints

    random = name in checkpoints.RANDOM_NAMES
    if (random or (quantised and name in checkpoints.NAMES)) and not Path(name).exists():
        target, draft = checkpoints.write(name, str(scratch / name), random=random, quantised=quantised)
        return target, assistant or draft, random
    if quantised:
        raise ValueError(
            f"--quantization {quantised} is made of {', '.join((*checkpoints.NAMES, *checkpoints.RANDOM_NAMES))}, not of {name}"
        )
    model = resolve(name)
    if assistant:
        return model, resolve(assistant), False
    beside = f"{model.rstrip('/')}-assistant"
    return model, beside if Path(beside).is_dir() or not Path(model).is_dir() else None, False


def _simulation(parsed: Sequence[arms.Arm], asked: float | None, dummy: bool) -> dict[str, str]:
    """SGLang's environment for simulating an accept length; with random weights almost no draft would be accepted."""
    length = asked if asked is not None else ACCEPT_LENGTH if dummy and any(arm.uses_mtp for arm in parsed) else None
    if length is None:
        return {}
    if not 1 <= length <= 4:
        raise ValueError(f"--accept-length {length} is not between 1 and 4, the tokens that 3 draft steps can give; choose one between")
    return {"SGLANG_SIMULATE_ACC_LEN": str(length), "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}


def _check_options(plan: Plan, arguments: argparse.Namespace) -> None:
    """Check that the options fit together."""
    names = {workload.name for workload in plan.workloads}
    strange = [(arm.name, ", ".join(left)) for arm in plan.arms if (left := [name for name in arm.only if name not in names])]
    lengths = [workload.name for workload in plan.workloads if workload.lengths]
    peers = [arm for arm in plan.arms if arm.vllm]
    peer = f"arm {', '.join(arm.name for arm in peers)}"
    images = [workload.name for workload in plan.workloads if workload.images and any(arm.takes(workload.name) for arm in peers)]
    refused = {
        f"--rates belongs to loads; add --workload with {', '.join(workloads.LOADS)}": (
            arguments.rates and not any(workloads.load_name(workload.name) and not workload.sessions for workload in plan.workloads)
        ),
        **{
            f"arm {arm!r} is kept to {left}, not in --workload {arguments.workload or '(none)'}; add it there": True
            for arm, left in strange
        },
        f"--share-weights is for --together and random weights; here are {plan.together} arms at a time of {plan.label}: leave it out": (
            plan.share_weights and (plan.together == 1 or not (plan.dummy_weights or plan.dry_run))
        ),
        "--prefill-once belongs to step times; add --batches, for example --batches 16": plan.prefill_once and not plan.batches,
        "--roofline belongs to profiled kernels; add --profile with batch sizes, for example --profile 1,32": (
            plan.roofline and not plan.profile
        ),
        f"--dataset {plan.dataset} is not a JSON list of conversations with two turns or more (ShareGPT's format); give one": (
            plan.dataset and not _holds_conversations(plan.dataset)
        ),
        f"--dataset holds prompts for workloads of one length; {', '.join(lengths)} draws its own, leave one out": plan.dataset and lengths,
        f"--batches, --curve and --profile time SGLang's offline engine, which {peer} has not; compare it with --workload NxIN/OUT": (
            peers and (plan.batches or plan.curve or plan.profile)
        ),
        f"{peer} takes text only, and {', '.join(images)} has images; keep the arm to other workloads with only=": images,
        f"--dataset is not for {peer} of vLLM; leave one of them out": peers and plan.dataset,
    }
    for message, wrong in refused.items():
        if wrong:
            raise ValueError(message)


def _holds_conversations(path: Path) -> bool:
    try:
        return any(len(entry.get("conversations", entry.get("conversation", []))) >= 2 for entry in json.loads(path.read_text()))
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _check_model(plan: Plan) -> None:
    """Run the preflight checks of every arm, whatever its switches are, and check that the workloads fit the context."""
    from sglang_gemma4.diagnostics import preflight
    from sglang_gemma4.models import config_files
    from sglang_gemma4.serving.launch import fields_of

    config = config_files.read_config(plan.model, "model") or {}
    text = config.get("text_config", config)
    steps = [Workload("step times", *plan.step_tokens, requests=1)] if plan.batches or plan.profile else []
    if plan.curve:  # its last request has waited for all others to end
        most = step_curve.most_tokens(plan.curve, plan.step_tokens[1])
        steps.append(Workload("curve of step times", plan.step_tokens[0], most, requests=1))
    for arm in plan.arms:
        fields = fields_of(["--model-path", plan.model, *plan.arguments, *(() if arm.vllm else arm.arguments)])
        if arm.vllm:
            plan.flags(arm)  # refuses flags that vLLM does not have
        else:
            preflight.check(fields)
        context = int(fields.get("context_length") or text.get("max_position_embeddings") or sys.maxsize)
        for workload in (*plan.workloads, *steps):
            remedy = "choose a shorter workload (of step times: --step-tokens) or a longer --context-length"
            workloads.check_fits(workload, "the context is", context, remedy)
