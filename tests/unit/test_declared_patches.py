"""Every declared patch against the installed SGLang: does it fit, does its switch switch, is stock stock."""

import importlib
import itertools
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.diagnostics import listing
from sglang_gemma4.patches import MODULES, load, load_all, names
from sglang_gemma4.patching import Entry, Part, Seam, hooks, supported, switches
from sglang_gemma4.patching.placement import hook_is_in_chain
from tests.harness.child import InChild

ROOT = Path(__file__).parents[2]
PATCHES = load_all()
ALL_OUR = {patch.switch for patch in PATCHES}
ALL_ON = dict.fromkeys(ALL_OUR, "1")
AT = {patch.switch: patch.at for patch in PATCHES}
V1 = {switches.MTP_V2: "0"}


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    """Import every target once in this process; children inherit it."""
    importlib.import_module("sglang.srt.entrypoints.http_server")
    for patch in PATCHES:
        for hook in patch.hooks:
            pkgutil.resolve_name(hook.target)


def is_placed(hook: Seam | Entry) -> bool:
    """Whether SGLang now reaches our hook: looked up afresh, not taken from the report."""
    current = pkgutil.resolve_name(hook.target)
    if isinstance(hook, Entry):
        value = current.get(hook.key)
        return value is not None and supported.fingerprint(value) != hook.fingerprint
    function = pkgutil.resolve_name(hook.function) if isinstance(hook.function, str) else hook.function
    return hook_is_in_chain(current, function)


def applied_with(environ: dict[str, str]) -> tuple[dict[str, str], dict[str, list[bool]]]:
    """States by patch name, and for each patch whether each hook is in place."""
    states = {o.name: f"{o.state} {o.reason}".strip() for o in patching.apply(PATCHES, environ)}
    return states, {patch.name: [is_placed(hook) for hook in patch.hooks] for patch in PATCHES}


def for_its_parts(patch: Part, on: set[str]) -> list[bool]:
    """Of each of the patch's seams whether it is to be in place: for this part, or for another that shares it."""
    return [not on.isdisjoint(seam.parts) for seam in patch.hooks]


def test_modules_and_switches_correspond() -> None:
    assert [patch.name for patch in PATCHES] == list(names())
    modules = {path.stem for path in (ROOT / "patches").glob("*.py")} - {"__init__", "order"}
    assert modules == set(MODULES), "every module of patches/ is in MODULES"
    for name in MODULES:
        module = importlib.import_module(f"sglang_gemma4.patches.{name}")
        assert {part for seam in module.SEAMS for part in seam.parts} == {part.name for part in module.PARTS}, name
    assert len(names()) == len(set(names()))
    assert set(switches.SWITCHES) - ALL_OUR == {switches.MASTER, switches.STRICT}
    for patch in PATCHES:
        assert 0 < len(patch.does) <= 120, patch.name
        assert patch.does.endswith("."), patch.name
        assert patch.why, patch.name
        assert patch.evidence, patch.name
        assert patch.remove_when, patch.name
        assert patch.cpu_engine == (patch.switch == switches.CPU_ENGINE)
        assert patch.at == AT[patch.switch] == (not switches.SWITCHES[patch.switch].zero), "a switch asks for its patches at one value"


@pytest.mark.parametrize(("patch", "hook"), [(p, h) for p in PATCHES for h in p.hooks], ids=lambda x: getattr(x, "target", None) or x.name)
def test_fingerprint_is_that_of_the_installed_sglang(patch: Part, hook: Seam | Entry) -> None:
    assert hooks.current_fingerprint(hook) == hook.fingerprint


@pytest.mark.parametrize(
    ("environ", "absent", "state"),
    [({}, ["worker_v1"], "off"), (V1, ["frozen_chain", "draft_argmax", "draft_graph"], "declined")],
    ids=["v2", "v1"],
)
def test_everything_applies_and_is_in_place(environ: dict[str, str], absent: list[str], state: str, in_child: InChild) -> None:
    """Of the worker v1 and the chain that it checks, a process has one."""
    states, placed = in_child(lambda: applied_with(ALL_ON | environ))
    for name in absent:
        assert states.pop(name).startswith(f"{state} {switches.MTP_V2}={int(not environ)}")
        own = [is_placed for is_placed, hook in zip(placed.pop(name), load(name).hooks, strict=True) if len(hook.parts) == 1]
        assert not any(own), "what other parts share is in place for them"
    assert set(states.values()) == {"active"}
    assert all(all(found) for found in placed.values()), placed


SWITCHED = sorted(ALL_OUR - {switches.MTP_V2})  # its two values: the test before this one
TURNED_OFF = [
    {switch for number, switch in enumerate(SWITCHED) if (number >> bit) % 2 == value}
    for bit in range((len(SWITCHED) - 1).bit_length())
    for value in (0, 1)
]
"""Halves of the switches by the bits of their numbers: of any two, one half holds the first and not the second."""


def test_any_two_switches_are_told_apart_and_each_asks_for_its_own_patches() -> None:
    for one, other in itertools.permutations(SWITCHED, 2):
        assert any(one in off and other not in off for off in TURNED_OFF)
    for switch in SWITCHED:
        unwanted = {patch.switch for patch in PATCHES if patch.at and not patching.wanted(patch, ALL_ON | {switch: "0"})}
        assert unwanted == {switch}


