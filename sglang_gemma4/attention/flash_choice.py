"""Which layer shapes FlashAttention-4 prefills, and from how many tokens on: measured against our kernel when a
server starts.

The answer may differ with the head dimension, the GPU and the version of either kernel, so none is fixed here. The
times are kept for the next start with the same GPU, versions and layers (``start/folder.py``), which compiles only
what was chosen.
"""

import functools
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from sglang_gemma4.attention.flash_limits import SIZES
from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention
from sglang_gemma4.start import folder
from sglang_gemma4.start import times as start_times

logger = logging.getLogger(__name__)
SHORT = 1024
"""Tokens of each request in batches of several requests; each size is also timed as one request."""
MARGIN = 0.95
"""FlashAttention-4 must take at most this part of our kernel's time; a smaller gain might be a loss at the next start."""
REPEATS = 3
TOLERANCE = 2e-2
"""Absolute and relative difference that rounding explains between two kernels' bfloat16 outputs."""
KEPT = "prefill-attention"
Times = dict[int, list[tuple[float, float]]]
"""By new tokens of a batch: milliseconds of our kernel and of FlashAttention-4, one pair for each shape."""


@dataclass
class Choice:
    """The result of measuring."""

    flash: FlashPrefill
    seconds: float = 0.0
    """Time that compiling and measuring took."""
    remembered: int = 0
    """Number of layer shapes whose times an earlier start measured."""
    taken: list[str] = field(default_factory=list)
    """A line for each layer shape that FlashAttention-4 takes."""
    left: list[str] = field(default_factory=list)
    """A line for each layer shape that stays with our kernel, with the reason."""

    @property
    def took(self) -> str:
        """The time it took, for the log."""
        return f"compiled and measured in {self.seconds:.1f} s" + (", times of an earlier start" if self.remembered else "")


def inputs(kind: Kind, requests: int, tokens: int, dtype: torch.dtype, device: str, prefix: int = 0) -> dict[str, Any]:
    """Arguments of one layer: ``requests`` of ``tokens`` new tokens, each behind ``prefix`` cached ones."""
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
    """Median time of single calls, after one that compiles."""
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


