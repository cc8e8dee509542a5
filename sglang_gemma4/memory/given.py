"""Environment variables about the server's memory. Read without SGLang, so that a start can reject bad values."""

import os
from collections.abc import Mapping

from sglang_gemma4.patching import switches

SHORTEST, LONGEST = 16, 2**20
"""Range of tokens of a typical request: below, any split of the pools is the same; above, no Gemma 4 has the context."""

AUTO = "auto"
MOST_GIB = 96


def request_tokens(environ: Mapping[str, str] = os.environ) -> int | None:
    """Tokens of a typical request, prompt and answer together, or None if the operator does not say.

    Raises:
        SwitchError: the value is not a whole number from :data:`SHORTEST` to :data:`LONGEST`.
    """
    given = environ.get(switches.REQUEST_TOKENS, "").strip()
    if not given:
        return None
    if not given.isdecimal() or not SHORTEST <= int(given) <= LONGEST:
        raise switches.SwitchError(
            f"{switches.REQUEST_TOKENS}={given} is not a whole number of tokens from {SHORTEST} to {LONGEST}; give the prompt and the "
            "answer of a typical request together, for example 8192, or unset it"
        )
    return int(given)


def reserve_gib(environ: Mapping[str, str] = os.environ) -> float | str | None:
    """GiB to keep beside weights and KV; :data:`AUTO`: as ``memory/reserve.py`` calculates; None: by SGLang's rule.

    Raises:
        SwitchError: the value is neither :data:`AUTO` nor a number above 0 and up to :data:`MOST_GIB`.
    """
    given = environ.get(switches.RESERVE_GIB, "").strip().lower()
    if given in ("", AUTO):
        return given or None
    try:
        found = float(given)
    except ValueError:
        found = 0.0
    if not 0 < found <= MOST_GIB:
        raise switches.SwitchError(
            f"{switches.RESERVE_GIB}={given} is neither {AUTO} nor a number of GiB above 0 and up to {MOST_GIB}; give {AUTO} to have it "
            "calculated, or unset it for SGLang's rule"
        )
    return found


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One message for each variable whose value is invalid."""
    found = []
    for read in (request_tokens, reserve_gib):
        try:
            read(environ)
        except switches.SwitchError as error:
            found.append(str(error))
    return found
