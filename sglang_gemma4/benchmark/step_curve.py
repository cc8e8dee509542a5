"""Step time at every batch size from one pass: N requests start together and end one after another, so each batch size runs for a while.

Between the end of one request and the next, the batch size is constant except for one step: under overlap scheduling
the step after an end was launched before the end was known, and still contains the ended request. Contexts grow while
batches shrink, so the smallest batches have the longest contexts. The full batch runs longer than the others, since
its time includes the change from prefill to decode.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_gemma4.benchmark.records import Record

FIRST = 3
"""The tokens of the first request to end, as a multiple of the tokens between two ends."""
WARM_UP_TOKENS = 4
"""Tokens between two ends in a pass that does not count."""


def prefilled_at(about: Sequence[Mapping[str, Any]]) -> float:
    """Seconds at which the last request had its first token; ``about`` holds SGLang's ``meta_info`` of each request.

    Raises:
        RuntimeError: some requests waited until others were done, so this was not one batch.
    """
    prefilled = max(meta["prefill_finished_time"] for meta in about)
    early = sum(meta["request_finished_ts"] <= prefilled for meta in about)
    if early:
        raise RuntimeError(
            f"batch {len(about)} did not run as one batch: {early} requests were finished before the last was prefilled, so there is no "
            "step time of that batch; raise --max-running-requests (SGLang takes 48 under speculation unless told otherwise) or the KV "
            "pool, or measure a smaller batch"
        )
    return float(prefilled)


def steps_of(meta: Mapping[str, Any]) -> int:
    """Number of decode or verify steps that a request took part in."""
    return int(meta.get("spec_verify_ct") or 0) or int(meta["completion_tokens"]) - 1


def most_tokens(requests: int, tokens_between: int) -> int:
    """Tokens of the request that ends last."""
    return tokens_between * (requests - 1 + FIRST)


def measure(engine: Any, prompts: list[list[int]], tokens_between: int) -> dict[str, Any]:
    """Run one pass of as many requests as there are prompts; returns the fields of a ``curve`` record.

    Args:
        engine: an ``sglang.Engine`` that serves nothing else.
        tokens_between: tokens that a request generates between the previous request's end and its own; under MTP more
            than one per step.

    Raises:
        RuntimeError: the requests did not run as one batch.
        ValueError: the engine serves other requests too.
    """
    from sglang_gemma4.benchmark.profile import empty_radix_cache  # loads numpy; the command line needs this module too

    empty_radix_cache(engine)
    lengths = [most_tokens(place + 1, tokens_between) for place in range(len(prompts))]
    sampling = [{"max_new_tokens": length, "temperature": 0, "ignore_eos": True} for length in lengths]
    about = [output["meta_info"] for output in engine.generate(input_ids=prompts, sampling_params=sampling)]
    verify = [int(meta.get("spec_verify_ct") or 0) for meta in about]
    tokens = sum(meta["completion_tokens"] for meta in about) - len(about)
    return {
        "tokens_between": tokens_between,
        "seconds": max(meta["request_finished_ts"] for meta in about) - prefilled_at(about),
        "points": points(about),
        "accept_length": tokens / sum(verify) if any(verify) else None,
    }


def points(about: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """``[batch size, steps, milliseconds a step]`` from the end of one request to the next, the largest batch first.

    Requests that end in the same step count as one end: a batch size between theirs was never run, and has no point.
    """
    began, done, running = prefilled_at(about), 0, len(about)
    found: list[list[float]] = []
    by_steps = sorted(about, key=steps_of)
    for steps, group in itertools.groupby(by_steps, key=steps_of):
        together = list(group)
        ended = max(float(meta["request_finished_ts"]) for meta in together)
        if ended > began and steps > done:  # else requests with different step counts were answered at once: no times of their own
            found.append([running, steps - done, (ended - began) * 1000 / (steps - done)])
            began, done = ended, steps
        running -= len(together)
    return found


def said(record: Record) -> str:
    """A ``curve`` record as one line of text."""
    which = f"{record['repetition'] + 1}" if record["counted"] else "warm-up"
    if not record["points"]:
        return f"curve of {record['batch']} {which}: no step was timed"
    (largest, _, most), (smallest, _, least) = record["points"][0], record["points"][-1]
    times = f"{least:.2f} ms a step at batch {smallest}, {most:.2f} at {largest}"
    return f"curve of {record['batch']} {which}: {times}, {record['seconds']:.1f} s"
