"""Declare, check, apply and report changes to SGLang.

A change is a :class:`Part`: data in a module of ``patches/``. Applying one goes in two phases (:mod:`sglang_gemma4.patching.hooks`), so
that it is applied whole or not at all: first every hook's target must resolve and have the source it was written against, then all
hooks are installed and each is checked to be in place, also where the original was imported by name or kept in a registry.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sglang_gemma4.patching import hooks, switches
from sglang_gemma4.patching.hooks import Entry as Entry
from sglang_gemma4.patching.hooks import Kind as Kind
from sglang_gemma4.patching.hooks import PatchError as PatchError
from sglang_gemma4.patching.hooks import Prepared
from sglang_gemma4.patching.hooks import Seam as Seam
from sglang_gemma4.patching.hooks import resolution_step as resolution_step
from sglang_gemma4.patching.supported import reason_against_version
from sglang_gemma4.patching.this_server import Server, of_this_process
from sglang_gemma4.patching.uses import Need

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One change to SGLang: what, why, on whose evidence, behind which switch, and when it can be removed.

    ``name`` and ``does`` (what the operator gets, in one sentence) come from the module, its name and docstring
    (``patches.load``).
    ``uses`` are functions of :mod:`sglang_gemma4.patching.uses`: what a server must be for the patch to have any
    effect.
    ``declines`` is given the environment and returns the reason why this process should not have the patch, or None.
    ``at`` is the value of the switch that asks for the patch: False where 0 selects something (``Switch.zero`` says
    what).
    ``cpu_engine`` marks the parts of the reference engine: they follow ``SGLANG_GEMMA4_CPU``, not the master switch.
    """

    switch: str
    why: str
    evidence: str
    remove_when: str
    hooks: tuple[Seam | Entry, ...] = ()
    name: str = ""
    does: str = ""
    uses: tuple[Need, ...] = ()
    declines: Callable[[Mapping[str, str]], str | None] | None = None
    cpu_engine: bool = False
    at: bool = True


State = Literal["active", "idle", "declined", "off", "failed"]


@dataclass
class Outcome:
    """Result of applying a patch in this process.

    ``state`` is one of: "active", in place and used as far as is known; "idle", in place, but nothing of this
    server's model, GPU or flags uses it; "declined", left out or unused for a reason found at the start; "off", by
    its switch; "failed", it does not fit this SGLang. ``notes`` are the cases that an active patch leaves to SGLang,
    each once; ``facts`` are what it chose or cost here. ``served`` is None until :func:`takes` was asked, False while
    every call was left to SGLang, True from the first call that was not.
    """

    name: str
    switch: str
    does: str
    state: State
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    served: bool | None = None


_outcomes: dict[str, Outcome] = {}
_active: dict[str, Part] = {}


def apply(patches: Iterable[Part], environ: Mapping[str, str] | None = None) -> list[Outcome]:
    """Apply every patch that its switch asks for and that this process does not have yet; return their outcomes, in
    order.

    Hooks are installed at once, not with SGLang's later ``apply_hooks``, so that they can be checked here. SGLang
    therefore skips a plugin that is loaded later and hooks one of the same targets.

    Raises:
        PatchError: under ``SGLANG_GEMMA4_STRICT=1``, at the first patch that cannot be applied.
    """
    env = os.environ if environ is None else environ
    patches = [patch for patch in patches if _active.get(patch.name) is not patch]
    strict = switches.is_on(switches.STRICT, env)
    unsupported = reason_against_version()
    ready: list[tuple[Part, list[Prepared]]] = []
    placed = {id(hook) for patch in _active.values() for hook in patch.hooks}
    once: dict[int, Prepared] = {}  # what several parts share is prepared for the first
    for patch in patches:
        outcome = _outcomes[patch.name] = Outcome(patch.name, patch.switch, patch.does, "active")
        if off := why_off(patch, env):
            outcome.state, outcome.reason = "off", off
        elif unsupported is not None:
            if strict:
                raise PatchError(f"sglang-gemma4: {unsupported} ({switches.STRICT}=1)")
            outcome.state, outcome.reason = "declined", unsupported
        elif patch.declines is not None and (reason := patch.declines(env)):
            outcome.state, outcome.reason = "declined", reason
        else:
            try:
                new = [hook for hook in patch.hooks if id(hook) not in placed]
                once |= {id(hook): hooks.prepare(hook) for hook in new if id(hook) not in once}
                ready.append((patch, [once[id(hook)] for hook in new]))
            except PatchError as error:
                _fail(outcome, str(error), strict)
    if ready:
        failed = hooks.install([prepared for _, prepared in ready])
        for number, (patch, _) in enumerate(ready):
            if number in failed:
                _fail(_outcomes[patch.name], failed[number], strict)
            else:
                _active[patch.name] = patch
    return report()


