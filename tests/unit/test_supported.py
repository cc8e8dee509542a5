"""Fingerprints without reading a source again: only in files that are those of ``known_sources.json``, byte for byte."""

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sglang_gemma4.diagnostics import listing
from sglang_gemma4.patching import supported

SOURCE = """
    import functools
    if True:
        def same(x): return x
    else:
        def same(x): return -x
    def around(function):
        @functools.wraps(function)
        def inner(x): return function(x)
        return inner
    @around
    def wrapped(x): return 2 * x
    class Layer:
        def forward(self, x): return x
        @classmethod
        def make(cls): return cls()
        @staticmethod
        def plain(x): return x
"""
TARGETS: dict[str, Callable[[Any], Any]] = {
    "same": lambda module: module.same,
    "wrapped": lambda module: module.wrapped,
    "Layer": lambda module: module.Layer,
    "forward": lambda module: module.Layer.forward,
    "make": lambda module: module.Layer.make,
    "plain": lambda module: module.Layer.plain,
}


def test_the_known_sources_are_the_installed_ones() -> None:
    written = json.loads(supported.KNOWN.read_text())
    made = json.loads(listing.sources())
    assert written == made, "sglang-gemma4 patches --sources > sglang_gemma4/patching/known_sources.json"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A file of a package that stands for SGLang, all of it known."""
    path = tmp_path / "known_g6.py"
    path.write_text(inspect.cleandoc(SOURCE) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "known_g6", raising=False)
    module = importlib.import_module("known_g6")
    monkeypatch.setattr(supported, "_root", lambda: f"{tmp_path}/")
    known: dict[str, str] = {"digest": supported.digest.__wrapped__("known_g6.py")}
    for find in TARGETS.values():
        place = supported.place_of(find(module))
        assert place is not None
        known[place[1]] = "known"
    monkeypatch.setattr(supported, "_known", lambda: {"known_g6.py": known})
    monkeypatch.setattr(supported, "digest", supported.digest.__wrapped__)
    return module


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_known_is_not_read_again(name: str, module: ModuleType, tmp_path: Path) -> None:
    target = TARGETS[name](module)
    assert supported.fingerprint(target) == "known"
    (tmp_path / "known_g6.py").write_text((tmp_path / "known_g6.py").read_text() + "# one byte more\n")
    assert supported.fingerprint(target) == supported.source_fingerprint(target) != "known", "another file"


def test_another_function_in_its_place_is_read(module: ModuleType) -> None:
    """One of another file, and one of the same name from another line of the same file."""

    def same(x: int) -> int:
        return x

    assert supported.fingerprint(same) == supported.source_fingerprint(same)
    code = module.same.__code__.replace(co_firstlineno=module.same.__code__.co_firstlineno + 2)
    module.same.__code__ = code
    assert supported.known_fingerprint(module.same) is None


def test_what_is_no_function_has_no_place() -> None:
    targets: list[object] = [[len], {}, 3, len]
    for target in targets:
        assert supported.place_of(target) is None
