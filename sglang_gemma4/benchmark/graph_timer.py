"""Time of a kernel inside a CUDA graph, as a decode step replays it: no launch cost of the host's."""

import statistics
from collections.abc import Callable, Sequence

import torch

CALLS = 20
"""Calls in a graph."""


def microseconds(calls: Sequence[Callable[[], object]], rounds: int = 5) -> float:
    """Of one call: median over ``rounds`` replays of a graph of :data:`CALLS` calls that takes ``calls`` in turn.

    Give several calls that do the same on other tensors, so that no call finds its inputs in the cache, as in a model's next layer.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(CALLS):
            calls[number % len(calls)]()
    taken = []
    for _ in range(rounds + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(1000 * start.elapsed_time(end) / CALLS)
    return float(statistics.median(taken[1:]))
