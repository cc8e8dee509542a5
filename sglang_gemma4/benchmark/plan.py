"""What a run is to measure, what is finished according to its raw lines, and what is left to do."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import vllm
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.workloads import ITL_LIMIT, TTFT_LIMIT, Workload

WARM_UP = -1  # the repetition number of an uncounted pass
ENGINE, SERVER = "engine", "server"  # the processes of an arm, in this order in each round
PASS, STEP, PROFILE, CURVE = "pass", "step", "profile", "curve"
Task = tuple[str, str | int, int]
"""A kind above or of :func:`adapters_kind`, a workload's name or a batch size, and a repetition (0 for a profile)."""

# Fields of a header that must not change when a run is resumed; --repetitions and --rounds may grow.
SAME = ("model", "dummy_weights", "dry_run", "arms", "workloads", "batches", "step_tokens", "dataset", "curve")


@dataclass(frozen=True)
class Plan:
    """One run: ``repetitions`` counted passes of each arm and workload (or batch), spread over ``rounds`` processes of each arm."""

    model: str  # what SGLang loads: a directory or a Hugging Face name
    label: str  # what the operator called it
    arms: Sequence[Arm]
    folder: Path
    workloads: Sequence[Workload] = ()
    batches: Sequence[int] = ()
    step_tokens: tuple[int, int] = (1000, 200)  # in and out of each request in the step times
    prefill_once: bool = False  # step times: counted passes find their prompts in the prefix cache
    curve: int = 0  # the largest batch of a curve of step times at every batch size; 0: no curve
    rounds: int = 2
    repetitions: int = 5
    arguments: Sequence[str] = ()  # server flags of every arm
    environment: dict[str, str] = field(default_factory=dict)  # of every arm
    profile: Sequence[int] = ()  # batches whose kernels are recorded
    roofline: bool = False
    together: int = 1  # arms whose servers (or engines) are up in parallel, with alternating passes
    share_weights: bool = False  # one copy of random weights for the arms that are up together
    card_lock: Path | None = None  # each pass holds this file's lock (flock)
    dataset: Path | None = None
    limits: tuple[float, float] = (TTFT_LIMIT, ITL_LIMIT)  # ms, limits of p99 TTFT and p99 ITL for goodput
    vllm_python: str = ""
    vllm_version: str = ""
    dummy_weights: bool = False
    cpu: bool = False
    dry_run: bool = False
    start_limit: float = 1200.0  # seconds
    pass_limit: float = 3600.0  # seconds

    @property
    def raw(self) -> Path:
        return self.folder / "raw.jsonl"

    @property
    def token_ids(self) -> bool:
        """Whether all workloads are sent to ``/v1/completions`` as token ids, the one way that SGLang and vLLM share."""
        return any(arm.vllm for arm in self.arms)

    @property
    def open_loop(self) -> bool:
        return any(workload.open_loop for workload in self.workloads)

    def numbers(self, round_: int) -> range:
        """The repetition numbers of a round; repetitions are spread evenly, and earlier rounds get the extra ones."""
        each, extra = divmod(self.repetitions, self.rounds)
        first = round_ * each + min(round_, extra)
        return range(first, first + each + (round_ < extra))

    def order(self, process: str, round_: int) -> list[Task]:
        """Every task of a process in this round, in the order in which arms take turns; each arm is profiled in the first round only."""
        numbers = [WARM_UP, *self.numbers(round_)]
        if process == SERVER:
            return [(PASS, workload.name, number) for workload in self.workloads for number in numbers]
        steps: list[Task] = [(STEP, batch, number) for batch in self.batches for number in numbers]
        steps += [(CURVE, self.curve, number) for number in numbers if self.curve]
        return steps + [(PROFILE, batch, 0) for batch in self.profile if not round_]

    def header(self) -> dict[str, Any]:
        """The plan's part of the ``header`` record, which a resumed run is compared with."""
        arms = [
            {
                "name": arm.name,
                "environment": {
                    name: "(a path)" if name == "PYTHONPATH" else value for name, value in {**self.environment, **arm.environment}.items()
                },
                # A model with random weights is in another folder in every invocation.
                "arguments": [part.replace(self.model, self.label) for part in self.flags(arm)],
                **({"only": list(arm.only)} if arm.only else {}),
                **({"engine": "vllm"} if arm.vllm else {}),
            }
            for arm in self.arms
        ]
        return {
            "model": self.label,
            **{name: getattr(self, name) for name in ("dummy_weights", "dry_run", "rounds", "repetitions", "together")},
            "arms": arms,
            "workloads": [workload.as_data() for workload in self.workloads],
            "batches": list(self.batches),
            "step_tokens": list(self.step_tokens),
            "dataset": self.dataset and f"{self.dataset.name} sha256:{hashlib.sha256(self.dataset.read_bytes()).hexdigest()[:16]}",
            **({"curve": self.curve} if self.curve else {}),
            **({"prefill_once": True} if self.prefill_once else {}),
            **({"share_weights": True} if self.share_weights else {}),
            **({"limits": dict(zip(("ttft_ms", "itl_ms"), self.limits, strict=True))} if self.open_loop else {}),
        }

    def flags(self, arm: Arm) -> list[str]:
        """The server flags of an arm, translated for vLLM."""
        return vllm.flags_of_arm(self.arguments, arm.arguments, self.environment) if arm.vllm else [*self.arguments, *arm.arguments]

    def log(self, arm: Arm, kind: str = "") -> Path:
        """The log file of an arm's processes; an arm whose name is not a valid file name is numbered."""
        name = arm.name if re.fullmatch(r"[\w.-]{1,60}", arm.name) else f"arm-{self.arms.index(arm)}"
        return self.folder / f"{name}{kind}.log"


