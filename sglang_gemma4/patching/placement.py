"""Is a hook really where calls go? Looks for other holders of the original: importers, registries, subclasses."""

import gc
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

AT_ONCE = 256
"""Dicts that are searched together: one call for each of a hundred thousand takes longer than the search."""

_seen: dict[int, Any] = {}
"""Originals by id whose holders :func:`look_ahead` searched for; kept alive, so that no later object gets such an id.
"""
_holders: list[dict[Any, Any]] = []
"""Registries that held one of them at that time."""
_importers: list[tuple[str, types.ModuleType]] = []
"""Modules that held one of them at that time."""
_imported = 0
"""Number of modules at that time; if it has changed, everything is searched again."""


def hook_is_in_chain(current: Any, hook: Callable[..., Any]) -> bool:
    """Whether calling ``current`` reaches ``hook``: it is the hook itself, or a wrapper around it at any depth.

    SGLang's wrappers keep the hook in a closure cell and the wrapped function in ``__wrapped__``.
    """
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if current is hook:
            return True
        function = getattr(current, "__func__", current)
        if any(cell.cell_contents is hook for cell in getattr(function, "__closure__", None) or ()):
            return True
        current = getattr(function, "__wrapped__", None)
    return False


def look_ahead(originals: Sequence[Any]) -> None:
    """Find the registries and modules that hold ``originals``, for all processes that are then forked from this one
    and place hooks.

    Searching all objects takes a second, and copies a fork's pages as objects are counted. A fork searches again if
    something was imported in between; holders made in any other way are not seen.
    """
    global _imported
    _seen.update({id(original): original for original in originals})
    _imported = len(sys.modules)
    _holders[:] = _registries(set(_seen))
    _importers[:] = [(name, module) for name, module in _modules() if not _seen.keys().isdisjoint(map(id, list(vars(module).values())))]


def rebind_registries(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Replace each original by its patched form in every plain dict that keeps it as a value.

    SGLang rebinds module attributes only; model classes and attention backends are also kept in dicts.
    ``pairs`` are (original, patched).
    """
    patched = {id(original): new for original, new in pairs if new is not original}
    looked_for = {id(original) for original, _ in pairs}
    for holder in _holders if _were_seen(original for original, _ in pairs) else _registries(looked_for):
        for key, value in list(holder.items()):
            if id(value) in patched:
                holder[key] = patched[id(value)]


def _were_seen(originals: Iterable[Any]) -> bool:
    """True if :func:`look_ahead` indexed all ``originals`` and nothing was imported since. Bound methods are skipped;
    each access creates a new one."""
    return len(sys.modules) == _imported and all(id(original) in _seen or isinstance(original, types.MethodType) for original in originals)


def _registries(looked_for: set[int]) -> list[dict[Any, Any]]:
    """Plain dicts with a value that has one of these ids."""
    module_dicts = {id(vars(module)) for _, module in _modules()}
    # gc.get_referrers finds the same in several times the time, which every process of a start would take. The type, not the class that a
    # proxy claims to be: some warn when they are asked.
    # Types by their ids: a class may be unhashable by its own class's doing.
    kinds = {id(kind) for kind in _with_subclasses(dict)}
    objects = gc.get_objects()
    dicts = list(itertools.compress(objects, map(kinds.__contains__, map(id, map(type, objects)))))
    return [
        holder
        for holder in _that_hold(looked_for, dicts)
        # not ours, nor a module's names, nor a wrapper's or a class's
        if holder is not _seen and id(holder) not in module_dicts and "__wrapped__" not in holder and "__module__" not in holder
    ]


def _with_subclasses(kind: type) -> list[type]:
    """A class and all that derive from it; a class that derives in several ways is listed as often."""
    return [kind, *itertools.chain.from_iterable(map(_with_subclasses, type.__subclasses__(kind)))]


def _that_hold(looked_for: set[int], dicts: Sequence[dict[Any, Any]]) -> list[dict[Any, Any]]:
    """The dicts with a value that has one of the ids. Many are searched at once, and one by one only where something
    is found."""
    found = []
    for first in range(0, len(dicts), AT_ONCE):
        some = dicts[first : first + AT_ONCE]
        if not looked_for.isdisjoint(map(id, itertools.chain.from_iterable(map(dict.values, some)))):
            found += [each for each in some if not looked_for.isdisjoint(map(id, dict.values(each)))]
    return found


def stale_holders(originals: Sequence[Any]) -> dict[int, str]:
    """For each original that SGLang can still reach by a name or as a base class: id -> a sentence naming the holder."""
    by_id = {id(original): original for original in originals}
    found: dict[int, str] = {}
    for module_name, module in _importers if _were_seen(originals) else _modules():
        if module_name.startswith("sglang_gemma4"):
            continue  # our subclasses import the stock class on purpose
        names = vars(module)
        if by_id.keys().isdisjoint(map(id, list(names.values()))):
            continue
        for name, value in list(names.items()):
            if id(value) in by_id:
                found[id(value)] = f"{module_name}.{name} still holds the original"
    for original in originals:
        if isinstance(original, type):
            subclasses: list[type] = original.__subclasses__()
            for subclass in subclasses:
                if not subclass.__module__.startswith("sglang_gemma4"):
                    found[id(original)] = f"{subclass.__module__}.{subclass.__name__} still derives from the original class"
    return found


def _modules() -> list[tuple[str, types.ModuleType]]:
    return [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)]
