"""Checks that the KV pools are large enough for the requests that the server accepts."""

import math


class PoolTooSmallError(ValueError):
    """The KV pool cannot hold one request of the context length that the operator asked for."""


def check(full_tokens: int, context: int, asked: int | None, tokens_asked: int | None) -> str | None:
    """A warning that longer requests will be refused, or None.

    Args:
        asked: ``--context-length`` as typed, or None where ``context`` comes from the model's config.
        tokens_asked: ``--max-total-tokens`` as typed.

    Raises:
        PoolTooSmallError: the operator asked for a context that no request can use.
    """
    if context <= full_tokens:
        return None
    found = f"one request may have {context} tokens and the full pool holds {full_tokens}"
    larger = f"raise --max-total-tokens {tokens_asked}" if tokens_asked is not None else "raise --mem-fraction-static"
    if asked is not None:
        raise PoolTooSmallError(f"--context-length {asked}: {found}; {larger}, or lower --context-length to {full_tokens} or less")
    return f"{found}: longer requests will be refused; {larger}, or say --context-length"


def check_sliding(sliding_tokens: int, full_tokens: int, per_request: int, ratio_asked: float | None) -> str | None:
    """A warning that the sliding pool cannot hold one request that the full pool can hold, or None.

    SGLang would defer such a request's prefill for ever, or retract and abort it (crash_repro/swa_ratio.py).

    Args:
        per_request: sliding tokens that a long running request takes at most (``swa_sizing.Demand``).
        ratio_asked: ``--swa-full-tokens-ratio`` as typed, or None.

    Raises:
        PoolTooSmallError: the operator asked for that ratio.
    """
    needed = min(full_tokens, per_request)
    if sliding_tokens >= needed:
        return None
    found = f"the sliding pool holds {sliding_tokens} tokens, a running request takes up to {needed}"
    if ratio_asked is not None:
        least = math.ceil(10_000 * needed / full_tokens) / 10_000
        raise PoolTooSmallError(f"--swa-full-tokens-ratio {ratio_asked:g}: {found}; give {least:g} or more, or leave the flag out")
    return f"{found}: longer requests may wait for ever; raise --swa-full-tokens-ratio or --mem-fraction-static"
