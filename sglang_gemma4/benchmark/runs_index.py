"""Makes ``runs/README.md``, the run folders by the question they answer, newest first, from ``runs/index.toml`` and the folders."""

import textwrap
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import records
from sglang_gemma4.benchmark.report import NAME as REPORT
from sglang_gemma4.benchmark.results import card_name, model_name, table

NAME = "README.md"
TABLE = "index.toml"
QUESTIONS = ("serving", "steps", "prefill", "images", "memory", "quality", "kernels", "other")
LONGEST = 160  # characters of the sentence on the gain
_KEYS = {"question", "bought", "superseded_by", "card", "model"}
_HEAD = f"""\
# Runs

What was measured, by question, newest first. "Nx" are medians; intervals and caveats are in each folder's `{REPORT}`. Made from
`{TABLE}` and the folders by `sglang-gemma4 bench --index runs`; do not edit."""


@dataclass(frozen=True)
class Row:
    """One run folder; ``began`` is its date and, where ``sglang-gemma4 bench`` measured it, the time."""

    name: str
    began: str
    question: str
    bought: str
    card: str
    model: str
    superseded_by: str | None


def write(runs: Path) -> Path:
    """Write ``runs/README.md`` and return its path. Raises as :func:`rows`."""
    path = runs / NAME
    path.write_text(markdown(rows(runs)))
    return path


def rows(runs: Path) -> list[Row]:
    """Every run folder under ``runs``, newest first. Folders that ``index.toml`` does not name are listed under "other".

    Raises:
        ValueError: ``runs`` is not a directory, or an entry of ``index.toml`` is wrong: no such folder, question or
            key, too long a sentence, superseded by a run that is missing or not newer.
    """
    if not runs.is_dir():
        raise ValueError(f"{runs} is not a directory; give the one that holds the run folders")
    told = tomllib.loads(path.read_text()) if (path := runs / TABLE).exists() else {}
    folders = [folder for folder in runs.iterdir() if folder.is_dir() and not folder.name.startswith((".", "_"))]
    found = {folder.name: _row(folder, told.get(folder.name, {})) for folder in folders}
    for name, entry in told.items():
        later = entry.get("superseded_by")
        for wrong, why in (
            (name not in found, f"there is no such folder; there are {', '.join(sorted(found))}"),
            (strange := sorted(set(entry) - _KEYS), f"{', '.join(strange)} is none of {', '.join(sorted(_KEYS))}"),
            (entry.get("question") not in QUESTIONS, f"question {entry.get('question')!r} is none of {', '.join(QUESTIONS)}"),
            (len(entry.get("bought", "")) > LONGEST, f"bought is longer than {LONGEST} characters; shorten it"),
            (later and later not in found, f"superseded_by {later!r} is no folder of {runs}"),
            (later in found and name in found and found[later].began <= found[name].began, f"superseded_by {later!r} is not newer"),
        ):
            if wrong:
                raise ValueError(f"{runs / TABLE}: {name}: {why}")
    return sorted(found.values(), key=lambda row: (row.began, row.name), reverse=True)


def markdown(found: Iterable[Row]) -> str:
    """The index of these rows: a section for each question, with superseded runs folded away at its end."""
    found, parts = list(found), [_HEAD]
    for question in QUESTIONS:
        own = [row for row in found if row.question == question]
        standing, old = [row for row in own if not row.superseded_by], [row for row in own if row.superseded_by]
        parts += [f"## {question.capitalize()}"] * bool(own) + [_table(standing)] * bool(standing)
        if old:
            parts += [f"<details><summary>{len(old)} superseded</summary>", _table(old), "</details>"]
    return "\n\n".join(parts) + "\n"


def first_sentence(text: str) -> str:
    """The first sentence of a report's first paragraph, or of the paragraph under its title, on one line."""
    lines = text.lstrip().splitlines()
    body = "\n".join(line for line in lines if not line.startswith("#")).lstrip().split("\n\n")[0]
    sentence, dot, _ = " ".join(body.split()).partition(". ")
    return sentence + dot.rstrip()


def _table(own: Iterable[Row]) -> str:
    cells = []
    for row in own:
        later = f" **Superseded by [{row.superseded_by}]({row.superseded_by}/{REPORT}).**" if row.superseded_by else ""
        cells.append([f"[{row.name}]({row.name}/)", row.bought + later, row.card, row.model])
    return table(["run", "result", "GPU", "model"], cells)


def _row(folder: Path, entry: dict[str, Any]) -> Row:
    report = folder / REPORT
    bought = entry.get("bought") or (first_sentence(report.read_text()) if report.exists() else f"no {REPORT}")
    header = next((record for record in reversed(records.read(folder / records.NAME)) if record.get("kind") == "header"), None)
    card, model, time = entry.get("card", "not said"), entry.get("model", "not said"), ""
    if header:
        weights = " (random weights)" if header.get("dummy_weights") else ""
        card, model, time = card_name(header), model_name(header) + weights, header["time"][10:]
    question, later = entry.get("question", "other"), entry.get("superseded_by")
    return Row(folder.name, folder.name[:10] + time, question, textwrap.shorten(bought, LONGEST, placeholder=" …"), card, model, later)
