"""What a run is asked to do, what of it is done, and what is left: the part of the runner that can be thought through without a server."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.workloads import Workload

WARM_UP = -1  # the repetition number of an uncounted pass

# Of a header, what must not change when a run is resumed; --repetitions and --rounds may grow.
SAME = ("model", "dummy_weights", "dry_run", "arms", "workloads", "batches", "step_tokens", "dataset")


@dataclass(frozen=True)
class Plan:
    """One run. ``repetitions`` counted passes of each arm and workload (or batch), spread over ``rounds`` processes of each arm."""

    model: str  # what SGLang loads: a directory or a Hugging Face name
    label: str  # what the operator called it
    arms: Sequence[Arm]
    folder: Path
    workloads: Sequence[Workload] = ()
    batches: Sequence[int] = ()
    step_tokens: tuple[int, int] = (1000, 200)  # in and out of each request in the step times
    rounds: int = 2
    repetitions: int = 5
    arguments: Sequence[str] = ()  # server flags of every arm
    environment: dict[str, str] = field(default_factory=dict)  # of every arm
    profile: Sequence[int] = ()  # batches whose kernels are recorded
    roofline: bool = False
    together: int = 1  # arms whose servers (or engines) are up side by side, their passes in turn
    share_weights: bool = False  # random ones: a single copy of them for those
    card_lock: Path | None = None  # held (flock) by whatever uses the card, so by each pass
    dataset: Path | None = None
    dummy_weights: bool = False
    cpu: bool = False
    dry_run: bool = False
    start_limit: float = 1200.0  # seconds
    pass_limit: float = 3600.0  # seconds

    @property
    def raw(self) -> Path:
        return self.folder / "raw.jsonl"

    def numbers(self, round_: int) -> range:
        """The repetition numbers that belong to a round: as even as can be, earlier rounds first."""
        each, extra = divmod(self.repetitions, self.rounds)
        first = round_ * each + min(round_, extra)
        return range(first, first + each + (round_ < extra))

    def header(self) -> dict[str, Any]:
        """What the ``header`` record and a resumed run's comparison hold."""
        arms = [
            {
                "name": arm.name,
                "environment": {**self.environment, **arm.environment},
                # The folder of a model with random weights is another in every invocation.
                "arguments": [part.replace(self.model, self.label) for part in (*self.arguments, *arm.arguments)],
                **({"only": list(arm.only)} if arm.only else {}),
            }
            for arm in self.arms
        ]
        return {
            "model": self.label,
            "dummy_weights": self.dummy_weights,
            "dry_run": self.dry_run,
            "rounds": self.rounds,
            "repetitions": self.repetitions,
            "arms": arms,
            "workloads": [workload.as_data() for workload in self.workloads],
            "batches": list(self.batches),
            "step_tokens": list(self.step_tokens),
            "dataset": _identity(self.dataset) if self.dataset else None,
            "together": self.together,
            **({"share_weights": True} if self.share_weights else {}),
        }

    def log(self, arm: Arm, kind: str = "") -> Path:
        """Where the output of an arm's processes goes; an arm's name may be a whole command line."""
        name = arm.name if re.fullmatch(r"[\w.-]{1,60}", arm.name) else f"arm-{self.arms.index(arm)}"
        return self.folder / f"{name}{kind}.log"


def _identity(dataset: Path) -> str:
    return f"{dataset.name} sha256:{hashlib.sha256(dataset.read_bytes()).hexdigest()[:16]}"


class Done:
    """What the lines of a raw file say is finished or has crashed."""

    def __init__(self, lines: Sequence[Record]) -> None:
        self.headers = [line for line in lines if line["kind"] == "header"]
        self._finished = {self._key(line) for line in lines if line["kind"] in ("repetition", "step") and line["counted"]}
        self._profiled = {(line["arm"], line["batch"]) for line in lines if line["kind"] == "profile" and line["stage"] == "decode"}
        self._crashed = {(line["arm"], line["round"], line["during"]) for line in lines if line["kind"] == "crash"}

    @staticmethod
    def _key(line: Record) -> tuple[str, Any, int]:
        return line["arm"], line["workload"] if line["kind"] == "repetition" else line["batch"], line["repetition"]

    def workloads(self, plan: Plan, arm: Arm, round_: int) -> list[tuple[Workload, list[int]]]:
        """Workloads with the repetition numbers still to run in this round; what crashed in it is not tried again."""
        if self._never_up(arm, round_, START_SERVER):
            return []
        left = [
            (workload, [number for number in plan.numbers(round_) if (arm.name, workload.name, number) not in self._finished])
            for workload in plan.workloads
            if arm.takes(workload.name) and (arm.name, round_, workload.name) not in self._crashed
        ]
        return [(workload, numbers) for workload, numbers in left if numbers]

    def steps(self, plan: Plan, arm: Arm, round_: int) -> list[tuple[int, list[int]]]:
        """Batches with the repetition numbers still to run in this round."""
        if self._never_up(arm, round_, START_ENGINE):
            return []
        left = [
            (batch, [number for number in plan.numbers(round_) if (arm.name, batch, number) not in self._finished])
            for batch in plan.batches
            if (arm.name, round_, step_name(batch)) not in self._crashed
        ]
        return [(batch, numbers) for batch, numbers in left if numbers]

    def profiles(self, plan: Plan, arm: Arm, round_: int) -> list[int]:
        """Batches still to profile; one profile of each arm is enough, the first round makes it."""
        if round_ or self._never_up(arm, round_, START_ENGINE):
            return []
        return [
            batch
            for batch in plan.profile
            if (arm.name, batch) not in self._profiled and (arm.name, round_, profile_name(batch)) not in self._crashed
        ]

    def _never_up(self, arm: Arm, round_: int, start: str) -> bool:
        """A process of an arm that did not start in this round or an earlier one is not started again."""
        return any((arm.name, earlier, start) in self._crashed for earlier in range(round_ + 1))


START_ENGINE = "start of the engine"
START_SERVER = "start of the server"


def step_name(batch: int) -> str:
    """How a ``crash`` record names the step times of a batch."""
    return f"step batch {batch}"


def profile_name(batch: int) -> str:
    """How a ``crash`` record names the profile of a batch."""
    return f"profile batch {batch}"


def interleaved(plan: Plan) -> Iterator[tuple[int, Sequence[Arm]]]:
    """A B A B: every arm once in each round, ``together`` of them at once."""
    for round_ in range(plan.rounds):
        for first in range(0, len(plan.arms), plan.together):
            yield round_, plan.arms[first : first + plan.together]


def check_resumable(header: dict[str, Any], earlier: Sequence[Record], raw: Path) -> None:
    """Refuse to add to another run's lines.

    Raises:
        ValueError: the model, an arm, a workload or the device is another one.
    """
    for record in earlier:
        for name in SAME:
            if record.get(name) != header.get(name):
                raise ValueError(
                    f"{raw} holds another run: its {name} is {record.get(name)!r}, asked for is {header.get(name)!r}; "
                    "use another --out, or ask for the same to resume"
                )
        cards = [(one.get("device", {}).get("name"), one.get("device", {}).get("count")) for one in (record, header)]
        if cards[0] != cards[1]:
            raise ValueError(
                f"{raw} was measured on {cards[0][1]} x {cards[0][0]}, this is {cards[1][1]} x {cards[1][0]}; use another --out"
            )
