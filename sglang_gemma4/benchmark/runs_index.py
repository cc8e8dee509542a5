"""``runs/README.md``: one row per run folder, made from the reports and raw lines that lie in them."""

import re
from pathlib import Path

from sglang_gemma4.benchmark import records
from sglang_gemma4.benchmark.records import Record
from sglang_gemma4.benchmark.report import NAME as REPORT
from sglang_gemma4.benchmark.results import model_name

NAME = "README.md"
_MODELS = re.compile(r"\b(?:tiny-)?(?:26B-A4B|E2B|E4B|31B)\b", re.IGNORECASE)
_CARDS = re.compile(r"\bNVIDIA (?:[A-Z]+\d+\w*|(?:GeForce )?RTX [\w ]*\d+)")
_SENTENCE = re.compile(r"(.+?[.!?])(?=\s+[^a-z\s]|\s*$)", re.DOTALL)
_UNKNOWN = "not said"


def write(runs: Path) -> Path:
    """Write ``runs/README.md``; its path."""
    path = runs / NAME
    path.write_text(markdown(runs))
    return path


def markdown(runs: Path) -> str:
    """The index of the run folders under ``runs``, by name, which begins with the date.

    GPU and model come from the header of ``raw.jsonl``; a report written by hand is searched for their names.

    Raises:
        ValueError: ``runs`` is not a directory.
    """
    if not runs.is_dir():
        raise ValueError(f"{runs} is not a directory; give the one that holds the run folders")
    rows = [_row(folder) for folder in sorted(runs.iterdir()) if folder.is_dir() and not folder.name.startswith((".", "_"))]
    head = "| run | what was bought | GPU | model | files |\n| --- | --- | --- | --- | --- |"
    return "\n".join(
        ["# Runs", "", "Each row is the first sentence of the folder's report. Made from the folders; do not edit.", "", head, *rows, ""]
    )


def first_sentence(text: str) -> str:
    """The first sentence of a report's first paragraph, or of the paragraph under its title, on one line."""
    paragraphs = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    body = next((lines for block in paragraphs if (lines := re.sub(r"^#+ .*$", "", block, flags=re.MULTILINE).strip())), "")
    line = " ".join(body.split())
    found = _SENTENCE.match(line)
    return found.group(1) if found else line


def _row(folder: Path) -> str:
    report = folder / REPORT
    text = report.read_text() if report.exists() else None
    bought = first_sentence(text) or f"{REPORT} is empty" if text is not None else f"no {REPORT}"
    header = _header(folder)
    if header:
        count = int(header["device"].get("count") or 1)
        gpu = f"{count} x {header['device']['name']}" if count > 1 else str(header["device"]["name"])
        model = model_name(header) + (" (dummy weights)" if header.get("dummy_weights") else "")
    else:
        gpu = ", ".join(dict.fromkeys(_CARDS.findall(text or ""))) or _UNKNOWN
        model = ", ".join(dict.fromkeys(_MODELS.findall(text or ""))) or _UNKNOWN
    files = ", ".join(
        f"[{file.name}]({folder.name}/{file.name})" for file in sorted(folder.iterdir()) if not file.name.startswith((".", "_"))
    )
    cells = [f"[{folder.name}]({folder.name}/{REPORT})" if text is not None else folder.name, bought, gpu, model, files]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _header(folder: Path) -> Record | None:
    """The last header line of the folder's raw lines, if this package wrote them."""
    found = [record for record in records.read(folder / records.NAME) if record.get("kind") == "header"]
    return found[-1] if found else None
