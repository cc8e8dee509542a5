"""The file of one evaluation: JSON lines, appended as answers arrive, so that a killed run can be continued.

``header``   first line
    ``eval`` ("mmlu", "colors", "text") · ``time`` · ``url`` · ``model`` · ``questions`` · ``concurrency``
    · ``dataset`` {``name``, ``why``, …} · ``evaluator`` {``name``, ``version``, …}
    · ``server`` {``sglang``, ``sglang_gemma4``, ``patches``, ``switches``, ``settings``}
    · ``server_accept_length`` (the server's own mean before the run, or None)
``row``      one question
    ``id`` · ``hash`` (of what was sent) · ``prompt`` · ``expected`` · ``text`` · ``choice`` · ``correct`` · ``finish_reason``
    · ``token_ids``, ``tokens`` and ``logprobs`` of what was generated · ``runner_up`` [[token id, log-probability], …]
    · ``completion_tokens`` · ``verify_steps`` and ``correct_drafts`` (None without speculative decoding) · ``seconds``
``row``      one window of a text
    ``id`` · ``hash`` · ``token_ids`` · ``logprobs`` (None: not scored in this window)
``summary``  last line of a finished run: what the command printed
"""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark.records import read

Record = dict[str, Any]

PASSING = ("kind", "time", "url", "server_accept_length")
"""Header fields that may differ between a run and its continuation."""


@dataclass
class Run:
    """One file. ``summary`` is None while the run is unfinished."""

    path: Path
    header: Record
    rows: list[Record]
    summary: Record | None


def load(path: Path) -> Run:
    """Read a run; an incomplete last line is ignored.

    Raises:
        ValueError: the file is absent, is not JSON lines, does not begin with a header, or has an id twice.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not there; `sglang-gemma4 eval … --out {path}` writes it")
    records = read(path)
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise ValueError(f"{path}:{number} is not a JSON object; expected a file of `sglang-gemma4 eval … --out`")
    if not records or records[0].get("kind") != "header" or "eval" not in records[0]:
        raise ValueError(f"{path} does not begin with the header of an evaluation; expected a file of `sglang-gemma4 eval … --out`")
    rows = [record for record in records if record.get("kind") == "row"]
    ids = [row.get("id") for row in rows]
    if len(set(ids)) < len(ids) or None in ids:
        raise ValueError(f"{path} holds rows without an id or twice the same id; was it put together from several runs?")
    last = records[-1] if records[-1].get("kind") == "summary" else None
    return Run(path, records[0], rows, last)


def finished(path: Path) -> Run:
    """:func:`load` of a finished run.

    Raises:
        ValueError: as :func:`load`, or the run is unfinished.
    """
    run = load(path)
    if run.summary is None:
        raise ValueError(f"{path} is unfinished ({len(run.rows)} rows, no summary); run the same eval with the same --out to complete it")
    return run


def start(path: Path, header: Record) -> set[str]:
    """Begin ``path`` with ``header``, or continue it; returns the ids that it already holds.

    Raises:
        ValueError: ``path`` holds another run.
    """
    header = {"kind": "header", "time": datetime.now(UTC).isoformat(timespec="seconds"), **header}
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        append(path, header)
        return set()
    run = load(path)
    plain = json.loads(json.dumps(header))
    other = [name for name in {**plain, **run.header} if name not in PASSING and plain.get(name) != run.header.get(name)]
    if other:
        raise ValueError(f"{path} holds another run (different: {', '.join(other)}); choose another --out, or remove it")
    # Rewritten without summary and incomplete last line, so that rows can be appended.
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(record) + "\n" for record in (run.header, *run.rows)))
    os.replace(part, path)
    return {row["id"] for row in run.rows}


def append(path: Path, record: Record) -> None:
    """Append one line."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
