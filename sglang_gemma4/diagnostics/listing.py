"""The patches and switches as text, JSON, the table of docs/switches.md and fingerprints, all made from the declarations."""

import difflib
import json
import os
import textwrap
from collections.abc import Sequence
from typing import Any

from sglang_gemma4 import patching, terminal
from sglang_gemma4.patches import load_all
from sglang_gemma4.patching import Part, hooks, supported, switches
from sglang_gemma4.patching.switches import Switch


def data() -> list[dict[str, Any]]:
    """One row for each patch, with the state its switch asks for in this environment."""
    return [
        {
            "name": patch.name,
            "switch": patch.switch,
            "group": switches.SWITCHES[patch.switch].group,
            "at": int(patch.at),
            "default": int(switches.SWITCHES[patch.switch].default),
            "on": patching.wanted(patch),
            "does": patch.does,
            "why": patch.why,
            "evidence": patch.evidence,
            "remove_when": patch.remove_when,
            "targets": [hook.target for hook in patch.hooks],
        }
        for patch in load_all()
    ]


def _groups() -> list[tuple[str, list[tuple[Switch, list[Part]]]]]:
    """Switches with their patches, by group."""
    patches = load_all()
    return [
        (group, [(s, [p for p in patches if p.switch == s.name]) for s in switches.SWITCHES.values() if s.group == group])
        for group in switches.GROUPS
    ]


def text(limit: int | None = None) -> str:
    """For a terminal of ``limit`` columns: the switches by group, each with its patches and whether they are on in this environment."""
    lines = []
    for group, members in _groups():
        lines.append(group)
        for switch, patches in members:
            lines += terminal.wrapped(f"  {switch.name} (default {int(switch.default)}): {switch.both}", limit, " " * 4)
            cells = [["   ", "on" if patching.wanted(patch) else "off", f"{patch.name:<20}", patch.does] for patch in patches]
            lines += terminal.table((), cells, limit=limit, gap=" ")
    note = f"{switches.WITHOUT}=PATCH,PATCH leaves single patches out. `sglang-gemma4 patches NAME` tells all of one."
    return "\n".join([*lines, *terminal.wrapped(note, limit, "  ")])


def _named(name: str) -> Part:
    """The patch of this name.

    Raises:
        ValueError: there is no such patch; the message names the nearest.
    """
    patches = {patch.name: patch for patch in load_all()}
    if name not in patches:
        near = difflib.get_close_matches(name, patches, 3) or [patch.name for patch in load_all() if patch.switch.endswith(name)]
        raise ValueError(f"there is no patch {name!r}; `sglang-gemma4 patches` lists them" + (f" ({', '.join(near)}?)" if near else ""))
    return patches[name]


def one_as_data(name: str) -> dict[str, Any]:
    """The row of one patch; ValueError if there is no patch of this name."""
    patch = _named(name)
    return next(row for row in data() if row["name"] == patch.name)


def one(name: str, limit: int | None = None) -> str:
    """Everything about one patch, for a terminal of ``limit`` columns; ValueError if there is no patch of this name."""
    patch = _named(name)
    switch = switches.SWITCHES[patch.switch]
    off = patching.why_off(patch, os.environ)
    at = f"{switch.name} (default {int(switch.default)}{'' if patch.at else ', applied at 0'}), group {switch.group}"
    fields = (
        ("does", patch.does),
        ("here", "on; what a server uses of it: sglang-gemma4 doctor --url URL" if off is None else f"off: {off}"),
        ("switch", at),
        ("alone", f"{switches.WITHOUT}={patch.name} leaves it out"),
        ("needs", " ".join(need.__doc__ or need.__name__ for need in patch.uses) or "Nothing: it is for every server."),
        ("why", patch.why),
        ("evidence", patch.evidence),
        ("until", patch.remove_when),
    )
    targets = [f"  {'changes' if not number else '':<9} {hooks.place(hook)}" for number, hook in enumerate(patch.hooks)]
    return "\n".join([patch.name, *(_wrapped(f"{label:<9} {value}", limit) for label, value in fields), *targets])


def _wrapped(line: str, limit: int | None) -> str:
    return textwrap.fill(
        line, width=min(limit or 110, 110), initial_indent="  ", subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False
    )


def markdown() -> str:
    """The tables of docs/switches.md: by group, each switch with its default, what it does and its patches."""
    parts = []
    for group, members in _groups():
        rows = [f"| `{s.name}` | {int(s.default)} | {s.both} | {_cells(patches)} |" for s, patches in members]
        head = [f"## {group[0].upper()}{group[1:]}", "", "| switch | default | what it does | patches |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts)


def _cells(patches: Sequence[Part]) -> str:
    return ", ".join(f"`{patch.name}`{'' if patch.at else ' (at 0)'}" for patch in patches) or "all"


def sources() -> str:
    """The text of ``known_sources.json`` for the installed SGLang: the places of all hooks by file, with the file's digest."""
    found: dict[str, dict[str, str]] = {}
    pinned: list[tuple[Any, supported.Pins]] = [(hook_registry_source(), "source")]
    pinned += [(hooks.target_of(hook), hooks.pins_of(hook)) for patch in load_all() for hook in patch.hooks]
    for target, pins in pinned:
        if (place := supported.place_of(target)) is not None:
            path, name = place
            known = found.setdefault(path, {"digest": supported.digest(path)})
            known[supported.known_name(name, pins)] = supported.source_fingerprint(target, pins)
    return json.dumps(found, indent=1, sort_keys=True)


def hook_registry_source() -> Any:
    """The function that ``importers.py`` checks in addition to the hooks."""
    from sglang.srt.plugins import hook_registry

    return hook_registry._propagate_patch


def fingerprints() -> tuple[str, bool]:
    """One line per hook with its declared and its installed fingerprint, and whether all agree."""
    lines, fits = [], True
    for patch in load_all():
        for hook in patch.hooks:
            try:
                actual = hooks.current_fingerprint(hook)
            except Exception as error:  # any import error of a broken SGLang is what this command is there to show
                actual = f"unreadable: {type(error).__name__}: {error}"
            same = actual == hook.fingerprint
            fits &= same
            lines.append(
                f"{'ok      ' if same else 'DIFFERS '} {patch.name:<18} {hook.target} declared {hook.fingerprint} installed {actual}"
            )
    return "\n".join(lines), fits
