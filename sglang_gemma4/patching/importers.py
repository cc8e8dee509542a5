"""Places hooks without SGLang's search through every name of every module for each hook."""

import functools
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from sglang_gemma4.patching.supported import fingerprint

logger = logging.getLogger(__name__)

KNOWN = "49c03f762660"
"""Fingerprint of the ``_propagate_patch`` that the index was written for."""

_ahead: list["Importers"] = []
"""At most one index, made before this process was forked. It is valid as long as only its own changes are made."""


@contextmanager
def indexed(originals: Iterable[object] = ()) -> Iterator[None]:
    """Context in which SGLang's hooks find the importers of ``originals`` through an index: one walk instead of one
    for each hook.

    The walks took two seconds in every process. Only ``_propagate_patch``'s search is shortened, so other plugins'
    hooks that are placed meanwhile end up where they would without us: an object outside ``originals`` costs its own
    walk. If ``_propagate_patch`` is not the version we know, it stays in use.
    """
    from sglang.srt.plugins import hook_registry

    propagate = hook_registry._propagate_patch
    if not _is_known(propagate):
        _say_once("SGLang's _propagate_patch is not the one this package knows: placing the patches takes seconds longer")
        yield
        return
    made, _ahead[:] = _ahead[:], []
    hook_registry._propagate_patch = made[0].of(originals) if made else Importers(propagate, originals)
    try:
        yield
    finally:
        hook_registry._propagate_patch = propagate


def look_ahead(originals: Iterable[object]) -> None:
    """Make the index once, for all processes that are then forked from this one; the first placing of hooks in each
    uses it."""
    from sglang.srt.plugins import hook_registry

    if _is_known(hook_registry._propagate_patch):
        _ahead[:] = [Importers(hook_registry._propagate_patch, originals)]
        _ahead[0].index()


def _is_known(propagate: Any) -> bool:
    if not isinstance(propagate, FunctionType) or hasattr(propagate, "__wrapped__"):  # a fingerprint looks through wrappers
        return False
    try:
        return fingerprint(propagate) == KNOWN
    except (TypeError, OSError):  # no source to compare
        return False


@functools.cache
def _say_once(message: str) -> None:
    logger.warning("sglang-gemma4: %s", message)


class Importers:
    """SGLang's ``_propagate_patch``, run over the modules that hold the original instead of over all.

    The index never misses a module. Only two things change modules while hooks are placed: this function, which keeps
    the index up to date, and an import (SGLang resolves the next target). An import shows in the number of modules or
    of their names, and rebuilds the whole index, because an imported module may put anything anywhere. The index may
    list too many modules: SGLang's code compares each name itself.
    """

    def __init__(self, propagate: FunctionType, originals: Iterable[object]) -> None:
        self._view = SimpleNamespace(modules={})
        self._propagate = FunctionType(propagate.__code__, {**propagate.__globals__, "sys": self._view}, propagate.__name__)
        self._originals = {id(each): each for each in originals}  # kept, so that nothing made later gets the id of one of them
        self._holders: dict[int, list[ModuleType]] = {}  # by the id of an original
        self._modules: list[ModuleType] = []
        self._names: list[dict[str, Any]] = []  # of each module
        self._state: tuple[int, int] | None = None

    def __call__(self, original: object, wrapped: object, source: object) -> int:
        """Rebind the original's importers; returns the number of rebound names."""
        if self._state != self._state_now():
            self.index()
        if id(original) not in self._originals:
            self._originals[id(original)] = original
            self._look_for({id(original)})
        holders = self._holders.get(id(original), [])
        if id(wrapped) in self._originals:  # a class in the place of another, which has a hook too
            self._holders.setdefault(id(wrapped), []).extend([*holders, *([source] if isinstance(source, ModuleType) else [])])
        self._view.modules = dict(enumerate(holders))
        count: int = self._propagate(original, wrapped, source)
        return count

    def of(self, originals: Iterable[object]) -> "Importers":
        """This index, extended by ``originals`` if it lacks some."""
        more = {id(each): each for each in originals if id(each) not in self._originals}
        self._originals.update(more)
        self._look_for(set(more))
        return self

    def index(self) -> None:
        """Search all modules."""
        self._holders, self._modules, self._names = {}, [], []
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType):
                continue
            try:
                names = vars(module)
            except TypeError:
                continue
            self._modules.append(module)
            self._names.append(names)
        self._look_for(set(self._originals))
        self._state = self._state_now()

    def _look_for(self, ids: set[int]) -> None:
        """Add the holders of originals with these ids. No set of all ids is made: the modules' names refer to half a
        million objects."""
        if not ids:
            return
        for module, names in zip(self._modules, self._names, strict=True):
            for held in ids.intersection(map(id, list(names.values()))):
                self._holders.setdefault(held, []).append(module)

    def _state_now(self) -> tuple[int, int]:
        return len(sys.modules), sum(map(len, self._names))
