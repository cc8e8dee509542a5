"""The state of every patch of a server, as data and as text, for the banner, /server_info, /metrics and doctor."""

import logging
from collections.abc import Sequence
from typing import Any

import sglang_gemma4
from sglang_gemma4 import patching, terminal
from sglang_gemma4.patching import this_server
from sglang_gemma4.patching.supported import installed_sglang

logger = logging.getLogger(__name__)

STATES: tuple[patching.State, ...] = ("active", "idle", "declined", "off", "failed")
"""Ascending: if two processes report different states of a patch, the later one here is the server's."""
PLANNED = "would apply"
"""The state that replaces "active" if there is no server that could use the patch."""
BANNER_LINES, LINE = 12, 500

Row = dict[str, Any]


def rows() -> list[Row]:
    """The patches of this process, JSON-ready: name, switch, does, state, reason, notes, facts.

    If this process belongs to a server whose model and flags are known, patches that this server does not use are
    "idle".
    """
    outcomes = patching.report()
    try:
        server = this_server.of_this_process() if outcomes else None
        if server is not None:
            patching.find_idle(server)
    except Exception as error:  # a model or flags that no one foresaw: a report must not end a server
        logger.warning("sglang-gemma4: which patches are idle is not known: %s: %s", type(error).__name__, error)
    return as_data(outcomes)


def as_data(outcomes: Sequence[patching.Outcome]) -> list[Row]:
    """JSON-ready rows of outcomes; a patch that left every call so far to SGLang is "declined", with its notes as the reason."""
    return [_row(outcome) for outcome in outcomes]


def _row(outcome: patching.Outcome) -> Row:
    row = vars(outcome) | {"notes": list(outcome.notes), "facts": list(outcome.facts)}
    if row.pop("served") is False and outcome.state == "active":
        row |= {"state": "declined", "reason": "; ".join(outcome.notes)}
    return row


def planned(rows: Sequence[Row]) -> list[Row]:
    """The rows of a process that serves no model: what a server would apply; its model, GPU and flags may leave some of them idle."""
    return [row | {"state": PLANNED} if row["state"] == "active" else row for row in rows]


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Number of patches in each state; without a server :data:`PLANNED` replaces "active" and "idle"."""
    without_server = any(row["state"] == PLANNED for row in rows)
    states = [PLANNED, *(state for state in STATES if state not in ("active", "idle"))] if without_server else STATES
    return {state: sum(row["state"] == state for row in rows) for state in states}


def merged(scheduler: Sequence[Row], frontend: Sequence[Row]) -> list[Row]:
    """One row per patch for the whole server: the HTTP process resolves flags, the scheduler's process builds the model."""
    front = {row["name"]: row for row in frontend}
    found = []
    for row in scheduler or frontend:
        other = front.get(row["name"], row)
        stronger = max(row, other, key=lambda each: STATES.index(each["state"]))
        told = {key: list(dict.fromkeys([*row.get(key, ()), *other.get(key, ())])) for key in ("notes", "facts")}
        found.append({**stronger, **told})
    return found


def summary(rows: Sequence[Row]) -> str:
    """One line: the number of patches in each state."""
    return ", ".join(f"{number} {state}" for state, number in counts(rows).items())


def table(rows: Sequence[Row], limit: int | None = None) -> list[str]:
    """Aligned lines for each patch, grouped by state; below each what it chose here, and the cases that it leaves to SGLang.

    Args:
        limit: columns of the terminal.
    """
    cells = []
    for state in counts(rows):
        for row in rows:
            if row["state"] != state:
                continue
            cells.append([state, row["name"], row["reason"] or row["does"]])
            if state in ("active", PLANNED):
                cells += [["", "", fact] for fact in row.get("facts", ())]  # a live server may be older than this doctor
                cells += [["", "", f"not for: {note}"] for note in row["notes"]]
    return terminal.table((), cells, limit=limit)


def opening() -> str:
    """The line that a server logs as it starts: that the package is active, and what does not fit this SGLang."""
    outcomes = patching.report()
    failed = ", ".join(outcome.name for outcome in outcomes if outcome.state == "failed")
    placed = sum(outcome.state == "active" for outcome in outcomes)
    said = f"{placed} of {len(outcomes)} patches are in place{f'; FAILED: {failed}' if failed else ''}"
    return f"sglang-gemma4 {sglang_gemma4.__version__} on SGLang {installed_sglang()}: {said}; what they do here follows when it is ready"


def banner(rows: Sequence[Row], chosen: Sequence[str], url: str) -> str:
    """What a server logs once when it is ready, in at most :data:`BANNER_LINES` lines.

    Args:
        rows: the patches of the whole server.
        chosen: lines on pools, attention and draft (:func:`sglang_gemma4.diagnostics.chosen.lines`).
        url: the server's address for ``doctor --url``.
    """
    lines = [f"sglang-gemma4 is ready: {summary(rows)}"]
    for state in ("failed", "declined"):
        told = [f"{row['name']} ({row['reason']})" for row in rows if row["state"] == state]
        if told:
            lines.append(f"  {state}: {'; '.join(told)}")
    chosen_off = [row["name"] for row in rows if row["state"] == "off" and not row["reason"].endswith("is not set")]
    if chosen_off:
        lines.append(f"  switched off: {', '.join(chosen_off)}")
    lines += [f"  {line}" for line in chosen]
    lines += [f"  {fact}" for row in rows if row["state"] == "active" for fact in row["facts"]]
    where = f"  every patch: sglang-gemma4 doctor --url {url}; how to turn one off: docs/switches.md"
    left = len(lines) - (BANNER_LINES - 1)
    if left > 0:
        lines = [*lines[: BANNER_LINES - 2], f"  and {left + 1} lines more, in doctor"]
    return "\n".join([*(line if len(line) <= LINE else line[: LINE - 3] + "..." for line in lines), where])
