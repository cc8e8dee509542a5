"""The patches and switches as text, JSON, README tables and fingerprints, all from the declarations."""

import textwrap
from typing import Any

from sglang_gemma4 import patching, switches
from sglang_gemma4.patches import load_all


def data() -> list[dict[str, Any]]:
    """One row for each patch, with the state its switch asks for in this environment."""
    return [
        {
            "name": patch.name,
            "switch": patch.switch,
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


def text() -> str:
    """For a terminal: what each patch does, why, and how to turn it off."""
    blocks = []
    for row in data():
        state = "on" if row["on"] else "off"
        asked = row["switch"] if row["at"] else f"applied at {row['switch']}=0"
        head = f"{row['name']} ({state}; {asked}, default {row['default']})"
        fields = (
            ("does", row["does"]),
            ("why", row["why"]),
            ("evidence", row["evidence"]),
            ("until", row["remove_when"]),
            ("changes", ", ".join(row["targets"])),
        )
        lines = [_wrapped(f"{name + ':':<9} {value}") for name, value in fields]
        blocks.append("\n".join([head, *lines]))
    general = [switch for switch in switches.SWITCHES.values() if switch.name not in {row["switch"] for row in data()}]
    blocks.append(
        "\n".join(["switches of the whole package", *(_wrapped(f"{s.name} (default {int(s.default)}): {s.meaning}") for s in general)])
    )
    return "\n\n".join(blocks)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, width=110, initial_indent="  ", subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False)


def markdown() -> str:
    """The README's switch table: every switch, its patches, default and meaning."""
    names: dict[str, list[str]] = {}
    for patch in load_all():
        names.setdefault(patch.switch, []).append(f"`{patch.name}`" if patch.at else f"`{patch.name}` (at 0)")
    rows = [f"| `{s.name}` | {int(s.default)} | {', '.join(names.get(s.name, ['all']))} | {s.both} |" for s in switches.SWITCHES.values()]
    return "\n".join(["| switch | default | patch | what it does |", "| --- | --- | --- | --- |", *rows])


def fingerprints() -> tuple[str, bool]:
    """Every hook's declared fingerprint beside that of the installed SGLang, and whether all agree."""
    lines, fits = [], True
    for patch in load_all():
        for hook in patch.hooks:
            try:
                actual = patching.current_fingerprint(hook)
            except Exception as error:  # any import error of a broken SGLang is what this command is there to show
                actual = f"unreadable: {type(error).__name__}: {error}"
            same = actual == hook.fingerprint
            fits &= same
            lines.append(
                f"{'ok      ' if same else 'DIFFERS '} {patch.name:<18} {hook.target} declared {hook.fingerprint} installed {actual}"
            )
    return "\n".join(lines), fits
