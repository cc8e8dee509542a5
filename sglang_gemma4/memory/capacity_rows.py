"""What fits a GPU, as rows: one for each size, GPU, server, fraction and engine (stock SGLang or this package)."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.memory import capacity, fractions, model_bytes
from sglang_gemma4.memory.capacity import GIB, Card, Pools, Server
from sglang_gemma4.memory.model_bytes import Need
from sglang_gemma4.tiny.quantisation import Format, reason_against_size
from sglang_gemma4.tiny.real_sizes import SIZES, target

PROMPTS, ANSWER = (500, 2000, 8000, 32_000), 500
"""Tokens of the requests that are counted."""
CHOICES = {
    "given": "on the command line",
    "SGLang": "by its own rule",
    "fallback": "by this package, where SGLang's leaves less than a request",
    "auto": "by SGLANG_GEMMA4_RESERVE_GIB=auto",
}
"""Who chose a row's fraction."""


@dataclass(frozen=True)
class Row:
    """What one engine has at one --mem-fraction-static. If it does not start, ``pools`` is None; ``problem`` says why."""

    model: str
    quantization: str
    gpu: Card
    mtp: bool
    engine: str
    fraction: float
    chosen_by: str
    kv_bytes: float
    pools: Pools | None
    problem: str = ""

    @property
    def requests(self) -> list[int]:
        """Requests at once, for each of :data:`PROMPTS`."""
        return [self.pools.requests(prompt + ANSWER) for prompt in PROMPTS] if self.pools else []

    def as_data(self) -> dict[str, Any]:
        """JSON-ready, with SGLang's names for flags."""
        at_once = [
            {"prompt_tokens": prompt, "answer_tokens": ANSWER, "at_once": found}
            for prompt, found in zip(PROMPTS, self.requests, strict=False)
        ]
        return {
            "model": self.model,
            "quantization": self.quantization,
            "gpu": self.gpu.name,
            "gpu_mib": self.gpu.mib,
            "mtp": self.mtp,
            "engine": self.engine,
            "mem_fraction_static": round(self.fraction, 4),
            "fraction_chosen_by": self.chosen_by,
            "kv_gib": round(max(0.0, self.kv_bytes) / GIB, 3),
            "full_tokens": self.pools.full if self.pools else None,
            "sliding_tokens": self.pools.sliding if self.pools else None,
            "requests": at_once,
            "problem": self.problem or None,
        }


def rows(
    names: Sequence[str],
    cards: Sequence[Card],
    servers: Sequence[Server],
    fraction: float | None,
    kv_bytes: float,
    length: int | None,
    scale_bytes: float = 0,
    forms: Sequence[Format | None] = (None,),
) -> Iterator[Row]:
    """Rows in the order of the arguments, stock before the package.

    Args:
        fraction: --mem-fraction-static; None: SGLang's own, and the one that the calculated reserve leaves.
        length: ``SGLANG_GEMMA4_REQUEST_TOKENS``, or None.
        scale_bytes: bytes of scales per token and head in the KV cache, in addition to its elements.
        forms: formats of the weights, None for bfloat16. A size whose dimensions a format does not divide gets no row.
    """
    for name, form in itertools.product(names, forms):
        if form is not None and name in SIZES and reason_against_size(target(name)["text_config"], form):
            continue
        for where, server in itertools.product(cards, servers):
            needed = model_bytes.need(name, kv_bytes, server.tp, scale_bytes, form)
            for engine, said, chosen_by in _fractions(needed, where, server, fraction, length):
                left = _left(needed, where, server, engine, said, chosen_by)
                pools = _pools(needed, where, server, left, engine, length)
                problem, kept = (pools, None) if isinstance(pools, str) else ("", pools)
                weights = form.name if form else "bfloat16"
                yield Row(name, weights, where, server.mtp, engine, said, chosen_by, left, kept, problem)


def _fractions(needed: Need, where: Card, server: Server, given: float | None, length: int | None) -> list[tuple[str, float, str]]:
    """Each row's engine, fraction, and key of :data:`CHOICES`."""
    if given is not None:
        return [(engine, given, "given") for engine in ("stock", "package")]
    by_rule, calculated = fractions.both(needed, where, server)
    ours, reserved = fractions.default(needed, where, server, length)
    return [
        ("stock", by_rule, "SGLang"),
        ("package", ours, "fallback" if reserved else "SGLang"),
        *((engine, calculated, "auto") for engine in ("stock", "package")),
    ]


def _left(needed: Need, where: Card, server: Server, engine: str, fraction: float, chosen_by: str) -> float:
    """Bytes for KV."""
    if engine == "stock":
        return capacity.budget(needed, where, server, fraction, package=False)
    return fractions.budget(needed, where, server, fraction, reserved=chosen_by in ("fallback", "auto"))


def _pools(needed: Need, where: Card, server: Server, left: float, engine: str, length: int | None) -> Pools | str:
    """The pools, or why there are none."""
    if left <= 0:
        return f"{math.ceil(-10 * left / GIB) / 10:.1f} GiB too few for weights"
    if engine == "stock":
        found = capacity.stock(needed, left, server)
        return found if found.sliding > needed.window else "too few for a request"
    try:
        return capacity.by_window(needed, left, server, where, length)
    except ValueError:
        return "too few for a request"
