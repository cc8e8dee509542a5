"""Hooks: what a patch puts where in SGLang, whether it fits there, and whether it is in place afterwards.

Hooks are installed through SGLang's own ``HookRegistry``. SGLang swallows errors there; this module detects and
reports them.
"""

import contextlib
import logging
import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

from sglang_gemma4.patching import importers, placement
from sglang_gemma4.patching.importers import indexed
from sglang_gemma4.patching.placement import hook_is_in_chain, rebind_registries, stale_holders
from sglang_gemma4.patching.supported import Pins, fingerprint

PLUGIN = "sglang_gemma4"
"""What SGLang's registry calls this package: its entry point's name."""
Kind = Literal["before", "after", "around", "replace"]


@dataclass(frozen=True)
class Seam:
    """One function, method or class of SGLang that a patch changes.

    ``target`` is its dotted path. ``kind`` follows SGLang's ``HookType``: before(*args) -> (args, kwargs) | None,
    after(result, *args) -> new result | None, around(original, *args) -> result, replace(*args) -> result or a class.
    ``function`` is the hook itself, or "package.module:name" where it needs torch or sglang to be imported.
    ``fingerprint`` is :func:`fingerprint` of the target's source; ``sglang-gemma4 patches --fingerprints`` prints them.
    ``parts`` are the names of those that go in here. Where there are several, ``function`` asks :func:`declare.is_on` for each.
    ``pins`` says what ``fingerprint`` covers: "signature" where ``function`` relies on no line of the target's body.
    ``turn`` counts the seams of one target from the inside: those with a higher one wrap those with a lower one.
    """

    target: str
    kind: Kind
    function: Callable[..., Any] | str
    fingerprint: str
    parts: tuple[str, ...] = ()
    pins: Pins = "source"
    turn: int = 0

    def __post_init__(self) -> None:
        if self.pins == "signature" and self.kind == "replace":
            raise ValueError(f'{self.target}: a replacement relies on the body it replaces; it needs pins="source"')


@dataclass(frozen=True)
class Entry:
    """One key of an SGLang registry (a dict) that a patch sets.

    ``value`` makes the new value when the patch is applied, or is "package.module:name". ``fingerprint`` is that of the value found
    under the key, or "absent" where the key must be new.
    """

    target: str
    key: str
    value: Callable[[], Any] | str
    fingerprint: str
    parts: tuple[str, ...] = ()


def resolution_step(step: str, wrapper: Callable[..., None], parts: tuple[str, ...] = ()) -> Entry:
    """Wrap a step of SGLang's argument resolution: ``wrapper(server_args, previous)``."""

    def value() -> list[Callable[..., None]]:
        from sglang.srt.arg_groups.resolution_hooks import _HOOKS

        return [*_HOOKS.get(step, ()), wrapper]

    return Entry("sglang.srt.arg_groups.resolution_hooks._HOOKS", step, value, "absent", parts)


class PatchError(RuntimeError):
    """A patch cannot be applied; the message names it and says why."""


@dataclass
class Prepared:
    """A checked hook: where it goes, the original, what goes there, and what the parent held to put back on failure."""

    hook: Seam | Entry
    original: Any
    value: Any
    held: Any = None


def prepare(hook: Seam | Entry) -> Prepared:
    """Check that a hook fits, and make the object that it puts in place.

    Raises:
        PatchError: the target is absent, has another source than the hook was written for, or was patched by another
            plugin.
    """
    actual = current_fingerprint(hook)
    if actual != hook.fingerprint:
        raise PatchError(f"{place(hook)} has {pins_of(hook)} {actual}, the patch was written for {hook.fingerprint}; not applied")
    if isinstance(hook, Entry):
        try:
            value = pkgutil.resolve_name(hook.value) if isinstance(hook.value, str) else hook.value()
            return Prepared(hook, _resolve(hook.target).get(hook.key), value)
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
    return Prepared(hook, original, value, held=vars(parent).get(name, original))


def _parent(target: str) -> tuple[Any, str]:
    parent, _, name = target.rpartition(".")
    return _resolve(parent), name


def _resolve(target: str) -> Any:
    try:
        return pkgutil.resolve_name(target)
    except Exception as error:  # importing a module of SGLang can end in anything
        raise PatchError(f"{target} does not exist in this SGLang: {type(error).__name__}: {error}") from error


def place(hook: Seam | Entry) -> str:
    """Location of a hook, for messages."""
    return f"{hook.target}[{hook.key!r}]" if isinstance(hook, Entry) else hook.target


def pins_of(hook: Seam | Entry) -> Pins:
    """What the hook's fingerprint covers; for a registry entry, the source of the value."""
    return hook.pins if isinstance(hook, Seam) else "source"


