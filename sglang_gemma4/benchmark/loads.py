"""The requests of a load: prompts as token ids, lengths, arrival times and turns, the same for every arm and drawn from a seed.

A *row* is one request, as JSON: ``ids`` (of the prompt; of a later turn only what the user adds), ``prompt`` and ``output`` (tokens in
all), ``at`` (milliseconds after the first arrival), and of a session ``session``, ``turn`` and ``think`` (seconds between the answer
before and this turn). Rows are in the order in which they are sent.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from sglang_gemma4.benchmark.workloads import TURNS, Workload

Row = dict[str, Any]

LOG_UNIFORM = ((50, 6000), (50, 600))  # tokens in and out; the peer's recipe
MIX_SEED = 7  # of the lengths of ``mix``, which are the same in every pass: the peer's recipe

# Lognormal with the median and the 90th percentile of openchat_sharegpt4 in table 2 of Sarathi-Serve (Agrawal et al., OSDI 2024): 1730 and
# 5696 tokens in (earlier turns included), 415 and 834 out. As there, requests of more than 8192 tokens are left out, here by drawing again.
SHAREGPT = ((1730, 5696), (415, 834))
SHAREGPT_LIMIT = (6656, 1536)
_P90 = 1.2815515655446004  # standard deviations at the 90th percentile

SYSTEM_PROMPTS, SYSTEM_TOKENS = 8, 1024  # a session begins with one of so many prompts that sessions share
USER_TOKENS, ANSWER_TOKENS = (20, 500), (50, 400)  # of each turn, log-uniform
THINK_SECONDS = 2.0  # mean of the exponential time between an answer and the next turn


def rows(workload: Workload, seed: int, vocabulary: Sequence[int]) -> list[Row]:
    """The requests of one pass, from ``workload``, ``seed`` and the token ids that prompts are made of; the same at every rate but for
    the arrival times, which are those of rate 1 divided by the rate."""
    words = random.Random(f"words {seed}")
    lengths = random.Random(MIX_SEED if workload.lengths == "log-uniform" and not workload.open_loop else f"lengths {seed}")
    arrivals = arrival_times(seed, workload.rate)
    if workload.lengths == "multi-turn":
        return _sessions(workload, words, lengths, arrivals, vocabulary)
    found = []
    for _ in range(workload.requests):
        tokens_in, tokens_out = _lengths(workload, lengths)
        ids = words.choices(vocabulary, k=tokens_in)
        found.append({"ids": ids, "prompt": tokens_in, "output": tokens_out, "at": next(arrivals)})
    return found


def arrival_times(seed: int, rate: float | None) -> Iterator[float]:
    """Milliseconds of a Poisson process of ``rate`` per second, the first at 0; None: all at 0."""
    gaps = random.Random(f"arrivals {seed}")
    now = 0.0
    while True:
        yield now
        now += 1000 * gaps.expovariate(1.0) / rate if rate else 0.0


def _lengths(workload: Workload, draw: random.Random) -> tuple[int, int]:
    """Tokens in and out of one request."""
    if not workload.lengths:
        return workload.input_tokens, workload.output_tokens
    if workload.lengths == "sharegpt-like":
        while True:
            tokens = [_lognormal(draw, *points) for points in SHAREGPT]
            if all(1 < number <= limit for number, limit in zip(tokens, SHAREGPT_LIMIT, strict=True)):
                break
    else:
        tokens = [_log_uniform(draw, *ends) for ends in LOG_UNIFORM]
    return _scaled(workload, *tokens)


def _scaled(workload: Workload, tokens_in: int, tokens_out: int) -> tuple[int, int]:
    """Smaller in a dry run, and cut to a warm-up's output."""
    return max(8, tokens_in // workload.scale), min(max(4, tokens_out // workload.scale), workload.output_tokens)


def _log_uniform(draw: random.Random, least: int, most: int) -> int:
    return int(math.exp(draw.uniform(math.log(least), math.log(most))))


def _lognormal(draw: random.Random, median: float, p90: float) -> int:
    return int(median * math.exp(draw.gauss(0.0, math.log(p90 / median) / _P90)))


def _sessions(
    workload: Workload, words: random.Random, lengths: random.Random, arrivals: Iterator[float], vocabulary: Sequence[int]
) -> list[Row]:
    """Whole sessions, each arriving after so many gaps of the process as it has turns, so that the rate is one of requests."""
    shared = max(8, SYSTEM_TOKENS // workload.scale)
    prompts = [words.choices(vocabulary, k=shared) for _ in range(SYSTEM_PROMPTS)]
    found = []
    for session in range(workload.requests // TURNS):
        ids, before, at = list(words.choice(prompts)), 0, next(arrivals)
        for turn in range(TURNS):
            asked, answer = _scaled(workload, _log_uniform(lengths, *USER_TOKENS), _log_uniform(lengths, *ANSWER_TOKENS))
            ids = ids + words.choices(vocabulary, k=asked)
            think = lengths.expovariate(1 / THINK_SECONDS) / workload.scale if turn else 0.0
            row: Row = {
                "ids": ids,
                "prompt": before + len(ids),
                "output": answer,
                "at": at,
                "session": session,
                "turn": turn,
                "think": think,
            }
            found.append(row)
            before, ids = row["prompt"] + answer, []
        for _ in range(TURNS - 1):
            next(arrivals)
    return found
