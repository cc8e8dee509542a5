"""Declare, check, apply and report changes to SGLang.

A change is a :class:`Patch`: data in a module of ``patches/``. Applying one goes in two phases, so that it is
applied whole or not at all: first every hook's target must resolve and have the source it was written against,
then all hooks are installed through SGLang's own ``HookRegistry`` and each is checked to be in place, also
where the original was imported by name or kept in a registry.
"""

import logging
import os
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_gemma4 import switches
from sglang_gemma4.importers import indexed
from sglang_gemma4.placement import hook_is_in_chain, rebind_registries, stale_holders
from sglang_gemma4.supported import fingerprint, version_problem
from sglang_gemma4.uses import Need, Server

logger = logging.getLogger(__name__)

Kind = Literal["before", "after", "around", "replace"]


@dataclass(frozen=True)
class Hook:
    """One function, method or class of SGLang that a patch changes.

    ``target`` is its dotted path. ``kind`` follows SGLang's ``HookType``: before(*args) -> (args, kwargs) | None,
    after(result, *args) -> new result | None, around(original, *args) -> result, replace(*args) -> result or a class.
    ``function`` is the hook itself, or "package.module:name" where it needs torch or sglang to be imported.
    ``fingerprint`` is :func:`fingerprint` of the target's source; ``sglang-gemma4 patches --fingerprints`` prints them.
    """

    target: str
    kind: Kind
    function: Callable[..., Any] | str
    fingerprint: str


@dataclass(frozen=True)
class Entry:
    """One key of an SGLang registry (a dict) that a patch sets.

    ``value`` makes the new value when the patch is applied. ``fingerprint`` is that of the value found under the
    key, or "absent" where the key must be new.
    """

    target: str
    key: str
    value: Callable[[], Any]
    fingerprint: str


@dataclass(frozen=True)
class Patch:
    """One change to SGLang: what, why, on whose evidence, behind which switch, and when it can go.

    ``does`` is what the operator gets, in one sentence. ``uses`` are the words of :mod:`sglang_gemma4.uses` for what a server must be
    for the patch to do anything in it.
    ``declines`` is given the environment and returns the reason why this process should not have the patch, or None.
    ``at`` is the value of the switch that asks for the patch: False where 0 selects something (``Switch.zero`` says what).
    ``cpu_engine`` marks the parts of the reference engine: they follow ``SGLANG_GEMMA4_CPU``, not the master switch.
    """

    name: str
    switch: str
    why: str
    evidence: str
    remove_when: str
    hooks: tuple[Hook | Entry, ...]
    does: str = ""
    uses: tuple[Need, ...] = ()
    declines: Callable[[Mapping[str, str]], str | None] | None = None
    cpu_engine: bool = False
    at: bool = True


State = Literal["active", "idle", "declined", "off", "failed"]


@dataclass
class Outcome:
    """What became of a patch in this process.

    ``state``: "active", in place and used as far as is known; "idle", in place, but nothing of this server's model, card or
    flags uses it; "declined", left out, or out of use, for a reason found at the start; "off", by its switch; "failed", it does not
    fit this SGLang. ``notes`` are the cases that an active patch leaves to SGLang, each once; ``facts`` what it chose or cost here.
    """

    name: str
    switch: str
    does: str
    state: State
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


class PatchError(RuntimeError):
    """A patch cannot be applied; the message names it and says why."""


_outcomes: dict[str, Outcome] = {}
_active: dict[str, Patch] = {}


def apply(patches: Iterable[Patch], environ: Mapping[str, str] | None = None) -> list[Outcome]:
    """Apply every patch that its switch asks for and that this process does not have yet; return what became of each, in order.

    Hooks are installed at once, not with SGLang's later ``apply_hooks``, so that they can be checked here. A plugin
    loaded after this one that hooks one of the same targets is therefore skipped by SGLang.

    Raises:
        PatchError: under ``SGLANG_GEMMA4_STRICT=1``, at the first patch that cannot be applied.
    """
    env = os.environ if environ is None else environ
    patches = [patch for patch in patches if _active.get(patch.name) is not patch]
    strict = switches.is_on(switches.STRICT, env)
    unsupported = version_problem()
    ready: list[tuple[Patch, list[_Prepared]]] = []
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
                ready.append((patch, [_prepare(hook) for hook in patch.hooks]))
            except PatchError as error:
                _fail(outcome, str(error), strict)
    if ready:
        _install(ready, strict)
    return report()


