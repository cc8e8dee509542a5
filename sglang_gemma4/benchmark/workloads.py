"""The named workloads, and whether one fits a model's context and a server's pool."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

IMAGE_TOKENS = 280  # soft tokens of one image at Gemma 4's default resolution, at most (processor_config.json)
IMAGE_COUNTS = (1, 4, 16)
SWEEP = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPTS = (1000, 4000, 16000, 64000)
PROMPT_TOKENS = 128_000  # of all prompts of one pass over one length, where that is fewer than 30 prompts
LENGTHS = (128, 1000, 4000)
TURNS = 4  # of a session of multi-turn
WARM_UP_REQUESTS = 64  # of a load's warm-up, which comes before every rate
LEAST_REQUESTS = 20  # of a rate, however low it is
LOAD_SECONDS = 60.0  # of arrivals at each rate
TTFT_LIMIT, ITL_LIMIT = 2000.0, 60.0  # milliseconds, 99th percentiles, that goodput asks for unless told otherwise
_AT_ONCE = re.compile(r"([1-9]\d*)x([1-9]\d*)/([1-9]\d*)")
_AT_RATE = re.compile(r"(.+)@([\d.]+)")


@dataclass(frozen=True)
class Workload:
    """Requests of one shape: tokens in, tokens out, how many, and how many at once (None: all).

    With ``lengths`` the tokens are the longest that are drawn from that distribution (:mod:`loads`). With ``rate`` the requests arrive
    as a Poisson process of so many per second, whatever the server has finished (open loop).
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

    @property
    def open_loop(self) -> bool:
        return self.rate is not None

    @property
    def longest(self) -> int:
        """Tokens of one request at its end, images at their largest."""
        return self.input_tokens + self.output_tokens + self.images * IMAGE_TOKENS

    def as_data(self) -> dict[str, Any]:
        """For a header; what only loads have is left out of other workloads, so that folders of earlier versions resume."""
        added = {"lengths": "", "rate": None, "scale": 1}
        return {name: value for name, value in asdict(self).items() if name not in added or value != added[name]}


_NAMED = (
    Workload("chat", 1000, 1000, 80),
    Workload("summarize", 8000, 1000, 80),
    Workload("prefill", 7000, 10, 30),
    Workload("decode", 100, 1000, 30),
    Workload("images", 100, 20, 100, images=6, image_size=480),
    Workload("single", 1000, 500, 4, concurrency=1),
    Workload("long", 64000, 200, 32),
    Workload("mix", 6000, 600, 120, concurrency=80, lengths="log-uniform"),
)
WORKLOADS = {workload.name: workload for workload in _NAMED}

LOADS = {
    "log-uniform": Workload("log-uniform", 6000, 600, 0, lengths="log-uniform"),
    "sharegpt-like": Workload("sharegpt-like", 6656, 1536, 0, lengths="sharegpt-like"),
    "multi-turn": Workload("multi-turn", 1024 + TURNS * 500 + (TURNS - 1) * 400, 400, 0, lengths="multi-turn"),
}
"""Open loop: each stands for one workload per request rate, named ``log-uniform@4`` at 4 requests/s."""


def load_name(workload: str) -> tuple[str, float] | None:
    """The load and the rate of a workload that is named ``LOAD@RATE``, else None."""
    found = _AT_RATE.fullmatch(workload)
    return (found[1], float(found[2])) if found and found[1] in LOADS else None


def named(names: Iterable[str], rates: Sequence[float] = (), seconds: float = LOAD_SECONDS) -> list[Workload]:
    """Workloads by name. ``sweep`` stands for one of each batch size, ``sweep-1`` to ``sweep-128``, one wave of 1000 in and 200 out;
    ``prompts`` for one of each prompt length, ``prompts-1000`` to ``prompts-64000``, 10 out, 2 to 30 requests.

    ``ttft`` stands for one request at a time of each prompt length, ``ttft-128`` to ``ttft-4000``, 16 of them with 8 tokens out.
    ``images-sweep`` stands for ``images-1`` to ``images-16``, as ``images`` with so many in each of 16 prompts.
    ``32x1000/200`` are 32 requests at once, 1000 in and 200 out. A load (:data:`LOADS`) stands for one of each of ``rates``
    (requests/s), with ``seconds`` of arrivals.

    Raises:
        ValueError: a name is unknown, or a load has no rates.
    """
    found: list[Workload] = []
    for name in names:
        if name in WORKLOADS:
            found.append(WORKLOADS[name])
        elif name == "sweep":
            found += [Workload(f"sweep-{batch}", 1000, 200, batch) for batch in SWEEP]
        elif name == "prompts":
            found += [Workload(f"prompts-{length}", length, 10, min(30, PROMPT_TOKENS // length)) for length in PROMPTS]
        elif name == "ttft":
            found += [Workload(f"ttft-{tokens}", tokens, 8, 16, concurrency=1) for tokens in LENGTHS]
        elif name == "images-sweep":
            found += [replace(WORKLOADS["images"], name=f"images-{count}", images=count, requests=16) for count in IMAGE_COUNTS]
        elif found_shape := _AT_ONCE.fullmatch(name):
            requests, tokens_in, tokens_out = map(int, found_shape.groups())
            found.append(Workload(name, tokens_in, tokens_out, requests))
        elif name in LOADS:
            if not rates:
                raise ValueError(f"workload {name!r} is open-loop and has no rates; give --rates, for example --rates 1,2,4")
            found += [at_rate(LOADS[name], rate, seconds) for rate in rates]
        else:
            raise ValueError(
                f"unknown workload {name!r}; there are {', '.join(WORKLOADS)}, sweep, prompts, ttft, images-sweep, N requests at once as "
                f"NxIN/OUT, and with --rates {', '.join(LOADS)}"
            )
    return list(dict.fromkeys(found))


def at_rate(load: Workload, rate: float, seconds: float) -> Workload:
    """``load`` at ``rate`` requests/s for ``seconds``; of a multi-turn load whole sessions, each request a turn."""
    requests = max(LEAST_REQUESTS, math.ceil(rate * seconds))
    if load.lengths == "multi-turn":
        requests = TURNS * math.ceil(requests / TURNS)
    return replace(load, name=f"{load.name}@{rate:g}", requests=requests, rate=rate)


def miniature(workload: Workload) -> Workload:
    """The same shape, small enough for a dry run: a tiny model on a CPU."""
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
    requests = min(workload.requests, WARM_UP_REQUESTS) if workload.open_loop else workload.requests
    return replace(workload, output_tokens=min(workload.output_tokens, 32), requests=requests, rate=None)


def check_context(workload: Workload, limit: int, remedy: str) -> None:
    """Refuse a workload whose requests are longer than the context.

    Raises:
        ValueError: a request's tokens exceed ``limit``; the message ends with ``remedy``.
    """
    if workload.longest > limit:
        raise ValueError(f"workload {workload.name!r}: one request reaches {workload.longest} tokens, the context is {limit}; {remedy}")


def check_pool(workload: Workload, settings: Mapping[str, Any]) -> None:
    """Refuse a workload of which not even one request fits a started server's KV pool.

    Raises:
        ValueError: a request's tokens exceed the pool.
    """
    pool = settings.get("max_total_num_tokens")
    if pool is not None and workload.longest > pool:
        raise ValueError(
            f"workload {workload.name!r}: one request reaches {workload.longest} tokens, this server's KV pool holds {pool}; "
            "raise --mem-fraction-static, lower --swa-full-tokens-ratio, or choose a shorter workload"
        )