def target_of(hook: Seam | Entry) -> Any:
    """The object in the installed SGLang that the hook targets; None for a free registry key.

    Raises:
        PatchError: the target does not resolve.
    """
    found = _resolve(hook.target)
    return found.get(hook.key) if isinstance(hook, Entry) else found


def current_fingerprint(hook: Seam | Entry) -> str:
    """Fingerprint of the object in the installed SGLang that the hook targets; "absent" for a free registry key.

    Raises:
        PatchError: the target does not resolve, or has no source (another plugin may have put something there).
    """
    target = target_of(hook)
    try:
        return "absent" if target is None else fingerprint(target, pins_of(hook))
    except (TypeError, OSError) as error:
        raise PatchError(f"{place(hook)} has no source to compare: {error}") from error


def install(ready: Sequence[Sequence[Prepared]]) -> dict[int, str]:
    """Put hooks in place, each group whole or not at all; returns the failed groups by number, with the reason.

    A hook that several groups share is installed once, and stays as long as one of them is installed.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    unique = {id(item.hook): item for prepared in ready for item in prepared}.values()
    for item in sorted(unique, key=lambda item: item.hook.turn if isinstance(item.hook, Seam) else 0):
        if isinstance(item.hook, Seam):
            HookRegistry.register(item.hook.target, item.value, HookType(item.hook.kind))
        else:
            _resolve(item.hook.target)[item.hook.key] = item.value
    standing, failed = dict(enumerate(ready)), {}
    while failure := _place(standing):
        number, failed[failure[0]] = failure[0], failure[1]
        gone = standing.pop(number)
        shared = {id(item.hook) for prepared in standing.values() for item in prepared}
        for item in gone:
            if id(item.hook) not in shared:
                _take_out(item)
    return failed


def _place(groups: dict[int, Sequence[Prepared]]) -> tuple[int, str] | None:
    """Have SGLang place every hook that is registered and not in place; returns the first incomplete group and why,
    or None."""
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.plugins.hook_registry import logger as registry_log

    hooked = [item for prepared in groups.values() for item in prepared if isinstance(item.hook, Seam)]
    originals = [getattr(item.original, "__func__", item.original) for item in hooked]  # a class method's function is what is imported
    # Hooks on a class that is replaced go into the methods of the one in its place.
    with indexed([*originals, *_methods_of([item.value for item in hooked])]):
        registry_log.addFilter(_by_others)
        try:
            HookRegistry.apply_hooks()
        finally:
            registry_log.removeFilter(_by_others)
    rebind_registries([(item.original, _current(item)) for item in hooked])
    stale = stale_holders([item.original for item in hooked])
    for number, prepared in groups.items():
        for item in prepared:
            if problem := _not_in_place(item) or stale.get(id(item.original)):
                return number, problem
    return None


def look_ahead(hooks: Iterable[Seam | Entry]) -> None:
    """Find the holders of what the hooks replace, once, for all processes that are then forked from this one and
    place the hooks.

    In a fork this search takes longer than everything else, because the page of each examined object is copied. A
    fork searches again if something was imported in between. This imports the hooks' targets and values.
    """
    originals: list[Any] = []
    for hook in hooks:
        with contextlib.suppress(PatchError):  # applying the patch reports why
            if (original := target_of(hook)) is not None:
                originals += [original, getattr(original, "__func__", original)]
        value = hook.function if isinstance(hook, Seam) else hook.value
        if isinstance(value, str):
            originals += _methods_of([pkgutil.resolve_name(value)])
    placement.look_ahead(originals)
    importers.look_ahead(originals)


def _methods_of(values: Iterable[Any]) -> list[FunctionType]:
    """The methods of all classes among ``values``."""
    return [method for each in values if isinstance(each, type) for method in vars(each).values() if isinstance(method, FunctionType)]


def _by_others(record: logging.LogRecord) -> bool:
    """Log filter: drop SGLang's "Multiple AROUND hooks" warning if all hooks that it names are ours.

    SGLang warns because one hook may skip those inside it. Ours are made for one another, and tests place all of them
    together.
    """
    named = re.findall(r"plugin=([\w.-]+)", record.getMessage()) if "Multiple AROUND hooks" in str(record.msg) else []
    return not named or set(named) != {PLUGIN}


def _take_out(item: Prepared) -> None:
    """Restore what was there before, so that an incomplete group does nothing; other hooks of the target are placed
    again later."""
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


def _current(item: Prepared) -> Any:
    return _resolve(item.hook.target)


def _not_in_place(item: Prepared) -> str | None:
    if isinstance(item.hook, Entry):
        placed = _current(item).get(item.hook.key) is item.value
    else:
        placed = hook_is_in_chain(_current(item), item.value)
    return None if placed else f"the hook is not in place on {place(item.hook)} (SGLang's log has its error)"