def wanted(patch: Patch, env: Mapping[str, str] = os.environ) -> bool:
    """Whether the switches ask for this patch."""
    return why_off(patch, env) is None


def why_off(patch: Patch, env: Mapping[str, str]) -> str | None:
    """What turns this patch off, as "VARIABLE=VALUE" or "VARIABLE is not set", or None where the switches ask for it."""
    if not patch.cpu_engine and not switches.is_on(switches.MASTER, env):
        return f"{switches.MASTER}=0"
    if switches.is_on(patch.switch, env) is patch.at:
        return switches.left_out(patch.name, env)
    names = (patch.switch, switches.SWITCHES[patch.switch].other_name)
    said = next((name for name in names if env.get(name)), None)
    return f"{patch.switch} is not set" if said is None else f"{said}={int(not patch.at)}"


def report() -> list[Outcome]:
    """What became of each patch in this process so far."""
    return list(_outcomes.values())


def note(patch_name: str, message: str) -> None:
    """Say once in the log, and keep for ``doctor``, that a patch leaves a case to SGLang; it stays active for others."""
    outcome = _outcomes.get(patch_name)
    if outcome is None or message in outcome.notes:
        return
    outcome.notes.append(message)
    logger.warning("sglang-gemma4: %s declined: %s", patch_name, message)


def decline(patch_name: str, reason: str) -> None:
    """Say once in the log, and keep for ``doctor``, that a patch leaves all to SGLang in this process: its state is "declined"."""
    outcome = _outcomes.get(patch_name)
    if outcome is None or outcome.state != "active":
        return
    outcome.state, outcome.reason = "declined", reason
    logger.warning("sglang-gemma4: %s declined: %s", patch_name, reason)


def find_idle(server: Server) -> None:
    """Give "idle" to each patch that is in place and that nothing of ``server`` uses, with the first reason."""
    for patch in _active.values():
        outcome = _outcomes[patch.name]
        reason = next((reason for need in patch.uses if (reason := need(server))), None)
        if reason is not None and outcome.state in ("active", "declined"):
            outcome.state, outcome.reason = "idle", reason


def tell(patch_name: str, message: str) -> None:
    """Say in the log, and keep for ``doctor``, what a patch chose or cost in this process."""
    logger.info("sglang-gemma4: %s", message)
    outcome = _outcomes.get(patch_name)
    if outcome is not None:
        outcome.facts.append(message)


@dataclass
class _Prepared:
    """A checked hook: where it goes, the original, what goes there, and what the parent held to put back on failure."""

    hook: Hook | Entry
    original: Any
    value: Any
    held: Any = None


def _prepare(hook: Hook | Entry) -> _Prepared:
    actual = current_fingerprint(hook)
    if actual != hook.fingerprint:
        raise PatchError(f"{place(hook)} has source {actual}, the patch was written for {hook.fingerprint}; not applied")
    if isinstance(hook, Entry):
        try:
            return _Prepared(hook, _resolve(hook.target).get(hook.key), hook.value())
        except Exception as error:
            raise PatchError(f"the value for {place(hook)} cannot be made: {type(error).__name__}: {error}") from error
    original = _resolve(hook.target)
    from sglang.srt.plugins.hook_registry import HookRegistry

    if hook.target in HookRegistry._patched:
        raise PatchError(f"{hook.target} was already patched by another plugin; SGLang skips a second hook")
    try:
        value = pkgutil.resolve_name(hook.function) if isinstance(hook.function, str) else hook.function
    except Exception as error:
        raise PatchError(f"the hook {hook.function} does not import: {type(error).__name__}: {error}") from error
    parent, name = _parent(hook.target)
    return _Prepared(hook, original, value, held=vars(parent).get(name, original))