def measured(flash: FlashPrefill, kind: Kind, dtype: torch.dtype, device: str) -> Times:
    """By new tokens of a batch: milliseconds of our kernel and of FlashAttention-4, for one request and for several."""
    found: Times = {}
    for size, requests in shapes():
        given = inputs(kind, requests, size // requests, dtype, device)
        pair = (milliseconds(partial(prefill_attention, **given)), milliseconds(partial(flash, **given)))
        found.setdefault(size, []).append(pair)
        del given  # before the next, larger ones are made
    return found


def shapes() -> list[tuple[int, int]]:
    """New tokens and requests of every batch that is measured."""
    return [(size, requests) for size in SIZES for requests in sorted({1, size // SHORT})]


def compile_shapes(flash: FlashPrefill, kind: Kind, least: int, dtype: torch.dtype, device: str) -> None:
    """Call FlashAttention-4 once in each shape that it takes, as measuring does, so that no request waits for a compiler."""
    for size, requests in shapes():
        if size >= least:
            flash(**inputs(kind, requests, size // requests, dtype, device))


def card_name(device: str) -> str | None:
    """Name of the GPU whose times are kept, or None if there is no GPU."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else None


def kept_key(kinds: frozenset[Kind], dtype: torch.dtype) -> dict[str, Any]:
    """What the times depend on besides the GPU."""
    return {"versions": folder.versions(), "kinds": sorted(kinds), "dtype": str(dtype), "sizes": SIZES, "short": SHORT}


def remembered(card: str | None, kinds: frozenset[Kind], dtype: torch.dtype) -> dict[Kind, Times]:
    """Times that an earlier start kept, by layer shape."""
    found = folder.load(KEPT, card, kept_key(kinds, dtype)) if card else None
    try:
        return {
            Kind(*kind): {int(size): [(float(ours), float(theirs)) for ours, theirs in pairs] for size, pairs in sizes}
            for kind, sizes in found or ()
        }
    except (TypeError, ValueError) as error:
        logger.warning("sglang-gemma4: kept times of prefill attention are not used: %s", error)
        return {}


def keep(card: str | None, kinds: frozenset[Kind], dtype: torch.dtype, found: dict[Kind, Times]) -> None:
    """Save the times for the next start."""
    if card and found:
        folder.save(KEPT, card, kept_key(kinds, dtype), [[kind, sorted(sizes.items())] for kind, sizes in sorted(found.items())])


def greatest_difference(flash: FlashPrefill, kind: Kind, dtype: torch.dtype, device: str) -> float:
    """Greatest difference between both kernels' outputs, in multiples of :data:`TOLERANCE`, for two requests with a
    prefix, longer than the window."""
    prefix = min(100, kind.window) if kind.window >= 0 else 100
    given = inputs(kind, 2, max(160, kind.window + 64), dtype, device, prefix)
    flash(**given)
    ours = torch.empty_like(given["out"])
    prefill_attention(**{**given, "out": ours})
    apart = (given["out"] - ours).abs().float()
    return float((apart / (TOLERANCE + TOLERANCE * ours.abs().float())).max())


def least_of(times: Times) -> int | None:
    """The fewest tokens from which FlashAttention-4 is faster in every measured shape, or None."""
    least = None
    for size in sorted(times, reverse=True):
        if any(theirs > MARGIN * ours for ours, theirs in times[size]):
            break
        least = size
    return least


@functools.cache
def chosen(attend: Callable[..., Any], kinds: frozenset[Kind], dtype: torch.dtype, device: str) -> Choice:
    """Compile each layer shape, compare the output with our kernel's, and measure both, so that no request waits for
    it.

    Runs once in a process: backends made later, as for an adaptive draft length, prefill as the first one does.

    Args:
        attend: SGLang's ``flash_attn_varlen_func``.
    """
    began = time.monotonic()
    with start_times.part("FlashAttention-4: compile and measure"):
        choice = _chosen(attend, kinds, dtype, device)
    choice.flash.steps = 0
    choice.seconds = time.monotonic() - began
    return choice


def _chosen(attend: Callable[..., Any], kinds: frozenset[Kind], dtype: torch.dtype, device: str) -> Choice:
    choice, card = Choice(FlashPrefill(attend)), card_name(device)
    known = remembered(card, kinds, dtype)
    choice.remembered = len(known)
    found = dict(known)
    for kind in sorted(kinds):
        given = inputs(kind, 1, 1, dtype, device)
        reason = choice.flash.reason_against(*(given[name] for name in ("q", "k", "v", "kv_indices")))
        if reason:
            choice.left.append(f"{kind}: {reason}")
            continue
        least = least_of(known[kind]) if kind in known else None
        try:
            if kind not in known or least is not None:  # what is not taken need not be compiled again
                apart = greatest_difference(choice.flash, kind, dtype, device)
                if not apart <= 1:  # NaN is not either
                    choice.left.append(f"{kind}: its output differs by {apart:.1f} times what rounding explains")
                    continue
            if kind not in known:
                found[kind] = measured(choice.flash, kind, dtype, device)
                least = least_of(found[kind])
            elif least is not None:
                compile_shapes(choice.flash, kind, least, dtype, device)
        except Exception as error:  # of a compiler, a driver or a shape it refuses: our kernel is there
            choice.left.append(f"{kind}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}")
            continue
        ours, theirs = found[kind][max(found[kind])][0]
        told = f"{max(found[kind])} tokens take {theirs:.2f} ms, our kernel's {ours:.2f}"
        if least is None:
            choice.left.append(f"{kind}: {told}")
        else:
            choice.flash.least[kind] = least
            choice.taken.append(f"{kind} from {least} tokens ({told})")
    if found != known:
        keep(card, kinds, dtype, found)
    return choice
