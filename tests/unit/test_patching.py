"""The patch registry on small modules of our own, through SGLang's real HookRegistry."""

import functools
import importlib
import logging
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.diagnostics import status
from sglang_gemma4.patching import Entry, Part, Seam, supported
from tests.harness.child import InChild

SOURCE = """
def double(x):
    return 2 * x


class Layer:
    def forward(self, x):
        return x


class Head:
    pass
"""


@pytest.fixture
def upstream(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module like SGLang's: functions, classes, a registry; and a second one that imported from it by name."""
    (tmp_path / "upstream_g4.py").write_text(SOURCE + "\n\nREGISTRY = {'layer': Layer, 'double': double}\n")
    (tmp_path / "importer_g4.py").write_text("from upstream_g4 import Head, double\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("importer_g4")
    importlib.import_module("sglang.srt.plugins.hook_registry")  # once, not in every child
    yield sys.modules["upstream_g4"]
    for name in ("upstream_g4", "importer_g4"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def nothing_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test applies is not in the report of the next, or of another file's."""
    monkeypatch.setattr(patching.declare, "_outcomes", {})
    monkeypatch.setattr(patching.declare, "_active", {})


def plus_one(result: int, *_: Any) -> int:
    return result + 1


def mark(target: str) -> str:
    return supported.fingerprint(pkgutil.resolve_name(target))


def patch_of(*hooks: Seam | Entry, name: str = "test", **kw: Any) -> Part:
    return Part(name=name, switch="SGLANG_GEMMA4_TOOL_GRAMMAR", why="", evidence="", remove_when="", hooks=hooks, **kw)


def outcome(patch: Part, environ: dict[str, str] | None = None) -> patching.Outcome:
    return next(o for o in patching.apply([patch], environ or {}) if o.name == patch.name)


def test_a_hook_is_applied_also_in_importers_and_registries(upstream: types.ModuleType, in_child: InChild) -> None:
    def child() -> Any:
        found = outcome(patch_of(Seam("upstream_g4.double", "after", plus_one, mark("upstream_g4.double"))))
        return [found.state, upstream.double(1), sys.modules["importer_g4"].double(1), upstream.REGISTRY["double"](1)]

    assert in_child(child) == ["active", 3, 3, 3]


def test_methods_and_classes(upstream: types.ModuleType, in_child: InChild) -> None:
    def child() -> Any:
        class Better(upstream.Head):  # type: ignore[name-defined, misc]
            __module__ = "sglang_gemma4.test"

        found = outcome(
            patch_of(
                Seam(
                    "upstream_g4.Layer.forward",
                    "around",
                    lambda original, self, x: original(self, x) * 10,
                    mark("upstream_g4.Layer.forward"),
                ),
                Seam("upstream_g4.Head", "replace", Better, mark("upstream_g4.Head")),
            )
        )
        return [found.state, found.reason, upstream.Layer().forward(4), upstream.Head is Better, sys.modules["importer_g4"].Head is Better]

    assert in_child(child) == ["active", "", 40, True, True]


def test_a_registry_entry(upstream: types.ModuleType, in_child: InChild) -> None:
    def child() -> Any:
        new = object()
        found = outcome(
            patch_of(
                Entry("upstream_g4.REGISTRY", "layer", lambda: new, mark("upstream_g4.Layer")),
                Entry("upstream_g4.REGISTRY", "own", lambda: new, "absent"),
            )
        )
        return [found.state, upstream.REGISTRY["layer"] is new, upstream.REGISTRY["own"] is new]

    assert in_child(child) == ["active", True, True]


@pytest.mark.parametrize(
    ("target", "mark_", "said"),
    [
        ("upstream_g4.double", "0" * 12, "was written for 000000000000"),
        ("upstream_g4.halve", "0" * 12, "does not exist in this SGLang"),
        ("upstream_gone.double", "0" * 12, "does not exist in this SGLang"),
    ],
)
def test_a_patch_that_does_not_fit_is_applied_in_no_part(
    upstream: types.ModuleType, in_child: InChild, target: str, mark_: str, said: str
) -> None:
    def child() -> Any:
        good = Seam("upstream_g4.double", "after", plus_one, mark("upstream_g4.double"))
        found = outcome(patch_of(good, Seam(target, "after", plus_one, mark_)))
        return [found.state, found.reason, upstream.double(1)]

    state, reason, value = in_child(child)
    assert state == "failed"
    assert said in reason
    assert value == 2


def test_strict_raises_and_names_the_patch(upstream: types.ModuleType) -> None:
    with pytest.raises(patching.PatchError, match=r"patch test cannot be applied: upstream_g4.double has source"):
        patching.apply([patch_of(Seam("upstream_g4.double", "after", plus_one, "x"))], {"SGLANG_GEMMA4_STRICT": "1"})


def test_a_late_second_hook_is_reported(upstream: types.ModuleType, in_child: InChild) -> None:
    def child() -> Any:
        source = mark("upstream_g4.double")
        one, other = (Seam("upstream_g4.double", "after", plus_one, source) for _ in range(2))
        first, second = outcome(patch_of(one)), outcome(patch_of(other, name="second"))
        return [first.state, second.state, second.reason]

    first, second, reason = in_child(child)
    assert (first, second) == ("active", "failed")
    assert "already patched" in reason


def test_a_subclass_of_a_replaced_class_is_reported(upstream: types.ModuleType, in_child: InChild) -> None:
    def child() -> Any:
        class Derived(upstream.Head):  # type: ignore[name-defined, misc]
            __module__ = "upstream_g4"

        class Better:
            __module__ = "sglang_gemma4.test"

        found = outcome(patch_of(Seam("upstream_g4.Head", "replace", Better, mark("upstream_g4.Head"))))
        return [found.state, found.reason, Derived.__name__]

    state, reason, _ = in_child(child)
    assert state == "failed"
    assert "upstream_g4.Derived still derives from the original class" in reason


def test_a_patch_that_fails_half_way_is_taken_out_whole(upstream: types.ModuleType, in_child: InChild) -> None:
    def child() -> Any:
        derived = type("Derived", (upstream.Head,), {"__module__": "upstream_g4"})
        better = type("Better", (), {"__module__": "sglang_gemma4.test"})
        found = outcome(
            patch_of(
                Seam("upstream_g4.double", "after", plus_one, mark("upstream_g4.double")),
                Entry("upstream_g4.REGISTRY", "own", object, "absent"),
                Entry("upstream_g4.REGISTRY", "layer", object, mark("upstream_g4.Layer")),
                Seam("upstream_g4.Layer.forward", "after", plus_one, mark("upstream_g4.Layer.forward")),
                Seam("upstream_g4.Head", "replace", better, mark("upstream_g4.Head")),
            )
        )
        return [
            found.state,
            [upstream.double(1), sys.modules["importer_g4"].double(1), upstream.REGISTRY["double"](1)],
            "own" in upstream.REGISTRY,
            upstream.REGISTRY["layer"] is upstream.Layer,
            upstream.Layer().forward(4),
            [upstream.Head is derived.__base__, sys.modules["importer_g4"].Head is derived.__base__],
        ]

    assert in_child(child) == ["failed", [2, 2, 2], False, True, 4, [True, True]]


def test_others_around_the_same_function_stay_where_one_fails(upstream: types.ModuleType, in_child: InChild) -> None:
    """Before and behind the one that fails: SGLang keeps one chain for each function, of which a part is taken out."""

    def child() -> Any:
        derived = type("Derived", (upstream.Head,), {"__module__": "upstream_g4"})
        better = type("Better", (), {"__module__": "sglang_gemma4.test"})
        place, source = "upstream_g4.double", mark("upstream_g4.double")
        one = Seam(place, "after", plus_one, source)
        ten = Seam(place, "after", lambda result, *_: result + 10, source)
        hundred = Seam(place, "after", lambda result, *_: result + 100, source)
        broken = Seam("upstream_g4.Head", "replace", better, mark("upstream_g4.Head"))
        given = [patch_of(one, name="one"), patch_of(ten, broken, name="two"), patch_of(hundred, name="three")]
        states = {o.name: o.state for o in patching.apply(given, {})}
        found = [upstream.double(1), sys.modules["importer_g4"].double(1), upstream.REGISTRY["double"](1)]
        again = outcome(patch_of(ten, name="late"))
        return [states, found, derived.__base__ is upstream.Head, again.state]

    states, found, same, late = in_child(child)
    assert states == {"one": "active", "two": "failed", "three": "active"}
    assert found == [103, 103, 103]
    assert same
    assert late == "failed", "the function has hooks"


@pytest.mark.parametrize("other", [False, True])
def test_sglang_warns_of_two_around_one_function_only_where_one_is_another_plugin_s(
    other: bool, upstream: types.ModuleType, in_child: InChild
) -> None:
    def child() -> Any:
        from sglang.srt.plugins import hook_registry as registry

        said: list[str] = []
        registry.logger.addHandler(handler := logging.Handler())
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        hooks = [Seam("upstream_g4.double", "around", around, mark("upstream_g4.double")) for around in (twice_more, once_more)]
        if other:
            theirs = registry.HookSource("theirs", None)
            registry.HookRegistry.register("upstream_g4.double", thrice_more, registry.HookType.AROUND, source=theirs)
        token = registry._current_plugin_source.set(registry.HookSource("sglang_gemma4", "sglang-gemma4"))
        states = [found.state for found in patching.apply([patch_of(*hooks)], {})]
        registry._current_plugin_source.reset(token)
        return [states, upstream.double(1), said]

    states, doubled, said = in_child(child)
    assert (states, doubled) == (["active"], 5 + 3 * other)
    assert ["plugin=theirs" in line and "upstream_g4.double" in line for line in said] == [True] * other


def twice_more(original: Callable[[int], int], number: int) -> int:
    return original(number) + 2


def once_more(original: Callable[[int], int], number: int) -> int:
    return original(number) + 1


def thrice_more(original: Callable[[int], int], number: int) -> int:
    return original(number) + 3


def test_a_target_without_source_fails_by_name_and_no_other_patch_suffers(upstream: types.ModuleType, in_child: InChild) -> None:
    def child() -> Any:
        vars(upstream)["halve"] = functools.partial(upstream.double, 2)
        odd = patch_of(Seam("upstream_g4.halve", "after", plus_one, "x"), name="odd")
        good = patch_of(Seam("upstream_g4.double", "after", plus_one, mark("upstream_g4.double")), name="good")
        states = {o.name: [o.state, o.reason] for o in patching.apply([odd, good], {})}
        return [states["odd"], states["good"][0]]

    (state, reason), good = in_child(child)
    assert (state, good) == ("failed", "active")
    assert "upstream_g4.halve has no source to compare" in reason


def test_applying_twice_changes_nothing(upstream: types.ModuleType, in_child: InChild) -> None:
    def child() -> Any:
        patch = patch_of(Seam("upstream_g4.double", "after", plus_one, mark("upstream_g4.double")))
        return [outcome(patch).state, outcome(patch).state, upstream.double(1)]

    assert in_child(child) == ["active", "active", 3]


def test_switch_and_master_turn_a_patch_off(upstream: types.ModuleType) -> None:
    patch = patch_of(Seam("upstream_g4.double", "after", plus_one, "never looked at"))
    for environ in ({"SGLANG_GEMMA4": "0"}, {"SGLANG_GEMMA4_TOOL_GRAMMAR": "0"}):
        found = outcome(patch, environ)
        assert (found.state, found.reason) == ("off", next(f"{k}=0" for k in environ))
    assert upstream.double(1) == 2


def test_the_cpu_engine_follows_its_own_switch(in_child: InChild) -> None:
    patch = patch_of(cpu_engine=True)
    assert outcome(patch, {"SGLANG_GEMMA4": "0", "SGLANG_GEMMA4_TOOL_GRAMMAR": "1"}).state == "active"


def test_another_sglang_version_applies_nothing(upstream: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supported, "installed_sglang", lambda: "0.6.0")
    found = outcome(patch_of(Seam("upstream_g4.double", "after", plus_one, mark("upstream_g4.double"))))
    assert (found.state, found.reason) == ("declined", "this package supports SGLang 0.5.23, 0.6.0 is installed")
    assert upstream.double(1) == 2


def test_a_patch_may_decline_with_a_reason() -> None:
    found = outcome(patch_of(declines=lambda _: "no GPU here"))
    assert (found.state, found.reason) == ("declined", "no GPU here")


def test_a_note_is_kept_once(caplog: pytest.LogCaptureFixture) -> None:
    found = outcome(patch_of(name="noted"))
    for _ in range(3):
        patching.note("noted", "head_dim 96 is not supported")
    assert found.notes == ["head_dim 96 is not supported"]
    assert len([r for r in caplog.records if "head_dim 96" in r.message]) == 1


def test_what_a_patch_tells_is_kept_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    found = outcome(patch_of(name="telling"))
    with caplog.at_level("INFO"):
        patching.tell("telling", "3 graphs took 2.5 s")
    assert (found.facts, found.notes) == (["3 graphs took 2.5 s"], [])
    assert caplog.messages[-1] == "sglang-gemma4: 3 graphs took 2.5 s"
    (row,) = status.as_data([found])
    assert status.table([row])[1].strip() == "3 graphs took 2.5 s"
    del row["facts"]  # as a server of an older version has it
    assert len(status.table([row])) == 1


def test_another_version_is_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_child: InChild
) -> None:
    from sglang_gemma4 import plugin

    monkeypatch.setattr(supported, "installed_sglang", lambda: "0.6.0")

    def child() -> Any:
        patching.declare._outcomes.clear()
        plugin.register()
        return [[record.getMessage() for record in caplog.records], sorted({o.state for o in patching.report()})]

    lines, states = in_child(child)
    assert lines == ["sglang-gemma4: nothing is applied: this package supports SGLang 0.5.23, 0.6.0 is installed"]
    assert states == ["declined", "off"], "off: the switches that are not on by default"


def test_a_seam_of_two_parts_goes_in_once(upstream: types.ModuleType, in_child: InChild) -> None:
    """It stays in place for one of them where the other is off or fails, and its function asks which is on."""

    def child() -> Any:
        def both(result: int, *_: Any) -> int:
            return result + 1 * patching.is_on("one") + 10 * patching.is_on("ten")

        shared = Seam("upstream_g4.double", "after", both, mark("upstream_g4.double"), ("one", "ten"))
        broken = Seam("upstream_g4.halve", "after", plus_one, "another source")
        one, ten, fails = patch_of(shared, name="one"), patch_of(shared, name="ten"), patch_of(shared, broken, name="fails")
        found = [outcome.state for outcome in patching.apply([one, fails])]
        first = upstream.double(2)
        found += [outcome.state for outcome in patching.apply([ten])]
        return found, first, upstream.double(2)

    found, first, second = in_child(child)
    assert (found, first, second) == (["active", "failed", "active", "failed", "active"], 5, 15)
