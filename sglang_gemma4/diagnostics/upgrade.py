"""``sglang-gemma4 patches --against``: compares another SGLang's source, without importing it, at the places our seams change."""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.diagnostics.targets import Place, places
from sglang_gemma4.patching.hooks import Entry, Seam, pins_of
from sglang_gemma4.patching.other_sglang import source_of
from sglang_gemma4.patching.source_tree import Definition, SourceTree, digest_of, installed_folder

VERDICTS = ("same", "changed", "moved", "gone")


@dataclass(frozen=True)
class Found:
    """The result of comparing one place with the other SGLang.

    ``at`` lists "file name" of each definition found. ``diff`` starts from the installed source. ``look`` lists the
    parts whose seam does not fit: for one function some seams may pin the source and some the signature.
    """

    place: Place
    verdict: str
    at: tuple[str, ...]
    diff: str
    look: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """The result as a JSON-ready dictionary."""
        return {**self.place.row(), "verdict": self.verdict, "at": list(self.at), "diff": self.diff, "look": list(self.look)}


def compare(wanted: str, only: str | None = None) -> list[Found]:
    """The result for each place that a part changes in another SGLang (see :func:`source_of`), or for those of one part.

    Raises:
        ValueError: there is no such SGLang, none is installed to compare with, or there is no such part.
    """
    folder = installed_folder()
    if folder is None:
        raise ValueError("SGLang is not installed, so there is no source to compare with: install the supported version")
    wanted_places = places(only)
    with source_of(wanted) as other:
        terminal.say(f"reading {len(wanted_places)} functions in both SGLangs, some 20 seconds")
        return [_found(place, other, SourceTree(folder)) for place in wanted_places]


def _found(place: Place, other: SourceTree, installed: SourceTree) -> Found:
    there, definitions = _definitions(place, other)
    unfit = [seam for seam in place.seams if not _fits(seam, there, definitions)]
    if not unfit:
        return Found(place, "same", (), "")
    look = tuple(part for part in place.parts if any(part in (seam.parts or place.parts) for seam in unfit))
    if definitions:
        return Found(place, "changed", _where(definitions), _diff(_definitions(place, installed)[1], definitions), look)
    # A registry that lacks only the entry, or was removed, has not moved anywhere.
    moved = other.elsewhere(place.names) if place.key is None else []
    return Found(place, "moved" if moved else "gone", _where(moved), _diff(_definitions(place, installed)[1], moved), look)


def _definitions(place: Place, tree: SourceTree) -> tuple[bool, list[Definition]]:
    if place.key is not None:
        return tree.registered(place.target, place.key)
    return False, tree.find(place.target)


def _fits(seam: Seam | Entry, there: bool, definitions: Sequence[Definition]) -> bool:
    """Whether the seam would find what it was written for; one of several conditional definitions is enough."""
    if seam.fingerprint == "absent":  # there is no value here without a GPU; what is relied on is that SGLang uses the name
        return there and (not definitions or seam.target.endswith(".__dict__"))
    return any(digest_of(each.pinned(pins_of(seam))) == seam.fingerprint for each in definitions)


def _where(definitions: Sequence[Definition]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{each.path} {each.name}" for each in definitions))


def _diff(before: Sequence[Definition], after: Sequence[Definition]) -> str:
    """Unified diff from the installed definition to the nearest one of the other SGLang."""
    if not before or not after:
        return ""
    old = before[0]
    near = [each for each in after if each.name == old.name] or list(after)
    new = near[0]
    return "".join(
        difflib.unified_diff(
            old.source.splitlines(keepends=True),
            new.source.splitlines(keepends=True),
            f"installed/{old.path} {old.name}",
            f"other/{new.path} {new.name}",
        )
    )


def counts(found: Iterable[Found]) -> dict[str, int]:
    """Number of places with each verdict."""
    counted = Counter(each.verdict for each in found)
    return {verdict: counted[verdict] for verdict in VERDICTS}


def by_part(found: Iterable[Found]) -> dict[str, dict[str, int]]:
    """Number of places with each verdict, for each part that has a place that is not "same"; the most changed part first."""
    table: dict[str, Counter[str]] = {}
    for each in found:
        for part in each.place.parts:
            table.setdefault(part, Counter())[each.verdict if part in each.look else "same"] += 1
    rows = {part: {verdict: counted[verdict] for verdict in VERDICTS} for part, counted in table.items()}
    differ = {part: sum(row.values()) - row["same"] for part, row in rows.items()}
    return {part: rows[part] for part in sorted(rows, key=lambda part: (-differ[part], part)) if differ[part]}


def summary(found: Sequence[Found]) -> str:
    """One line: the number of places by verdict, and of parts that have to be looked at."""
    said = ", ".join(f"{number} {verdict}" for verdict, number in counts(found).items())
    parts = {part for each in found for part in each.place.parts}
    return f"{len(found)} targets: {said}. {len(by_part(found))} of {len(parts)} parts to look at."


def data(found: Sequence[Found]) -> dict[str, Any]:
    """The whole result, JSON-ready."""
    return {"summary": counts(found), "parts": by_part(found), "targets": [each.row() for each in found]}


def text(found: Sequence[Found], diffs: bool = False) -> str:
    """By file, each target that is not the same, with its parts; then the parts and the summary line."""
    lines: list[str] = []
    file = ""
    for each in found:
        if each.verdict == "same":
            continue
        if each.place.file != file:
            file = each.place.file
            lines.append(file)
        lines.append(f"  {each.verdict:<8} {each.place.written:<60} {', '.join(each.look)}{_elsewhere(each)}")
        if diffs and each.diff:
            lines.append(each.diff)
    rows = by_part(found)
    width = max(map(len, rows), default=0)
    if rows:
        lines += ["", f"{'part':<{width}} " + " ".join(f"{verdict:>7}" for verdict in VERDICTS)]
        lines += [f"{part:<{width}} " + " ".join(f"{row[verdict]:>7}" for verdict in VERDICTS) for part, row in rows.items()]
        lines.append("")
    return "\n".join([*lines, summary(found)])


def _elsewhere(found: Found) -> str:
    shown = found.at[:3] if found.verdict == "moved" else ()
    return f"  now {'; '.join(shown)}{' ...' if len(found.at) > len(shown) else ''}" if shown else ""