def _parent(target: str) -> tuple[Any, str]:
    parent, _, name = target.rpartition(".")
    return _resolve(parent), name


def _resolve(target: str) -> Any:
    try:
        return pkgutil.resolve_name(target)
    except Exception as error:  # importing a module of SGLang can end in anything
        raise PatchError(f"{target} does not exist in this SGLang: {type(error).__name__}: {error}") from error


def place(hook: Hook | Entry) -> str:
    """Where a hook goes, as a reader would write it."""
    return f"{hook.target}[{hook.key!r}]" if isinstance(hook, Entry) else hook.target


def current_fingerprint(hook: Hook | Entry) -> str:
    """Fingerprint of what the installed SGLang has where the hook goes; "absent" for a free registry key.

    Raises:
        PatchError: the target does not resolve, or has no source (another plugin may have put something there).
    """
    target = _resolve(hook.target)
    if isinstance(hook, Entry):
        target = target.get(hook.key)
    try:
        return "absent" if target is None else fingerprint(target)
    except (TypeError, OSError) as error:
        raise PatchError(f"{place(hook)} has no source to compare: {error}") from error


def _install(ready: list[tuple[Patch, list[_Prepared]]], strict: bool) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for _, prepared in ready:
        for item in prepared:
            if isinstance(item.hook, Hook):
                HookRegistry.register(item.hook.target, item.value, HookType(item.hook.kind))
            else:
                _resolve(item.hook.target)[item.hook.key] = item.value
    standing = dict(enumerate(ready))
    while failure := _place(standing):
        number, problem = failure
        patch, prepared = standing.pop(number)
        for item in prepared:
            _take_out(item)
        _fail(_outcomes[patch.name], problem, strict)
    _active.update({patch.name: patch for patch, _ in standing.values()})


def _place(patches: dict[int, tuple[Patch, list[_Prepared]]]) -> tuple[int, str] | None:
    """Have SGLang place every hook that is registered and not in place; the first of the patches that is not whole then, and why."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    with indexed():
        HookRegistry.apply_hooks()
    hooked = [item for _, prepared in patches.values() for item in prepared if isinstance(item.hook, Hook)]
    rebind_registries([(item.original, _current(item)) for item in hooked])
    stale = stale_holders([item.original for item in hooked])
    for number, (_, prepared) in patches.items():
        for item in prepared:
            if problem := _not_in_place(item) or stale.get(id(item.original)):
                return number, problem
    return None


def _take_out(item: _Prepared) -> None:
    """Put back what was there before, so that a patch that is not whole does nothing; other hooks of the target are placed anew then."""
    if isinstance(item.hook, Entry):
        registry = _resolve(item.hook.target)
        if item.original is None:
            registry.pop(item.hook.key, None)
        else:
            registry[item.hook.key] = item.original
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, _propagate_patch

    target = item.hook.target
    others = [each for each in HookRegistry._hooks.pop(target, []) if each[1] is not item.value]
    if others:
        HookRegistry._hooks[target] = others
    HookRegistry._patched.discard(target)
    patched = _current(item)
    parent, name = _parent(target)
    setattr(parent, name, item.held)
    rebind_registries([(patched, item.original)])
    _propagate_patch(patched, item.original, parent)


def _current(item: _Prepared) -> Any:
    return _resolve(item.hook.target)


def _not_in_place(item: _Prepared) -> str | None:
    if isinstance(item.hook, Entry):
        placed = _current(item).get(item.hook.key) is item.value
    else:
        placed = hook_is_in_chain(_current(item), item.value)
    return None if placed else f"the hook is not in place on {place(item.hook)} (SGLang's log has its error)"


def _fail(outcome: Outcome, reason: str, strict: bool) -> None:
    outcome.state, outcome.reason = "failed", reason
    message = f"sglang-gemma4: patch {outcome.name} cannot be applied: {reason}"
    if strict:
        raise PatchError(message + f" ({switches.STRICT}=1)")
    logger.error(message)
