"""Traps cost nothing while they are off: every function they would hook is stock's own object, and their code is not even imported."""

import importlib
import pkgutil
import sys
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.patches import load, load_all
from tests.harness.child import InChild

SWITCHES = ("SGLANG_GEMMA4_DEBUG", "SGLANG_TRTLLM_MHA_DEBUG")
TARGETS = sorted(hook.target for hook in load("bounds_traps").hooks)


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    for patch in load_all():
        for hook in patch.hooks:
            pkgutil.resolve_name(hook.target)
    importlib.import_module("sglang.srt.model_executor.model_runner")


def function_at(target: str) -> Any:
    """The function itself; a class method is bound anew each time it is looked up."""
    found = pkgutil.resolve_name(target)
    return getattr(found, "__func__", found)


def same_objects(environ: dict[str, str]) -> list[bool]:
    """Whether each target is, after all patches were applied, the object that it was before."""
    stock = [function_at(target) for target in TARGETS]
    for name in [name for name in sys.modules if name.startswith("sglang_gemma4.diagnostics.traps")]:
        del sys.modules[name]
    patching.apply(load_all(), {"SGLANG_GEMMA4_CPU": "1", **environ})
    loaded = "sglang_gemma4.diagnostics.traps" in sys.modules
    assert not loaded, "hooks import the traps when a backend is made, not before"
    return [function_at(target) is before for target, before in zip(TARGETS, stock, strict=True)]


def test_off_every_target_is_stocks_own(in_child: InChild) -> None:
    assert in_child(lambda: same_objects({})) == [True] * len(TARGETS)
    assert in_child(lambda: same_objects(dict.fromkeys(SWITCHES, "0"))) == [True] * len(TARGETS)


@pytest.mark.parametrize("switch", SWITCHES)
def test_on_every_target_is_hooked(switch: str, in_child: InChild) -> None:
    assert in_child(lambda: same_objects({switch: "1"})) == [False] * len(TARGETS)
