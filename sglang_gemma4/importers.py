"""Places hooks without SGLang's walk through every name of every module for each of them."""

import functools
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from sglang_gemma4.supported import fingerprint

logger = logging.getLogger(__name__)

KNOWN = "49c03f762660"
"""Fingerprint of the ``_propagate_patch`` that the index was written for."""


@contextmanager
def indexed() -> Iterator[None]:
    """While this is open, SGLang's hooks find a function's importers through an index: one walk instead of one for each hook.

    The walks took two seconds of every process. Only the modules that ``_propagate_patch`` looks through are fewer, so hooks of
    other plugins that are placed meanwhile end where they would without us. Another function than the one we know stays in use.
    """
    from sglang.srt.plugins import hook_registry

    propagate = hook_registry._propagate_patch
    if not _is_known(propagate):
        _say_once("SGLang's _propagate_patch is not the one this package knows: placing the patches takes seconds longer")
        yield
        return
    hook_registry._propagate_patch = Importers(propagate)
    try:
        yield
    finally:
        hook_registry._propagate_patch = propagate


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
    """SGLang's ``_propagate_patch``, run over the modules that can hold the original instead of over all.

    They are never too few: what changes a module while hooks are placed is either this function, which keeps the index up to date, or
    an import (SGLang resolves the next target). That is seen in the number of modules or of their names, and makes the whole index anew,
    for an imported module may put anything anywhere. They may be too many: SGLang's code compares each name itself.
    """

    def __init__(self, propagate: FunctionType) -> None:
        self._view = SimpleNamespace(modules={})
        self._propagate = FunctionType(propagate.__code__, {**propagate.__globals__, "sys": self._view}, propagate.__name__)
        self._imported: list[Any] = []  # all of sys.modules; kept, so that nothing imported later gets the id of one of them
        self._modules: list[ModuleType] = []
        self._names: list[dict[str, Any]] = []  # of each module
        self._ids: list[set[int]] = []  # of what each module's names hold; lists by id would be so many that garbage is collected
        self._state: tuple[int, int] | None = None

    def __call__(self, original: object, wrapped: object, source: object) -> int:
        """Rebind the original's importers; return how many names that were."""
        if self._state != self._state_now():
            self._index(list(sys.modules.values()))
        looked_for, new = id(original), id(wrapped)
        holders = {}
        for position, ids in enumerate(self._ids):
            if looked_for in ids:
                holders[position] = self._modules[position]
            elif self._modules[position] is not source:  # SGLang has set the wrapped function there
                continue
            ids.add(new)  # a second hook may wrap it again
        self._view.modules = holders
        count: int = self._propagate(original, wrapped, source)
        return count

    def _index(self, imported: list[Any]) -> None:
        self._imported, self._modules, self._names, self._ids = imported, [], [], []
        for module in imported:
            if not isinstance(module, ModuleType):
                continue
            try:
                names = vars(module)
            except TypeError:
                continue
            self._modules.append(module)
            self._names.append(names)
            self._ids.append(set(map(id, list(names.values()))))
        self._state = self._state_now()

    def _state_now(self) -> tuple[int, int]:
        return len(sys.modules), sum(map(len, self._names))
