"""The operator's limits on mixed batches, read from the environment; without SGLang, so that a start can refuse wrong
values."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_gemma4.patching import switches


@dataclass(frozen=True)
class Gap:
    """Longest time between two tokens of a running request: ``steps`` plain decode steps or ``seconds``, whichever is
    longer.

    ``queued``: where more requests wait than run, ``seconds`` grow with (running + waiting) / running, at most
    ``queued`` times: delaying the few lets the many start sooner. With 1 they never grow.
    """

    steps: float = 2.0
    seconds: float = 0.0
    queued: float = 1.0


LATENCY = Gap(seconds=0.050, queued=4.0)
"""50 ms, which few people notice, is enough for a mixed batch of 2,048 rows of 26B-A4B in 4 bits on an H200. Four
times as much is enough for a decode step and 8,192 prompt tokens alone (``runs/2026-11-29-26b-h200-int4-gaps``,
``runs/2026-11-29-26b-h200-auto``)."""
BALANCED = Gap(seconds=0.150)
"""The default, by the GPU's clock. 8,192 prompt tokens and a decode step of 26B-A4B in bfloat16 take about that long on an H200. A mixed
load then had earlier first tokens and shorter pauses than on vLLM (``runs/2026-12-01-26b-h200-gap150``; raw lines are lost)."""
POLICIES = {"latency": LATENCY, "balanced": BALANCED, "throughput": BALANCED, "": BALANCED}
"""Limits by the words in :data:`switches.POLICY_WORDS`. ``throughput`` differs only where prefills alternate
(:func:`takes_turns`)."""


def most_tokens(environ: Mapping[str, str] = os.environ) -> int | None:
    """The operator's limit on prompt tokens in a mixed batch, or None: measured times decide.

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
    """The operator's limit: a number of plain decode steps, such as 2, a time, such as 50ms, or a word; ``balanced``
    is the default.

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
    """Whether a decode step runs between two prefills of a model whose prefills alternate: yes unless ``throughput``
    is asked for.

    On E4B's mixed load on an H200 it halves the p99 inter-token latency (94 ms vs 181 ms) and costs 7 % of the
    throughput (``runs/2026-12-01-e4b-h200-turns``).
    """
    return environ.get(switches.BESIDE_GAP, "").strip() != "throughput"


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One message for each limit that is invalid."""
    found = []
    for read in (most_tokens, gap):
        try:
            read(environ)
        except switches.SwitchError as error:
            found.append(str(error))
    return found
