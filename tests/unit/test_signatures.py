"""``Seam(pins="signature")``: a fingerprint that a changed body leaves as it is, and that a changed call does not."""

import importlib
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from sglang_gemma4.patching import Seam, hooks, supported
from sglang_gemma4.patching.signature import signature_text

BEFORE = """
import functools
class Layer:
    @functools.lru_cache
    def forward(self, x: int, *rest, scale=1, **flags) -> int:
        return x * scale
"""
SAME = {
    "body": BEFORE.replace("x * scale", "scale * x  # in another order"),
    "docstring": BEFORE.replace("        return", '        """What it does."""\n        return'),
    "annotations": BEFORE.replace("x: int", "x").replace("-> int", "-> float"),
    "layout": BEFORE.replace("x: int, *rest", "x: int,\n                *rest"),
}
OTHER = {
    "default": BEFORE.replace("scale=1", "scale=2"),
    "parameter": BEFORE.replace("x: int,", "x: int, y,"),
    "order": BEFORE.replace("self, x: int", "x, self"),
    "decorator": BEFORE.replace("    @functools.lru_cache\n", ""),
    "async": BEFORE.replace("def forward", "async def forward"),
    "keyword": BEFORE.replace("**flags", "**options"),
}
NUMBERS = itertools.count()
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a text as the module that a hook's target is in."""
    monkeypatch.syspath_prepend(tmp_path)

    def loaded(text: str) -> ModuleType:
        name = f"signed_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(inspect.cleandoc(text) + "\n")
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return loaded


@pytest.mark.parametrize("what", SAME)
def test_what_leaves_the_call_as_it_is(what: str, load: Load) -> None:
    first, second = load(BEFORE).Layer.forward, load(SAME[what]).Layer.forward
    assert supported.fingerprint(first) != supported.fingerprint(second), "the source did change"
    assert supported.fingerprint(first, "signature") == supported.fingerprint(second, "signature")


@pytest.mark.parametrize("what", OTHER)
def test_what_changes_the_call(what: str, load: Load) -> None:
    first, second = load(BEFORE).Layer.forward, load(OTHER[what]).Layer.forward
    assert supported.fingerprint(first, "signature") != supported.fingerprint(second, "signature")


def test_a_hook_asks_for_what_it_pins(load: Load) -> None:
    module = load(BEFORE)
    target = f"{module.__name__}.Layer.forward"
    signature = supported.fingerprint(module.Layer.forward, "signature")
    hook = Seam(target, "around", print, signature, pins="signature")
    assert hooks.current_fingerprint(hook) == signature
    assert hooks.current_fingerprint(Seam(target, "around", print, signature)) != signature
    with pytest.raises(hooks.PatchError, match=r"has signature \w{12}, the patch was written for 0{12}"):
        hooks.prepare(Seam(target, "around", print, "0" * 12, pins="signature"))


def test_a_replacement_pins_the_body() -> None:
    with pytest.raises(ValueError, match="a replacement relies on the body"):
        Seam("a.b", "replace", print, "0" * 12, pins="signature")


def test_a_class_has_no_signature_to_pin(load: Load) -> None:
    with pytest.raises(TypeError, match="needs a function"):
        signature_text("class Layer:\n    pass\n")
    module = load(BEFORE)
    with pytest.raises(hooks.PatchError, match="needs a function"):
        hooks.current_fingerprint(Seam(f"{module.__name__}.Layer", "after", print, "0" * 12, pins="signature"))


def test_a_known_file_has_both_fingerprints(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(BEFORE)
    monkeypatch.setattr(supported, "_root", lambda: f"{tmp_path}/")
    place = supported.place_of(module.Layer.forward)
    assert place is not None
    path, name = place
    known = {"digest": supported.digest(path), supported.known_name(name, "source"): "all", supported.known_name(name, "signature"): "call"}
    monkeypatch.setattr(supported, "_known", lambda: {path: known})
    assert supported.fingerprint(module.Layer.forward) == "all"
    assert supported.fingerprint(module.Layer.forward, "signature") == "call"


def test_the_source_of_a_property_is_its_getters() -> None:
    class Layer:
        @property
        def size(self) -> int:
            return 1

    assert supported.source_fingerprint(vars(Layer)["size"]) == supported.source_fingerprint(vars(Layer)["size"].fget)
