"""Which kinds of layers FlashAttention-4 prefills, and from how many tokens on: measured against our kernel when a server starts.

It takes a fraction of a second once both are compiled. An answer that holds for one head dimension, card or version of either kernel need
not hold for another, so none is written down here.
"""

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention

SIZES = (1024, 2048, 4096, 8192)
"""New tokens of a batch; SGLang's chunks end at 8,192 on a card of 80 GB or more."""
SHORT = 1024
"""Tokens of a request where a batch has several; a batch of one request is tried beside it."""
MARGIN = 0.95
"""Of our kernel's time: less of a gain does not pay for a choice that may fall the other way at the next start."""
REPEATS = 3
TOLERANCE = 2e-2
"""Absolute and relative, of two kernels' bfloat16 outputs."""


@dataclass
class Choice:
    """What was found."""

    flash: FlashPrefill
    seconds: float = 0.0
    """Compiling and measuring took."""
    taken: list[str] = field(default_factory=list)
    """A line for each kind that FlashAttention-4 takes."""
    left: list[str] = field(default_factory=list)
    """The kinds that stay with our kernel, and why."""


def inputs(kind: Kind, requests: int, tokens: int, dtype: torch.dtype, device: str, prefix: int = 0) -> dict[str, Any]:
    """Of one layer: ``requests`` times ``tokens`` new tokens, each request with ``prefix`` cached ones."""
    generator = torch.Generator(device).manual_seed(0)  # the default one is the sampler's, and alike on all ranks

    def rand(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, kind.dim, dtype=dtype, device=device, generator=generator)

    ends = torch.arange(requests + 1, dtype=torch.int32, device=device)
    q = rand(requests * tokens, kind.heads)
    return {
        "q": q,
        "k": rand(requests * tokens, kind.kv_heads),
        "v": rand(requests * tokens, kind.kv_heads),  # FlashAttention-4 takes k itself as v for another kind of attention
        "k_buffer": rand(requests * prefix + 1, kind.kv_heads),
        "v_buffer": rand(requests * prefix + 1, kind.kv_heads),
        "qo_indptr": ends * tokens,
        "kv_indptr": ends * prefix,
        "kv_indices": torch.randperm(requests * prefix + 1, device=device, generator=generator)[: requests * prefix],
        "scale": kind.dim**-0.5,
        "out": torch.empty_like(q),
        "longest": tokens,
        "window": kind.window,
    }


def milliseconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median of single calls, after one that compiles."""
    call()
    taken = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    return float(statistics.median(taken))


def measured(flash: FlashPrefill, kind: Kind, dtype: torch.dtype, device: str) -> dict[int, list[tuple[float, float]]]:
    """By new tokens of a batch: milliseconds of our kernel and of FlashAttention-4, for one request and for several."""
    found: dict[int, list[tuple[float, float]]] = {}
    for size in SIZES:
        for requests in sorted({1, size // SHORT}):
            given = inputs(kind, requests, size // requests, dtype, device)
            pair = (milliseconds(partial(prefill_attention, **given)), milliseconds(partial(flash, **given)))
            found.setdefault(size, []).append(pair)
            del given  # before the next, larger ones are made
    return found


def greatest_difference(flash: FlashPrefill, kind: Kind, dtype: torch.dtype, device: str) -> float:
    """Between both kernels' outputs, over :data:`TOLERANCE`: two requests with a prefix, longer than the window."""
    prefix = min(100, kind.window) if kind.window >= 0 else 100
    given = inputs(kind, 2, max(160, kind.window + 64), dtype, device, prefix)
    flash(**given)
    ours = torch.empty_like(given["out"])
    prefill_attention(**{**given, "out": ours})
    apart = (given["out"] - ours).abs().float()
    return float((apart / (TOLERANCE + TOLERANCE * ours.abs().float())).max())


def least_of(times: dict[int, list[tuple[float, float]]]) -> int | None:
    """The fewest tokens from which on FlashAttention-4 is the faster one in every shape, or None."""
    least = None
    for size in sorted(times, reverse=True):
        if any(theirs > MARGIN * ours for ours, theirs in times[size]):
            break
        least = size
    return least


@functools.cache
def chosen(attend: Callable[..., Any], kinds: frozenset[Kind], dtype: torch.dtype, device: str) -> Choice:
    """Compile each kind, hold its answer against our kernel's, and measure both, so that no request waits for it.

    Once for a process: backends that are made later, as an adaptive draft length makes them, are to prefill as the first does.

    Args:
        attend: SGLang's ``flash_attn_varlen_func``.
    """
    began = time.monotonic()
    choice = Choice(FlashPrefill(attend))
    for kind in sorted(kinds):
        given = inputs(kind, 1, 1, dtype, device)
        reason = choice.flash.reason_against(*(given[name] for name in ("q", "k", "v", "kv_indices")))
        if reason:
            choice.left.append(f"{kind}: {reason}")
            continue
        try:
            apart = greatest_difference(choice.flash, kind, dtype, device)
            if not apart <= 1:  # NaN is not either
                choice.left.append(f"{kind}: it answers otherwise, by {apart:.1f} times what rounding explains")
                continue
            times = measured(choice.flash, kind, dtype, device)
        except Exception as error:  # of a compiler, a driver or a shape it refuses: our kernel is there
            choice.left.append(f"{kind}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}")
            continue
        ours, theirs = times[max(times)][0]
        told = f"{max(times)} tokens take {theirs:.2f} ms, our kernel's {ours:.2f}"
        least = least_of(times)
        if least is None:
            choice.left.append(f"{kind}: {told}")
        else:
            choice.flash.least[kind] = least
            choice.taken.append(f"{kind} from {least} tokens ({told})")
    choice.flash.steps = 0
    choice.seconds = time.monotonic() - began
    return choice
