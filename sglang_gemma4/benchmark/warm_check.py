"""Whether a session's answer is the same with and without its conversation in the prefix cache: greedy tokens, cold versus warm.

The last turns of a pass's first sessions are asked again, one at a time: with an empty cache (*cold*), again with an
empty cache (*again*), and directly after that (*warm*). If *again* differs from *cold*, the server is not
deterministic, so *warm* could differ too. The fourth answer is that of the pass itself (*load*), generated while
other requests ran.

Sums in another order round differently in bfloat16. Another chunk length or batch size, or an eviction in between,
can therefore flip a near tie between two tokens although the KV is correct. A wrong slot or another session's window
shows early and in many sessions.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_gemma4.benchmark.client_process import cached_tokens, reset

LIMIT = 600.0  # seconds that an answer, or emptying the cache, may take
WAYS = ("again", "warm", "load")


def check(url: str, engine: str, model: str, kept: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the sessions in ``kept``, each with ``prompt`` (ids) and ``tokens`` (the pass's answer).

    Returns ``sessions`` (how many), ``tokens`` (of each answer), ``warm_cached`` (prompt tokens that the warm request
    found) and, for each of :data:`WAYS`, the position of the first token that differs from the cold answer, or None
    if all are equal.

    Raises:
        OSError: the server does not answer.
        RuntimeError: its cache could not be emptied.
    """
    found: dict[str, Any] = {"sessions": len(kept), "tokens": [len(one["tokens"]) for one in kept], "warm_cached": []}
    differ: dict[str, list[int | None]] = {way: [] for way in WAYS}
    for one in kept:
        answers: dict[str, list[int]] = {"load": list(one["tokens"])}
        for way in ("cold", "again", "warm"):
            if way != "warm":
                empty(url, engine)
            answers[way], cached = _ask(url, model, one["prompt"], len(one["tokens"]))
        found["warm_cached"].append(cached)
        for way in WAYS:
            differ[way].append(first_difference(answers["cold"], answers[way]))
    return {**found, **differ}


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two answers differ, None if they are equal."""
    if list(one) == list(other):
        return None
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))


def empty(url: str, engine: str) -> None:
    """Empty the prefix cache, once the server is idle.

    Raises:
        RuntimeError: it did not within :data:`LIMIT` seconds.
    """
    if engine == "vllm":
        reset(url, LIMIT)
        return
    ends = time.monotonic() + LIMIT
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST"), timeout=LIMIT):
                return
        except urllib.error.HTTPError as error:  # an answer is sent before its request has left the batch
            if time.monotonic() > ends:
                raise RuntimeError(f"the server did not empty its cache within {LIMIT:g} s: HTTP {error.code}") from error
            time.sleep(0.1)


def _ask(url: str, model: str, prompt: Sequence[int], tokens: int) -> tuple[list[int], int | None]:
    """Greedy tokens after ``prompt``, and how many of its tokens were in the cache (None: the server does not say)."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    body |= {"return_token_ids": True, "return_cached_tokens_details": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT) as response:
        answer = json.load(response)
    return list(answer["choices"][0]["token_ids"]), cached_tokens(answer)
