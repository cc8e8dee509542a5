"""The patch list of this process as text and as data: banner, /server_info and doctor all show this."""

from collections.abc import Sequence
from typing import Any

import sglang_gemma4
from sglang_gemma4 import patching
from sglang_gemma4.supported import installed_sglang

STATES: tuple[patching.State, ...] = ("active", "off", "declined", "failed")


def as_data(outcomes: Sequence[patching.Outcome]) -> list[dict[str, Any]]:
    """JSON-ready rows: name, switch, does, state, reason, notes, facts."""
    return [vars(outcome) | {"notes": list(outcome.notes), "facts": list(outcome.facts)} for outcome in outcomes]


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """One line: how many patches are in each state."""
    return ", ".join(f"{sum(row['state'] == state for row in rows)} {state}" for state in STATES)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One aligned line for each patch, grouped by state; facts and notes are indented below their patch."""
    width = max((len(row["name"]) for row in rows), default=0)
    lines = []
    for state in STATES:
        for row in rows:
            if row["state"] != state:
                continue
            said = row["reason"] or row["does"]
            lines.append(f"{state:<9} {row['name']:<{width}}  {said}")
            lines += [f"{'':<9} {'':<{width}}  {fact}" for fact in row.get("facts", ())]  # a live server may be older than this doctor
            lines += [f"{'':<9} {'':<{width}}  declined while running: {note}" for note in row["notes"]]
    return lines


def banner() -> str:
    """What a server says once when it starts."""
    rows = as_data(patching.report())
    head = f"sglang-gemma4 {sglang_gemma4.__version__} on SGLang {installed_sglang()}: {summary(rows)}"
    return "\n".join([head, *(f"  {line}" for line in table(rows))])
