"""The named workloads, and their requests: prompts as token ids, lengths, arrival times and turns, drawn from a seed, alike for all arms.

A *row* is one request, as JSON: ``ids`` (of the prompt; of a later turn only what the user adds), ``prompt`` and
``output`` (token counts), ``at`` (milliseconds after the first arrival), and for a session ``session``, ``turn`` and
``think`` (seconds between the previous answer and this turn). Rows are in the order in which they are sent. Rows of
workloads with :attr:`Workload.sessions` are made by :mod:`sglang_gemma4.benchmark.sessions`, and also have
``shared``: the number of prompt tokens that all sessions begin with.
"""

import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

IMAGE_TOKENS = 280  # at most, soft tokens of one image at Gemma 4's default resolution (processor_config.json)
TURNS = 4  # turns of a session of the multi-turn load
WARM_UP_REQUESTS = 64  # requests of a load's warm-up, which precedes every rate
LEAST_REQUESTS = 20  # requests at any rate, however low
LOAD_SECONDS = 60.0  # seconds of arrivals at each rate
TTFT_LIMIT, ITL_LIMIT = 2000.0, 60.0  # milliseconds, default limits of p99 TTFT and p99 ITL for goodput

LOG_UNIFORM = ((50, 6000), (50, 600))  # tokens in and out; the peer's recipe
MIX_SEED = 7  # seed of the lengths of ``mix``, which are the same in every pass: the peer's recipe

# Lognormal with the median and the 90th percentile of openchat_sharegpt4 in table 2 of Sarathi-Serve (Agrawal et al.,
# OSDI 2024): 1730 and 5696 tokens in (earlier turns included), 415 and 834 out. As there, no request has more than
# 8192 tokens; here such draws are repeated.
SHAREGPT = ((1730, 5696), (415, 834))
SHAREGPT_LIMIT = (6656, 1536)
_P90 = 1.2815515655446004  # standard deviations at the 90th percentile

SYSTEM_PROMPTS, SYSTEM_TOKENS = 8, 1024  # a session begins with one of this many prompts that sessions share
USER_TOKENS, ANSWER_TOKENS = (20, 500), (50, 400)  # of each turn, log-uniform
THINK_SECONDS = 2.0  # mean of the exponential time between an answer and the next turn

_AT_ONCE = re.compile(r"([1-9]\d*)x([1-9]\d*)/([1-9]\d*)")
_AT_RATE = re.compile(r"(.+)@([\d.]+)")
_SESSIONS = re.compile(r"(sessions-([1-9]\d*)x([1-9]\d*)(?:/([1-9]\d*))?)(?:@(\d*\.?\d+))?")
SESSION_TURNS = 8  # turns of a session, unless its name says otherwise
SESSION_SYSTEM = 1500  # tokens of the prompt that all sessions share, at most a third of a session
LEAST_TURN = 300  # tokens of a session's turn with its answer, on average
Row = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """Requests of one shape: tokens in, tokens out, how many, and how many at once (None: all).

    With ``lengths`` the tokens are the largest that are drawn from that distribution. With ``rate`` the requests
    arrive as a Poisson process with this many per second, whatever the server has finished (open loop).
    """

    name: str
    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int | None = None
    images: int = 0
    image_size: int = 0  # pixels, square
    lengths: str = ""
    rate: float | None = None
    scale: int = 1  # drawn lengths and times are divided by it (dry run)
    sessions: int = 0  # running at once, each with ``turns`` requests, the last of which ends at ``longest`` tokens
    turns: int = 0
    think: float = 0.0  # mean seconds between an answer and the next turn; 0 in an open loop

    @property
    def open_loop(self) -> bool:
        return self.rate is not None

    @property
    def longest(self) -> int:
        """Tokens of one request at its end, with images at their largest."""
        return self.input_tokens + self.output_tokens + self.images * IMAGE_TOKENS

    def as_data(self) -> dict[str, Any]:
        """The workload for a header; fields that only loads have are left out of other workloads, so that older folders can be resumed."""
        added = {"lengths": "", "rate": None, "scale": 1, "sessions": 0, "turns": 0, "think": 0.0}
        return {name: value for name, value in asdict(self).items() if name not in added or value != added[name]}


def _images(name: str, requests: int, count: int) -> Workload:
    return Workload(name, 100, 20, requests, images=count, image_size=480)


