"""The operator's bounds on prompts beside running requests, read from the environment; without SGLang, so that a start can refuse them."""

import os
from collections.abc import Mapping

from sglang_gemma4 import switches

GAP = 2.0


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


def gap(environ: Mapping[str, str] = os.environ) -> float:
    """Plain decode steps that may pass between two tokens of a running request.

    Raises:
        SwitchError: it is not a number greater than 1.
    """
    given = environ.get(switches.BESIDE_GAP, "").strip()
    try:
        found = float(given) if given else GAP
    except ValueError:
        found = 0.0
    if not 1.0 < found < float("inf"):
        raise switches.SwitchError(f"{switches.BESIDE_GAP}={given} is not a number of plain decode steps greater than 1")
    return found


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One message for each bound that is none."""
    found = []
    for read in (most_tokens, gap):
        try:
            read(environ)
        except switches.SwitchError as error:
            found.append(str(error))
    return found