@pytest.mark.parametrize("off", TURNED_OFF, ids=lambda off: f"{len(off)} from {min(off)}")
def test_each_switch_switches_its_own_patches_and_no_other(off: set[str], in_child: InChild) -> None:
    states, placed = in_child(lambda: applied_with(ALL_ON | dict.fromkeys(off, "0")))
    for patch in PATCHES:
        if patch.switch != switches.MTP_V2:
            asked = patch.switch not in off
            assert states[patch.name] == ("active" if asked else f"off {patch.switch}=0")
            assert placed[patch.name] == for_its_parts(patch, {one.name for one in PATCHES if one.switch not in off}), patch.name


def test_a_patch_s_name_leaves_out_that_patch_and_no_other() -> None:
    for patch in PATCHES:
        if patch.at:
            assert [p.name for p in PATCHES if p.at and not patching.wanted(p, ALL_ON | {switches.WITHOUT: patch.name})] == [patch.name]


@pytest.mark.parametrize("half", [0, 1])
def test_patches_left_out_by_name_are_not_in_place(half: int, in_child: InChild) -> None:
    out = [patch.name for number, patch in enumerate(PATCHES) if number % 2 == half]
    _, placed = in_child(lambda: applied_with(ALL_ON | {switches.WITHOUT: ", ".join(out)}))
    for patch in PATCHES:
        if patch.switch != switches.MTP_V2:
            assert placed[patch.name] == for_its_parts(patch, set(names()) - set(out)), patch.name


def end_of_a_start(in_child: InChild, variable: str, value: str) -> Any:
    """What a start with this in the environment ends with."""

    def child() -> Any:
        os.environ[variable] = value
        from sglang_gemma4.plugin import register

        try:
            register()
        except SystemExit as exit_:
            return str(exit_)
        return "no exit"

    return in_child(child)


def test_a_patch_that_is_left_out_must_exist(in_child: InChild) -> None:
    said = "sglang-gemma4: SGLANG_GEMMA4_WITHOUT: tripel_norm is no patch; `sglang-gemma4 patches` lists them"
    assert end_of_a_start(in_child, switches.WITHOUT, "triple_norm, tripel_norm") == said


def test_master_switch_leaves_stock(in_child: InChild) -> None:
    def child() -> Any:
        os.environ["SGLANG_GEMMA4"] = "0"
        os.environ.pop("SGLANG_GEMMA4_CPU", None)
        from sglang.srt.plugins import load_plugins
        from sglang.srt.plugins.hook_registry import HookRegistry

        load_plugins()
        ours = [target for target, hooks in HookRegistry._hooks.items() for hook in hooks if hook[2].plugin_name == "sglang_gemma4"]
        return [ours, [is_placed(hook) for patch in PATCHES for hook in patch.hooks], len(patching.report())]

    assert in_child(child) == [[], [False] * sum(len(patch.hooks) for patch in PATCHES), 0]


def test_sglang_itself_loads_the_plugin(in_child: InChild) -> None:
    def child() -> Any:
        os.environ.update(ALL_ON)
        from sglang.srt.plugins import load_plugins

        load_plugins()
        return [o.state for o in patching.report()]

    assert in_child(child) == ["active" if patch.at else "off" for patch in PATCHES]


def test_a_bad_switch_value_ends_the_process_with_one_line(in_child: InChild) -> None:
    def child() -> Any:
        os.environ["SGLANG_GEMMA4_TOOL_GRAMMAR"] = "perhaps"
        from sglang.srt.plugins import load_plugins

        try:
            load_plugins()
        except SystemExit as exit_:
            return str(exit_)
        return "no exit"

    assert in_child(child) == (
        "sglang-gemma4: SGLANG_GEMMA4_TOOL_GRAMMAR='perhaps' is not a boolean; set it to 1 or 0, or unset it (default 1)"
    )


def test_strict_ends_the_process_at_a_patch_that_does_not_fit(in_child: InChild) -> None:
    def child() -> Any:
        from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2

        FrozenKVMTPWorkerV2.forward_batch_generation = lambda self: None  # as another SGLang or another plugin may have it
        os.environ.update(SGLANG_GEMMA4_STRICT="1", SGLANG_GEMMA4_CPU="1")
        from sglang_gemma4.plugin import register

        try:
            register()
        except SystemExit as exit_:
            return str(exit_)
        return "no exit"

    said = in_child(child)
    assert re.match(r"sglang-gemma4: patch sync_mtp cannot be applied: .* \(SGLANG_GEMMA4_STRICT=1\)$", said), said


@pytest.mark.parametrize(
    "statement", ["import sglang_gemma4", "from sglang_gemma4.diagnostics import listing; listing.text()", "import sglang_gemma4.cli"]
)
def test_importing_loads_neither_torch_nor_sglang(statement: str) -> None:
    program = f"import sys; {statement}; print([m for m in ('torch', 'sglang', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_tables_of_the_docs_are_the_generated_ones() -> None:
    written = (ROOT / "docs" / "switches.md").read_text()
    assert listing.markdown() in written, "run `sglang-gemma4 patches --markdown` and put it into docs/switches.md"


def test_lists_agree() -> None:
    data = listing.data()
    assert [row["name"] for row in data] == list(names())
    text = listing.text()
    assert all(f" {row['name']} " in text and row["does"] in text for row in data)
    assert all(name in text for name in switches.SWITCHES)
    for row in data:
        told = " ".join(listing.one(row["name"]).split())
        assert all(" ".join(row[key].split()) in told for key in ("does", "why", "evidence", "remove_when", "switch")), row["name"]
        assert all(target in told for target in row["targets"])
    with pytest.raises(ValueError, match=r"there is no patch 'tripple_norm'; .* \(triple_norm"):
        listing.one("tripple_norm")
    assert json.loads(json.dumps(data)) == data
