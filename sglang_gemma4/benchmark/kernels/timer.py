"""Microseconds of one call; on a GPU inside a CUDA graph, as a decode step replays it, so that the host's launch cost is excluded."""

import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]
CALLS = 20
"""Number of calls in a graph."""


def prepare(calls: Sequence[Call], device: str = "cuda", graph: bool = True) -> Callable[[], float]:
    """A function that runs :data:`CALLS` of the alternating ``calls`` and returns the microseconds of one.

    Give several calls that do the same with other tensors, so that no call finds its inputs in the cache, as in a
    model's next layer. Every call is made once here, which compiles it.

    Args:
        device: "cuda", timed by events, or "cpu", timed by the clock.
        graph: capture the calls. Otherwise the host launches them, and its launch cost is hidden only by calls of
            milliseconds.
    """
    if device != "cuda":
        for call in calls:
            call()
        return lambda: _on_cpu(calls)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    if not graph:
        return lambda: _between_events(lambda: [call() for call in calls], len(calls))
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for number in range(CALLS):
            calls[number % len(calls)]()
    return lambda: _between_events(captured.replay, CALLS)


def _on_cpu(calls: Sequence[Call]) -> float:
    began = time.perf_counter()
    for call in calls:
        call()
    return 1e6 * (time.perf_counter() - began) / len(calls)


def _between_events(work: Call, count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(1000 * start.elapsed_time(end) / count)
