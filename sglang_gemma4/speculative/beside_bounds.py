"""The operator's bounds on prompts beside running requests, read from the environment; without SGLang, so that a start can refuse them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_gemma4.patching import switches


@dataclass(frozen=True)
class Gap:
    """What may pass between two tokens of a running request: so many plain decode steps or so many seconds, whichever is more.

    ``queued``: the seconds of one that runs beside three that wait, say, are four times as many, but at most so many times: what takes the
    few longer takes the many less. 1: the seconds are for all.
    """

    steps: float = 2.0
    seconds: float = 0.0
    queued: float = 1.0


LATENCY = Gap(seconds=0.050, queued=4.0)
"""50 ms, which few notice, hold a joined step of 2,048 rows of 26B-A4B in 4 bits on an H200, and four times as many a decode step and
8,192 tokens of prompts alone (``runs/2026-11-29-26b-h200-int4-gaps``, ``runs/2026-11-29-26b-h200-auto``)."""
BALANCED = Gap(seconds=0.150)
"""The default, by the GPU's clock. 8,192 prompt tokens and a decode step of 26B-A4B in bfloat16 take about that long on an H200. A mixed
load then had earlier first tokens and shorter pauses than on vLLM (``runs/2026-12-01-26b-h200-gap150``; raw lines are lost)."""
POLICIES = {"latency": LATENCY, "balanced": BALANCED, "throughput": BALANCED, "": BALANCED}
"""Of the words in :data:`switches.POLICY_WORDS`. ``throughput`` differs where prompts go in turn (:func:`takes_turns`)."""


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
    """The operator's: a number of plain decode steps, such as 2, a time, such as 50ms, or a word; ``balanced`` is the default.

    Raises:
        SwitchError: it is neither a number greater than 1 nor a time nor one of the words.
    """
    given = environ.get(switches.BESIDE_GAP, "").strip()
    if given in POLICIES:
        return POLICIES[given]
    timed = given.endswith("ms")
    try:
        found = float(given.removesuffix("ms"))
    except ValueError:
        found = 0.0
    if not (0.0 if timed else 1.0) < found < float("inf"):
        words = ", ".join(switches.POLICY_WORDS)
        what = f"{words}, a time in milliseconds, such as 50ms, or a number of plain decode steps above 1, such as 2"
        raise switches.SwitchError(f"{switches.BESIDE_GAP}={given} is not {what}")
    return Gap(seconds=found / 1000) if timed else Gap(steps=found)


def takes_turns(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a decode step goes between two prefills of a model whose prompts go in turn: unless ``throughput`` is asked for.

    E4B's mix on an H200 has pauses of 94 ms at p99 with it and 181 without, for 6,982 and 7,502 tokens/s
    (``runs/2026-12-01-e4b-h200-turns``).
    """
    return environ.get(switches.BESIDE_GAP, "").strip() != "throughput"


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One message for each bound that is none."""
    found = []
    for read in (most_tokens, gap):
        try:
            read(environ)
        except switches.SwitchError as error:
            found.append(str(error))
    return found