_SINGLE = (
    Workload("chat", 1000, 1000, 80),
    Workload("summarize", 8000, 1000, 80),
    Workload("prefill", 7000, 10, 30),
    Workload("decode", 100, 1000, 30),
    _images("images", 100, 6),
    Workload("single", 1000, 500, 4, concurrency=1),
    Workload("long", 64000, 200, 32),
    Workload("mix", 6000, 600, 120, concurrency=80, lengths="log-uniform"),
)
WORKLOADS = {workload.name: (workload,) for workload in _SINGLE} | {
    "sweep": tuple(Workload(f"sweep-{batch}", 1000, 200, batch) for batch in (1, 2, 4, 8, 16, 32, 64, 128)),
    # at most 128,000 prompt tokens per pass
    "prompts": tuple(Workload(f"prompts-{n}", n, 10, min(30, 128_000 // n)) for n in (1000, 4000, 16000, 64000)),
    "ttft": tuple(Workload(f"ttft-{tokens}", tokens, 8, 16, concurrency=1) for tokens in (128, 1000, 4000)),
    "images-sweep": tuple(_images(f"images-{count}", 16, count) for count in (1, 4, 16)),
}
"""The workloads that a name of ``--workload`` stands for."""

LOADS = {
    "log-uniform": Workload("log-uniform", 6000, 600, 0, lengths="log-uniform"),
    "sharegpt-like": Workload("sharegpt-like", *SHAREGPT_LIMIT, 0, lengths="sharegpt-like"),
    "multi-turn": Workload("multi-turn", SYSTEM_TOKENS + TURNS * 500 + (TURNS - 1) * 400, 400, 0, lengths="multi-turn"),
}
"""Open-loop loads: each stands for one workload per request rate, named ``log-uniform@4`` at 4 requests/s."""


def load_name(workload: str) -> tuple[str, float] | None:
    """The load and the rate of a workload named ``LOAD@RATE``, otherwise None."""
    if (found := _SESSIONS.fullmatch(workload)) and found[5]:
        return found[1], float(found[5])
    found = _AT_RATE.fullmatch(workload)
    return (found[1], float(found[2])) if found and found[1] in LOADS else None


def named(names: Iterable[str], rates: Sequence[float] = (), seconds: float = LOAD_SECONDS, think: float = THINK_SECONDS) -> list[Workload]:
    """Workloads by name (:data:`WORKLOADS`).

    ``32x1000/200`` is 32 requests at once, 1000 tokens in and 200 out. A load (:data:`LOADS`) stands for one workload
    for each of ``rates`` (requests/s), with ``seconds`` of arrivals. ``sessions-50x10000/8`` is 50 sessions that
    reach 10,000 tokens in 8 turns, each on average ``think`` seconds after the previous answer;
    ``sessions-50x10000/8@4`` is the same with 4 turns/s.

    Raises:
        ValueError: a name is unknown, a load has no rates, or a session's turns would be too short.
    """
    found: list[Workload] = []
    for name in names:
        if shape := _AT_ONCE.fullmatch(name):
            found.append(Workload(name, int(shape[2]), int(shape[3]), int(shape[1])))
        elif shape := _SESSIONS.fullmatch(name):
            found.append(_of_sessions(name, int(shape[2]), int(shape[3]), int(shape[4] or SESSION_TURNS), shape[5], think))
        elif name in LOADS:
            if not rates:
                raise ValueError(f"workload {name!r} is open-loop and has no rates; give --rates, for example --rates 1,2,4")
            found += [at_rate(LOADS[name], rate, seconds) for rate in rates]
        elif name in WORKLOADS:
            found += WORKLOADS[name]
        else:
            raise ValueError(
                f"unknown workload {name!r}; there are {', '.join(WORKLOADS)}, N requests at once as NxIN/OUT, sessions as "
                f"sessions-NxTOKENS[/TURNS][@RATE], and with --rates {', '.join(LOADS)}"
            )
    return list(dict.fromkeys(found))


def _of_sessions(name: str, sessions: int, tokens: int, turns: int, rate: str | None, think: float) -> Workload:
    if (each := (tokens - min(SESSION_SYSTEM, tokens // 3)) // turns) < LEAST_TURN:
        raise ValueError(
            f"workload {name!r}: {each} tokens are left for each of {turns} turns, at least {LEAST_TURN} are needed; give sessions more "
            "tokens or fewer turns"
        )
    if rate and not float(rate):
        raise ValueError(f"workload {name!r}: a rate of 0 sends nothing; give turns/s")
    answer = min(ANSWER_TOKENS[1], tokens // 2)
    own = Workload(name, tokens - answer, answer, sessions * turns, lengths="sessions", sessions=sessions, turns=turns)
    return replace(own, rate=float(rate)) if rate else replace(own, think=think)


def at_rate(load: Workload, rate: float, seconds: float) -> Workload:
    """``load`` at ``rate`` requests/s for ``seconds``; a multi-turn load has whole sessions, in which each request is a turn."""
    requests = max(LEAST_REQUESTS, math.ceil(rate * seconds))
    if load.lengths == "multi-turn":
        requests = TURNS * math.ceil(requests / TURNS)
    return replace(load, name=f"{load.name}@{rate:g}", requests=requests, rate=rate)


def miniature(workload: Workload) -> Workload:
    """The same shape, small enough for a dry run: a tiny model on a CPU."""
    if workload.sessions:
        small = _fewer(workload, 4, 3)
        return replace(small, input_tokens=592, output_tokens=8, scale=8, think=workload.think / 20)
    return replace(
        workload,
        input_tokens=max(8, workload.input_tokens // 100),
        output_tokens=max(4, workload.output_tokens // 100),
        requests=min(workload.requests, 8 if workload.lengths else 4),
        scale=100 if workload.lengths else 1,
        images=min(workload.images, 2),
        image_size=min(workload.image_size, 96),
    )


def warm_up(workload: Workload) -> Workload:
    """A pass of the same prompt and batch shapes with at most 32 tokens out, so that kernels are compiled before the counted passes."""
    if workload.sessions:
        return replace(_fewer(workload, 8, 2), output_tokens=min(workload.output_tokens, 32), rate=None, think=0.0)
    requests = min(workload.requests, WARM_UP_REQUESTS) if workload.open_loop else workload.requests
    return replace(workload, output_tokens=min(workload.output_tokens, 32), requests=requests, rate=None)


def _fewer(workload: Workload, sessions: int, turns: int) -> Workload:
    """The workload with at most ``sessions`` sessions and ``turns`` turns each."""
    sessions, turns = min(workload.sessions, sessions), min(workload.turns, turns)
    return replace(workload, sessions=sessions, turns=turns, requests=sessions * turns)


def check_fits(workload: Workload, what: str, tokens: int, remedy: str) -> None:
    """Refuse a workload of which not even one request fits.

    Raises:
        ValueError: a request is longer than the ``tokens`` of ``what``; the message ends with ``remedy``.
    """
    if workload.longest > tokens:
        raise ValueError(f"workload {workload.name!r}: one request reaches {workload.longest} tokens, {what} {tokens}; {remedy}")


def rows(workload: Workload, seed: int, vocabulary: Sequence[int]) -> list[Row]:
    """The requests of one pass, from ``workload``, ``seed`` and the token ids that prompts are made of.

    They are the same at every rate except for the arrival times, which are those of rate 1 divided by the rate.
    """
    words = random.Random(f"words {seed}")
    lengths = random.Random(MIX_SEED if workload.lengths == "log-uniform" and not workload.open_loop else f"lengths {seed}")
    arrivals = arrival_times(seed, workload.rate)
    if workload.lengths == "multi-turn":
        return list(_sessions(workload, words, lengths, arrivals, vocabulary))
    found = []
    for _ in range(workload.requests):
        tokens_in, tokens_out = _lengths(workload, lengths)
        found.append({"ids": words.choices(vocabulary, k=tokens_in), "prompt": tokens_in, "output": tokens_out, "at": next(arrivals)})
    return found


def arrival_times(seed: int, rate: float | None) -> Iterator[float]:
    """Arrival times in milliseconds of a Poisson process with ``rate`` per second, the first at 0; with None all are 0."""
    gaps = random.Random(f"arrivals {seed}")
    now = 0.0
    while True:
        yield now
        now += 1000 * gaps.expovariate(1.0) / rate if rate else 0.0


def _lengths(workload: Workload, draw: random.Random) -> tuple[int, int]:
    """Tokens in and out of one request."""
    if workload.lengths == "log-uniform":
        return _scaled(workload, *(_log_uniform(draw, *ends) for ends in LOG_UNIFORM))
    if workload.lengths == "sharegpt-like":
        while True:
            tokens = [int(median * math.exp(draw.gauss(0.0, math.log(p90 / median) / _P90))) for median, p90 in SHAREGPT]
            if all(1 < number <= limit for number, limit in zip(tokens, SHAREGPT_LIMIT, strict=True)):
                return _scaled(workload, *tokens)
    return workload.input_tokens, workload.output_tokens


def _scaled(workload: Workload, tokens_in: int, tokens_out: int) -> tuple[int, int]:
    """The lengths, scaled down in a dry run, with the output cut to a warm-up's."""
    return max(8, tokens_in // workload.scale), min(max(4, tokens_out // workload.scale), workload.output_tokens)


def _log_uniform(draw: random.Random, least: int, most: int) -> int:
    return int(math.exp(draw.uniform(math.log(least), math.log(most))))


def _sessions(
    workload: Workload, words: random.Random, lengths: random.Random, arrivals: Iterator[float], vocabulary: Sequence[int]
) -> Iterator[Row]:
    """Whole sessions; each arrives after as many gaps of the process as it has turns, so that the rate counts requests."""
    prompts = [words.choices(vocabulary, k=max(8, SYSTEM_TOKENS // workload.scale)) for _ in range(SYSTEM_PROMPTS)]
    for session in range(workload.requests // TURNS):
        ids, before = list(words.choice(prompts)), 0
        at, *_ = itertools.islice(arrivals, TURNS)
        for turn in range(TURNS):
            asked, answer = _scaled(workload, _log_uniform(lengths, *USER_TOKENS), _log_uniform(lengths, *ANSWER_TOKENS))
            ids = ids + words.choices(vocabulary, k=asked)
            think = lengths.expovariate(1 / THINK_SECONDS) / workload.scale if turn else 0.0
            own = {"session": session, "turn": turn, "think": think}
            yield {"ids": ids, "prompt": before + len(ids), "output": answer, "at": at, **own}
            before, ids = before + len(ids) + answer, []
