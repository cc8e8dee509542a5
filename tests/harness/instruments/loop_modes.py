"""SGLang's scheduler in other ways than by default: ``TEST_INSTRUMENTS`` names ``retracting``, ``overlapping``, ``overlapped`` or
``overlapped_forgetful``.

The overlapped loop, its future map and its lag of one step are SGLang's own, though nothing runs at the same time on a CPU. Only the gather
of a verify's relayed tensors, a Triton kernel, is torch here, and the stream on which a unified pool's pages move is the CPU's. The engine
must also be started with ``disable_overlap_schedule=False``.
"""

import importlib
from typing import Any

INTERVAL = 7
"""Forwards from one retraction to the next."""


def retracting() -> None:
    """As ``mtp_trace.watch``; and SGLang retracts a request of the running batch again and again, as its ``SGLANG_TEST_RETRACT`` does."""
    trace: Any = importlib.import_module("tests.harness.instruments.mtp_trace")
    trace.watch()
    scheduler: Any = importlib.import_module("sglang.srt.managers.scheduler")
    scheduler.TEST_RETRACT, scheduler.TEST_RETRACT_INTERVAL = True, INTERVAL


def overlapping() -> None:
    """As ``mtp_trace.watch``, in an engine that may overlap."""
    trace: Any = importlib.import_module("tests.harness.instruments.mtp_trace")
    trace.watch()
    _relay_in_torch()


def overlapped() -> None:
    """As ``retracting``, in an engine that may overlap."""
    retracting()
    _relay_in_torch()


def overlapped_forgetful() -> None:
    """As ``overlapped``, and verify does not find the runs that the host has yet to learn of."""
    overlapped()
    penalties: Any = importlib.import_module("sglang_gemma4.speculative.verify_penalties")
    original = penalties.penalise
    penalties.penalise = lambda logits, chain, earlier, *rest: original(logits, chain, earlier * 0, *rest)


def _relay_in_torch() -> None:
    """And say so in the log when it first happens: a synchronous loop relays nothing."""
    relay: Any = importlib.import_module("sglang.srt.managers.overlap_utils")

    def first(*given: Any) -> tuple[Any, ...]:
        print("RELAYED", flush=True)
        relay.gather_spec_extras = gather
        return gather(*given)

    relay.gather_spec_extras = first
    torch: Any = importlib.import_module("torch")
    torch.cuda.current_stream = lambda *_device: torch.cpu.current_stream()


def gather(indices: Any, *buffers: Any) -> tuple[Any, ...]:
    """The rows of each buffer; None for a buffer that is not there."""
    return tuple(None if buffer is None else buffer[indices] for buffer in buffers)