def is_on(patch_name: str) -> bool:
    """Whether a patch is in place in this process."""
    return patch_name in _active


def wanted(patch: Part, env: Mapping[str, str] = os.environ) -> bool:
    """Whether the switches ask for this patch."""
    return why_off(patch, env) is None


def why_off(patch: Part, env: Mapping[str, str]) -> str | None:
    """What turns this patch off, such as "VARIABLE=VALUE" or "VARIABLE is not set", or None where the switches ask for it."""
    if not patch.cpu_engine and not switches.is_on(switches.MASTER, env):
        return f"{switches.MASTER}=0"
    if switches.is_on(patch.switch, env) is patch.at:
        return switches.left_out(patch.name, env)
    names = (patch.switch, switches.SWITCHES[patch.switch].other_name)
    said = next((name for name in names if env.get(name)), None)
    return f"{patch.switch} is not set" if said is None else f"{said}={int(not patch.at)}"


def report() -> list[Outcome]:
    """Outcomes of all patches in this process so far."""
    return list(_outcomes.values())


def note(patch_name: str, message: str) -> None:
    """Log once, with the patch's state, that a patch leaves a case to SGLang, and keep the message for ``doctor``."""
    outcome = _outcomes.get(patch_name)
    if outcome is None or message in outcome.notes:
        return
    outcome.notes.append(message)
    _find_idle_here(outcome)
    _say(outcome, message)


def takes(patch_name: str, problem: str | None, instead: str = "") -> bool:
    """Record and return whether a patch serves a call. A patch that has served none and left some to SGLang is shown
    as declined.

    Args:
        problem: why the call is left to SGLang; None where the patch serves it.
        instead: what happens then, before the problem in its note.
    """
    outcome = _outcomes.get(patch_name)
    if problem is None:
        if outcome is not None:
            outcome.served = True
        return True
    if outcome is not None:
        outcome.served = outcome.served or False
    note(patch_name, f"{instead}: {problem}" if instead else problem)
    return False


def decline(patch_name: str, reason: str) -> None:
    """Log once that a patch leaves all calls to SGLang in this process, and keep it for ``doctor``: its state is
    "declined".

    If nothing of this server would have used it, its state is "idle", as ``doctor`` and the banner show it.
    """
    outcome = _outcomes.get(patch_name)
    if outcome is None or outcome.state != "active":
        return
    outcome.state, outcome.reason = "declined", reason
    _find_idle_here(outcome)
    _say(outcome, reason)


def _say(outcome: Outcome, message: str) -> None:
    """Write one log line, with the state that ``doctor`` shows."""
    if outcome.state == "idle":
        logger.info("sglang-gemma4: %s idle: %s", outcome.name, message)
    elif outcome.state == "active" and outcome.served is not False:
        logger.warning("sglang-gemma4: %s active, but: %s", outcome.name, message)
    else:
        logger.warning("sglang-gemma4: %s declined: %s", outcome.name, message)


def _find_idle_here(outcome: Outcome) -> None:
    """Give "idle" to one patch, if the server of this process is known and does not use the patch."""
    patch = _active.get(outcome.name)
    try:
        server = of_this_process() if patch is not None and patch.uses else None
    except Exception as error:  # a line in the log must not end a server
        logger.debug("sglang-gemma4: whether %s is idle is not known: %s: %s", outcome.name, type(error).__name__, error)
        return
    if patch is not None and server is not None:
        _leave_idle(patch, outcome, server)


def idle(patch_name: str, reason: str) -> None:
    """Record for ``doctor`` that nothing uses a patch here, where only a choice made at the start tells."""
    outcome = _outcomes.get(patch_name)
    if outcome is not None and outcome.state == "active":
        outcome.state, outcome.reason = "idle", reason


def find_idle(server: Server) -> None:
    """Give "idle" to each patch that is in place and that nothing of ``server`` uses, with the first reason."""
    for patch in _active.values():
        _leave_idle(patch, _outcomes[patch.name], server)


def _leave_idle(patch: Part, outcome: Outcome, server: Server) -> None:
    reason = next((reason for need in patch.uses if (reason := need(server))), None)
    if reason is not None and outcome.state in ("active", "declined"):
        outcome.state, outcome.reason = "idle", reason


def tell(patch_name: str, message: str) -> None:
    """Log what a patch chose or cost in this process, and keep it for ``doctor``."""
    logger.info("sglang-gemma4: %s", message)
    outcome = _outcomes.get(patch_name)
    if outcome is not None:
        outcome.facts.append(message)


def _fail(outcome: Outcome, reason: str, strict: bool) -> None:
    outcome.state, outcome.reason = "failed", reason
    message = f"sglang-gemma4: patch {outcome.name} cannot be applied: {reason}"
    if strict:
        raise PatchError(message + f" ({switches.STRICT}=1)")
    logger.error(message)
