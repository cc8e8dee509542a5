"""The operator's bounds on prompts beside running requests, read from the environment; without SGLang, so that a start can refuse them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_gemma4 import switches


@dataclass(frozen=True)
class Gap:
    """What may pass between two tokens of a running request: so many plain decode steps or so many seconds, whichever is more."""

    steps: float = 2.0
    seconds: float = 0.0


def most_tokens(environ: Mapping[str, str] = os.environ) -> int | None:
    """The most prompt tokens that the operator wants beside running requests, or None: measured times decide.

    Raises:
        SwitchError: it is not a positive number.
    """
    given = environ.get(switches.BESIDE_TOKENS, "").strip()
    if not given:
        return None
    if not given.isdecimal() or int(given) == 0:
        raise switches.SwitchError(f"{switches.BESIDE_TOKENS}={given} is not a positive number of tokens")
    return int(given)


def gap(environ: Mapping[str, str] = os.environ) -> Gap:
    """The operator's: a number of plain decode steps, such as 2, or a time, such as 50ms.

    Raises:
        SwitchError: it is neither a number greater than 1 nor a time.
    """
    given = environ.get(switches.BESIDE_GAP, "").strip()
    if not given:
        return Gap()
    timed = given.endswith("ms")
    try:
        found = float(given.removesuffix("ms"))
    except ValueError:
        found = 0.0
    if not (0.0 if timed else 1.0) < found < float("inf"):
        what = "a number of plain decode steps greater than 1, such as 2, or a time in milliseconds, such as 50ms"
        raise switches.SwitchError(f"{switches.BESIDE_GAP}={given} is not {what}")
    return Gap(seconds=found / 1000) if timed else Gap(steps=found)


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One message for each bound that is none."""
    found = []
    for read in (most_tokens, gap):
        try:
            read(environ)
        except switches.SwitchError as error:
            found.append(str(error))
    return found
