"""Hooks placed through the index of importers end where SGLang's own walks put them, and the modules are walked once."""

import contextlib
import gc
import importlib
import inspect
import logging
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.patches import load_all
from sglang_gemma4.patching import hooks, importers, placement, supported
from tests.harness.child import InChild

OWN = "0" * 12
"""In place of ``KNOWN``: SGLang's function is not the one we know, and stays in use."""

FILES = {
    "home_g5": """
        def f(x): return x
        def g(x): return 2 * x
        def h(x): return 3 * x
        class C:
            def m(self, x): return x
            @classmethod
            def c(cls, x): return x
    """,
    "user_g5": "from home_g5 import f, g, C\nagain = f\n",
    "alias_g5": "from home_g5 import f, g\n",
    # Imported when its own hook is placed: by then f, of an earlier target, is wrapped, and h, of a later one, is not.
    "late_g5": """
        import user_g5
        from home_g5 import f, h
        user_g5.g = h  # as many names as before
        def late(x): return x
    """,
    "lazy_g5": """
        def __getattr__(name):
            import home_g5
            if name == "h": return home_g5.h
            raise AttributeError(name)
    """,
}


@pytest.fixture
def files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules that hold one another's functions; ``late_g5`` is not imported yet."""
    for name, source in FILES.items():
        (tmp_path / f"{name}.py").write_text(inspect.cleandoc("\n" + source) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("sglang.srt.plugins.hook_registry", "user_g5", "alias_g5", "lazy_g5"):
        importlib.import_module(name)
    yield
    for name in FILES:
        sys.modules.pop(name, None)


Names = dict[str, dict[str, Any]]


def names() -> Names:
    """What each name of each module holds."""
    return {name: dict(vars(module)) for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)}


def bindings(before: Names) -> set[tuple[Any, ...]]:
    """The names that hold another object than before, and what, as far as hooks can have put it there: how many wrappers, around what."""
    found = set()
    for module_name, held in names().items():
        earlier = before.get(module_name, {})
        for name, value in held.items():
            if name in earlier and earlier[name] is value:
                continue
            inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if isinstance(inner, types.FunctionType | type):
                depth = 0
                while depth < 9 and isinstance(inner, types.FunctionType | type) and "__wrapped__" in vars(inner):  # some wrap themselves
                    depth, inner = depth + 1, vars(inner)["__wrapped__"]
                said = f"{inner.__module__}.{inner.__qualname__}" if isinstance(inner, types.FunctionType | type) else type(inner).__name__
                found.add((module_name, name, type(value).__name__, depth, said))
    return found


