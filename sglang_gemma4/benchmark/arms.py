"""Arms (variants) of a comparison: a named environment with server flags, read from the command line and checked against each other."""

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sglang_gemma4.benchmark import workloads
from sglang_gemma4.patching import switches

STOCK, PACKAGE, MTP, VLLM = "stock", "package", "mtp", "vllm"

MTP_FLAGS = ("--speculative-algorithm=NEXTN", "--speculative-num-steps=3", "--speculative-eagle-topk=1", "--speculative-num-draft-tokens=4")
DRAFT_FLAG = "--speculative-draft-model-path"

# With random weights the stock arm keeps the switch that fills them: SGLang's own filling makes every answer one
# repeated token.
KEPT_IN_DUMMY_STOCK = (switches.MASTER, switches.STRICT, switches.CPU_ENGINE, "SGLANG_GEMMA4_DUMMY_WEIGHTS")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: variables for its processes, flags for its server, and the workloads to which it is limited."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # names of workloads; empty: all
    vllm: bool = False  # vLLM's server, with vLLM's flags; otherwise SGLang's

    @property
    def uses_mtp(self) -> bool:
        flag = "--speculative-config" if self.vllm else "--speculative-algorithm"
        return any(argument.startswith(flag) for argument in self.arguments)

    def takes(self, workload: str) -> bool:
        """Whether the arm is measured on the workload of that name."""
        return not self.only or workload in self.only

    def effective_environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment of this arm's processes, with each switch resolved to "1" or "0" and without those that the master turns off."""
        merged = {**environ, **self.environment}
        resolved = {name: value for name, value in merged.items() if name not in switches.SWITCHES}
        master = switches.is_on(switches.MASTER, merged)
        alive = switches.SWITCHES if master else (switches.MASTER, switches.STRICT, switches.CPU_ENGINE)
        found = resolved | {name: str(int(switches.is_on(name, merged))) for name in alive}
        if found.get(switches.BESIDE) == "1" and merged.get(switches.BESIDE, "").strip():
            found[switches.BESIDE] = "1, on every model"  # if unset, on where that was measured (uses.asks_beside)
        if found.get(switches.GRAPH_SIZES) == "1" and merged.get(switches.GRAPH_SIZES, "").strip():
            found[switches.GRAPH_SIZES] = "1, with speculation too"  # if unset, on without speculation (uses.asks_graph_sizes)
        return found


def parse(text: str, *, assistant: str | None, dummy_weights: bool, rates: Sequence[float] = ()) -> Arm:
    """An arm from ``[NAME:]PART[,PART...]``.

    A part is ``stock``, ``package``, ``vllm``, ``mtp``, ``VARIABLE=VALUE``, ``--flag[=value]`` or
    ``only=WORKLOAD+WORKLOAD``. ``SGLANG_GEMMA4_WITHOUT`` may be given more than once, for several patches.
    ``assistant`` is what ``mtp`` drafts with. With ``dummy_weights``, ``stock`` keeps the switch that fills them.
    ``rates`` are those of loads.

    Raises:
        ValueError: a part is none of these, a switch does not exist, ``mtp`` is asked for without an assistant, or
            ``vllm`` together with ``stock`` or ``package``.
    """
    head, colon, rest = text.partition(":")
    named = colon and not head.startswith("--") and "=" not in head and "," not in head
    name, body = (head, rest) if named else (text, text)
    if not name.strip() or not body.strip():
        raise ValueError(f"arm {text!r} is empty; write for example stock, package, or NAME:stock,--flag=value")
    environment: dict[str, str] = {}
    arguments: list[str] = []
    only: tuple[str, ...] = ()
    parts = [part for part in (part.strip() for part in body.split(",")) if part]
    vllm = VLLM in parts
    if vllm and (other := {STOCK, PACKAGE} & {*parts}):
        raise ValueError(f"arm {name!r} is vLLM and {', '.join(sorted(other))} at once; make two arms of it")
    for part in parts:
        variable, equals, value = part.partition("=")
        if part == STOCK:
            environment |= stock_environment(dummy_weights)
        elif part == MTP:
            if not assistant:
                raise ValueError(f"arm {name!r} asks for mtp, but no assistant is known for this model; name it with --assistant")
            drafts = {"model": assistant, "num_speculative_tokens": 3}
            own = [f"--speculative-config={json.dumps(drafts)}"] if vllm else [*MTP_FLAGS, f"{DRAFT_FLAG}={assistant}"]
            arguments += own
        elif part.startswith("--"):
            arguments.append(part)
        elif variable == "only":
            only = tuple(workload.name for workload in workloads.named(value.split("+"), rates))
        elif equals:
            if variable.startswith(switches.MASTER):
                switches.check_name(variable, value)  # SwitchError, a ValueError
            listed = variable == switches.WITHOUT and variable in environment  # its own commas would split the arm
            environment[variable] = f"{environment[variable]},{value}" if listed else value
        elif part not in (PACKAGE, VLLM):
            raise ValueError(
                f"arm {name!r}: {part!r} is not an arm; use stock, package, vllm, mtp, VARIABLE=VALUE, --flag=value or "
                "only=WORKLOAD+WORKLOAD, joined by commas"
            )
    return Arm(name, environment, tuple(arguments), only, vllm)


def stock_environment(dummy_weights: bool) -> dict[str, str]:
    """The environment of unpatched SGLang; with random weights, every patch off but the one that fills them."""
    if not dummy_weights:
        return {switches.MASTER: "0"}
    return {switch.name: str(int(bool(switch.zero))) for switch in switches.SWITCHES.values() if switch.name not in KEPT_IN_DUMMY_STOCK}


def check(arms: Sequence[Arm], environ: Mapping[str, str] = os.environ) -> None:
    """Refuse arms that share a name or do the same.

    Raises:
        ValueError: a name is used twice, or an arm does not differ from another.
    """
    does = [(arm.vllm, arm.effective_environment(environ), sorted(arm.arguments)) for arm in arms]
    for (i, earlier), (j, arm) in itertools.combinations(enumerate(arms), 2):
        if arm.name == earlier.name:
            raise ValueError(f"two arms are named {arm.name!r}; give one another name with NAME:{arm.name}")
        if does[i] == does[j]:
            raise ValueError(
                f"arm {arm.name!r} changes nothing against {earlier.name!r}: same switches, same environment, same flags; "
                "drop one, or set what should differ (a switch at its default value changes nothing)"
            )