class Done:
    """What has finished or crashed according to a run's raw lines."""

    def __init__(self, lines: Sequence[Record]) -> None:
        self.headers = [line for line in lines if line["kind"] == "header"]
        self._finished = {(line["arm"], task) for line in lines if (task := task_of(line)) and line.get("counted", True)}
        self._crashed = {(line["arm"], line["round"], line["during"]) for line in lines if line["kind"] == "crash"}

    def left(self, plan: Plan, arm: Arm, round_: int, process: str) -> list[Task]:
        """The tasks that this arm's engine or server still has in this round, in order.

        A task that crashed in this round is not tried again, and a process that failed to start is not started again.
        """
        if any((arm.name, earlier, start_name(process)) in self._crashed for earlier in range(round_ + 1)):
            return []
        tasks = [
            task
            for task in plan.order(process, round_)
            if (arm.name, task) not in self._finished and (arm.name, round_, during(task)) not in self._crashed
            if process == ENGINE or arm.takes(str(task[1]))
        ]
        worth_a_warm_up = {during(task) for task in tasks if task[2] != WARM_UP}
        return [task for task in tasks if during(task) in worth_a_warm_up]


def task_of(record: Record) -> Task | None:
    """The task that ends with this record, or None."""
    if record["kind"] == "repetition":
        return PASS, record["workload"], record["repetition"]
    if record["kind"] == "step":
        return adapters_kind(record.get("adapters")), record["batch"], record["repetition"]
    if record["kind"] == "curve":
        return CURVE, record["batch"], record["repetition"]
    if record["kind"] == "profile" and record["stage"] == "decode":  # the last stage of a profile
        return PROFILE, record["batch"], 0
    return None


def adapters_kind(count: int | None) -> str:
    """The kind of a step whose requests alternate between ``count`` LoRA adapters; None is an engine without LoRA."""
    return STEP if count is None else f"{STEP} with {count} adapters"


def start_name(process: str) -> str:
    """The name in a ``crash`` record of a process that did not start."""
    return f"start of the {process}"


def during(task: Task) -> str:
    """The name of a task in a ``crash`` record."""
    kind, place, _ = task
    return str(place) if kind == PASS else f"{kind} batch {place}"


def interleaved(plan: Plan) -> Iterator[tuple[int, Sequence[Arm]]]:
    """The order A B A B: every arm once per round, ``together`` of them at a time."""
    for round_ in range(plan.rounds):
        for first in range(0, len(plan.arms), plan.together):
            yield round_, plan.arms[first : first + plan.together]


def check_resumable(header: dict[str, Any], earlier: Sequence[Record], raw: Path) -> None:
    """Refuse to resume a folder that holds another run.

    Raises:
        ValueError: the model, an arm, a workload or the device differs.
    """

    def compared(one: Record) -> Record:
        card = one.get("device", {})
        return {name: one.get(name) for name in SAME} | {"device": f"{card.get('count')} x {card.get('name')}"}

    asked = compared(header)
    for record in earlier:
        for name, found in compared(record).items():
            if found != asked[name]:
                raise ValueError(
                    f"{raw} holds another run: its {name} is {found!r}, asked for is {asked[name]!r}; "
                    "use another --out, or ask for the same to resume"
                )