def both(child: Callable[[], Any], in_child: InChild, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The answer with the index, and with SGLang's own walks."""
    indexed = in_child(child)
    with monkeypatch.context() as patch:
        patch.setattr(importers, "KNOWN", OWN)
        return [indexed, in_child(child)]


def around(original: Callable[..., Any], *arguments: Any) -> Any:
    return original(*arguments) + 1


def place(*targets: str, told: bool = False) -> None:
    """Place hooks as another plugin's, which ours are placed together with; or ``told`` what is hooked, as far as it is imported."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    originals = []
    for target in targets:
        HookRegistry.register(target, around, HookType.AROUND)
        if told and target.partition(".")[0] in sys.modules:
            with contextlib.suppress(AttributeError):
                found = pkgutil.resolve_name(target)
                originals.append(getattr(found, "__func__", found))
    with importers.indexed(originals):
        HookRegistry.apply_hooks()


def test_all_patches_end_where_sglang_would_put_them(in_child: InChild, monkeypatch: pytest.MonkeyPatch) -> None:
    patches = load_all()
    for name in ("sglang.srt.entrypoints.http_server", "sglang_gemma4.models.unified_config", "sglang_gemma4.memory.given"):
        importlib.import_module(name)
    for patch in patches:
        for hook in patch.hooks:
            pkgutil.resolve_name(hook.target)
            if isinstance(value := hook.function if isinstance(hook, hooks.Seam) else hook.value, str):
                pkgutil.resolve_name(value)  # of patches that are off too, as those who look ahead import them
    before = names()
    switched_on = dict.fromkeys((patch.switch for patch in patches), "1")

    originals = {id(hooks.target_of(hook)) for patch in patches for hook in patch.hooks} - {id(None)}
    registries = [each for each in placement._registries(originals) if all(isinstance(key, str | int | type) for key in each)]

    def child(walks: bool = True) -> Any:
        with monkeypatch.context() as patch:
            if not walks:
                patch.setattr(gc, "get_objects", lambda: pytest.fail("all objects are looked through again"))
            states = {o.state for o in patching.apply(patches, switched_on)}
        stale = [sorted(str(key) for key, value in each.items() if id(value) in originals) for each in registries]
        return [sorted(states), sorted(bindings(before)), stale]

    def ahead() -> Any:
        hooks.look_ahead(hook for patch in patches for hook in patch.hooks)
        return child(walks=False)

    held = [sorted(str(key) for key, value in each.items() if id(value) in originals) for each in registries]
    (states, indexed, stale), own = both(child, in_child, monkeypatch)
    assert [states, indexed, stale] == own == in_child(ahead)
    assert stale != held, "models and backends are kept by their names too"
    assert states == ["active", "off"]
    assert len([each for each in indexed if each[0].startswith("sglang.")]) >= 4, "names that hold something else than before"


@pytest.mark.parametrize(
    "targets",
    [
        ["home_g5.f"],
        ["home_g5.f", "home_g5.g", "home_g5.C.m", "home_g5.C.c"],
        ["home_g5.f", "home_g5.f", "user_g5.again"],
        ["alias_g5.f", "home_g5.f", "user_g5.f"],
        ["home_g5.f", "late_g5.late", "user_g5.g"],
        ["home_g5.f", "late_g5.f", "late_g5.h", "home_g5.h", "user_g5.C.m"],
        ["alias_g5.f", "lazy_g5.h", "user_g5.f"],
        ["home_g5.f", "home_g5.C", "home_g5.gone", "nowhere_g5.f", "user_g5.g"],
    ],
    ids=",".join,
)
def test_small_modules_are_rebound_alike(targets: list[str], files: None, in_child: InChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is imported as hooks are placed, what is wrapped again under another name, and beside hooks that fail."""
    before = names()

    def child(told: bool = False) -> Any:
        place(*targets, told=told)
        return sorted(bindings(before))

    indexed, own = both(child, in_child, monkeypatch)
    assert indexed == own == in_child(lambda: child(told=True))
    assert any(depth for *_, depth, _ in indexed)


@pytest.mark.parametrize("told", [False, True])
def test_a_module_imported_between_two_hooks(told: bool, files: None, in_child: InChild) -> None:
    def child() -> Any:
        place("home_g5.f", "late_g5.late", "user_g5.g", told=told)
        user, late, home = (sys.modules[name] for name in ("user_g5", "late_g5", "home_g5"))
        return [home.f(1), late.f(1), late.late(1), user.g(1), late.h(1), home.h(1), home.g(1)]

    assert in_child(child) == [2, 2, 2, 4, 4, 4, 2], "late_g5 gave user_g5 the h of home_g5, and that was hooked"


class Counting(types.ModuleType):
    """A module that counts how often its names are looked through."""

    walks = 0

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        Counting.walks += 1
        return {}


def test_the_modules_are_walked_once_for_all_hooks(files: None, in_child: InChild) -> None:
    def walks(*targets: str) -> int:
        def child() -> Any:
            sys.modules["counting_g5"] = Counting("counting_g5")
            Counting.walks = 0
            hooks = [patching.Seam(t, "around", around, supported.fingerprint(pkgutil.resolve_name(t))) for t in targets]
            patch = patching.Part(
                name="walks", switch="SGLANG_GEMMA4_TOOL_GRAMMAR", why="", evidence="", remove_when="", hooks=tuple(hooks)
            )
            assert patching.apply([patch], {})[-1].state == "active"
            return Counting.walks

        walked: int = in_child(child)
        return walked

    assert walks("home_g5.f") == walks("home_g5.f", "home_g5.g", "home_g5.h", "home_g5.C.m")


def test_another_function_stays_in_use_and_that_is_said_once(
    files: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.plugins import hook_registry

    propagate = hook_registry._propagate_patch
    with importers.indexed():
        assert hook_registry._propagate_patch is not propagate
    assert hook_registry._propagate_patch is propagate
    with pytest.raises(ZeroDivisionError), importers.indexed():
        _ = 1 / 0
    assert hook_registry._propagate_patch is propagate
    assert not caplog.records

    def other(original: object, wrapped: object, source_module: object) -> int:
        return 0

    other.__wrapped__ = propagate  # type: ignore[attr-defined]
    importers._say_once.cache_clear()
    for strange in (other, len, lambda original, wrapped, source_module: 0):
        monkeypatch.setattr(hook_registry, "_propagate_patch", strange)
        with importers.indexed():
            assert hook_registry._propagate_patch is strange
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert "_propagate_patch is not the one this package knows" in said[0]
