"""The named workloads, and whether one fits a model's context and a server's pool."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

IMAGE_TOKENS = 280  # soft tokens of one image at Gemma 4's default resolution, at most (processor_config.json)
IMAGE_COUNTS = (1, 4, 16)
SWEEP = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPTS = (1000, 4000, 16000, 64000)
PROMPT_TOKENS = 128_000  # of all prompts of one pass over one length, where that is fewer than 30 prompts
LENGTHS = (128, 1000, 4000)


@dataclass(frozen=True)
class Workload:
    """Requests of one shape: tokens in, tokens out, how many, and how many at once (None: all)."""

    name: str
    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int | None = None
    images: int = 0
    image_size: int = 0  # pixels, square

    @property
    def longest(self) -> int:
        """Tokens of one request at its end, images at their largest."""
        return self.input_tokens + self.output_tokens + self.images * IMAGE_TOKENS

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


_NAMED = (
    Workload("chat", 1000, 1000, 80),
    Workload("summarize", 8000, 1000, 80),
    Workload("prefill", 7000, 10, 30),
    Workload("decode", 100, 1000, 30),
    Workload("images", 100, 20, 100, images=6, image_size=480),
    Workload("single", 1000, 500, 4, concurrency=1),
    Workload("long", 64000, 200, 32),
)
WORKLOADS = {workload.name: workload for workload in _NAMED}


def named(names: Iterable[str]) -> list[Workload]:
    """Workloads by name. ``sweep`` stands for one of each batch size, ``sweep-1`` to ``sweep-128``, one wave of 1000 in and 200 out;
    ``prompts`` for one of each prompt length, ``prompts-1000`` to ``prompts-64000``, 10 out, 2 to 30 requests.

    ``ttft`` stands for one request at a time of each prompt length, ``ttft-128`` to ``ttft-4000``, 16 of them with 8 tokens out.
    ``images-sweep`` stands for ``images-1`` to ``images-16``, as ``images`` with so many in each of 16 prompts.

    Raises:
        ValueError: a name is unknown.
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
        else:
            raise ValueError(f"unknown workload {name!r}; there are {', '.join(WORKLOADS)}, sweep, prompts, ttft and images-sweep")
    return list(dict.fromkeys(found))


def miniature(workload: Workload) -> Workload:
    """The same shape, small enough for a dry run: a tiny model on a CPU."""
    return replace(
        workload,
        input_tokens=max(8, workload.input_tokens // 100),
        output_tokens=max(4, workload.output_tokens // 100),
        requests=min(workload.requests, 4),
        images=min(workload.images, 2),
        image_size=min(workload.image_size, 96),
    )


def warm_up(workload: Workload) -> Workload:
    """A pass of the same prompt and batch shapes with at most 32 tokens out, so that kernels are compiled before the counted passes."""
    return replace(workload, output_tokens=min(workload.output_tokens, 32))


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
