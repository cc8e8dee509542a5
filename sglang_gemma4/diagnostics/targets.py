"""``sglang-gemma4 patches --by-target``: each place of SGLang that our seams change, with its file, without importing SGLang."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.patches import load, load_all, names
from sglang_gemma4.patches.order import ORDER
from sglang_gemma4.patching.hooks import Entry, Seam
from sglang_gemma4.patching.source_tree import SourceTree, installed_folder


@dataclass(frozen=True)
class Place:
    """One function, class or registry key of SGLang, and the seams that change it, from the innermost to the outermost.

    ``file`` is relative to SGLang's folder and found by the target's dotted name. ``names`` are the target's names
    inside that file. ``parts`` are the parts of all seams. ``why`` says why several seams have this order.
    """

    file: str
    target: str
    key: str | None
    names: tuple[str, ...]
    seams: tuple[Seam | Entry, ...]
    parts: tuple[str, ...]
    why: str | None = None

    @property
    def written(self) -> str:
        """The name within its file, with a registry key in brackets."""
        name = ".".join(self.names)
        return name if self.key is None else f"{name}[{self.key!r}]"

    def row(self) -> dict[str, Any]:
        """The place as a JSON-ready dictionary."""
        seams = [{"parts": list(seam.parts), "kind": kind_of(seam), "function": function_of(seam)} for seam in self.seams]
        return {"file": self.file, "target": self.target, "key": self.key, "seams": seams, "why": self.why}


def kind_of(seam: Seam | Entry) -> str:
    """How a seam changes its place: the kind of a hook, or "entry" for a registry."""
    return seam.kind if isinstance(seam, Seam) else "entry"


def function_of(seam: Seam | Entry) -> str:
    """Our function, as "package.module:name"."""
    return _written(seam.function if isinstance(seam, Seam) else seam.value)


def _written(function: Callable[..., Any] | str) -> str:
    if isinstance(function, functools.partial):
        return f"{_written(function.func)}({', '.join(map(_argument, function.args))})"
    return function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__.replace('.<locals>', '')}"


def _argument(value: object) -> str:
    return _written(value) if callable(value) else repr(value)


def places(only: str | None = None) -> list[Place]:
    """Every place, or those of one part, sorted by file and name.

    Raises:
        ValueError: there is no part of this name.
    """
    if only is not None and only not in names():
        raise ValueError(f"there is no patch {only!r}; `sglang-gemma4 patches` lists them")
    found: dict[tuple[str, str | None], dict[int, Seam | Entry]] = {}
    parts: dict[tuple[str, str | None], list[str]] = {}
    for part in [load(only)] if only is not None else load_all():
        for seam in part.hooks:
            at = (seam.target, seam.key if isinstance(seam, Entry) else None)
            found.setdefault(at, {})[id(seam)] = seam
            parts.setdefault(at, []).append(part.name)
    folder = installed_folder()
    tree = SourceTree(folder) if folder else None
    made = [_place(tree, at, inner_first(seams.values()), tuple(dict.fromkeys(parts[at]))) for at, seams in found.items()]
    return sorted(made, key=lambda place: (place.file, place.names, place.key or ""))


def inner_first(seams: Iterable[Seam | Entry]) -> tuple[Seam | Entry, ...]:
    """The seams of one target, each before those that wrap it."""
    return tuple(sorted(seams, key=lambda seam: seam.turn if isinstance(seam, Seam) else 0))


def _place(tree: SourceTree | None, at: tuple[str, str | None], seams: tuple[Seam | Entry, ...], parts: tuple[str, ...]) -> Place:
    target, key = at
    where = tree.module_of(target) if tree else None
    file, left = where if where else ("not in the installed SGLang", tuple(target.split(".")))
    why = next((shared.why for shared in ORDER if shared.target == target), None) if len(seams) > 1 else None
    return Place(file, target, key, left, seams, parts, why)


def data(only: str | None = None) -> list[dict[str, Any]]:
    """All places for JSON."""
    return [place.row() for place in places(only)]


def text(only: str | None = None, limit: int | None = None) -> str:
    """For a terminal of ``limit`` columns: SGLang's file, below it each place, below that our seams with parts, kind and function."""
    lines: list[str] = []
    file = ""
    found = places(only)
    for place in found:
        if place.file != file:
            file = place.file
            lines.append(file)
        lines.append(f"  {place.written}")
        for seam in place.seams:
            kind, parts, function = f"    {kind_of(seam):<7}", _parts(seam.parts or place.parts), function_of(seam)
            whole = f"{kind} {parts:<32} {function}"
            fits = limit is None or len(whole) <= limit
            lines += [whole] if fits else [f"{kind} {function}", *terminal.wrapped(f"{'':<12}{parts}", limit, " " * 12)]
        if place.why:
            lines += terminal.wrapped(f"    order   {place.why}", limit, " " * 12) if limit else [f"    order   {place.why}"]
    seams = {id(seam) for place in found for seam in place.seams}
    return "\n".join([*lines, f"{len(seams)} seams on {len(found)} targets in {len({place.file for place in found})} files"])


def _parts(names: Sequence[str]) -> str:
    return ", ".join(names)
