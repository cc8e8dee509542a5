"""Joined forwards of an engine in its log: ``TEST_INSTRUMENTS=tests.gpu.beside_counter:install`` in a case's environment.

Each gives a line ``BESIDE {"rows": [prompt rows, running rows], "host_ms": …, "waits": {place: times}}``: the host's time from metadata to
logits, and where it waited for the device in between (PyTorch's sync debug mode). Each iteration of the scheduler with one gives a line
``ITERATION {"ms": {"next": …, "run": …, "process": …}, "waits": {place: times}}``: the host's time to choose the batches, to launch both
and to take over the results of the iteration before, which waits for the device by design.
"""

import functools
import importlib
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PARTS = {"next": "get_next_batch_to_run", "run": "run_batch", "process": "process_batch_result"}


def install() -> None:
    """Wrap the joined forward and the scheduler's iteration."""
    joined_forward: Any = importlib.import_module("sglang_gemma4.models.schedule.joined_forward")
    original, joined = joined_forward.forward, [0]

    def counted(runner: Any, prefill: Any, running: Any, *args: Any) -> Any:
        joined[0] += 1
        with _watched() as found:
            outputs = original(runner, prefill, running, *args)
        rows = [batch.input_ids.shape[0] for batch in (prefill, running)]
        print("BESIDE", json.dumps({"rows": rows, "host_ms": found["ms"], "waits": found["waits"]}), flush=True)
        return outputs

    joined_forward.forward = counted
    scheduler: Any = importlib.import_module("sglang.srt.managers.scheduler").Scheduler
    iteration: dict[str, dict[str, Any]] = {}
    before = [0]

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if part == "next":
                if joined[0] > before[0] and iteration:
                    waits = sum((Counter(found["waits"]) for found in iteration.values()), Counter[str]())
                    parts = {name: found["ms"] for name, found in iteration.items()}
                    print("ITERATION", json.dumps({"ms": parts, "waits": waits}), flush=True)
                before[0] = joined[0]
                iteration.clear()
            with _watched() as iteration[part]:
                return function(*args, **kwargs)

        return wrapper

    for part, name in PARTS.items():
        setattr(scheduler, name, timed(part, getattr(scheduler, name)))


@contextmanager
def _watched() -> Iterator[dict[str, Any]]:
    """What the host does inside: milliseconds, and the places at which it waited for the device, in the dictionary it yields."""
    import torch

    from tests.gpu.sync_counter import _place

    places: Counter[str] = Counter()
    found: dict[str, Any] = {"ms": 0.0, "waits": places}

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "called a synchronizing" in str(message):
            places[_place()] += 1

    began, card = time.perf_counter(), torch.cuda.is_available()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        mode = torch.cuda.get_sync_debug_mode() if card else 0
        if card:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if card:
                torch.cuda.set_sync_debug_mode(mode)
            found["ms"] = round(1000 * (time.perf_counter() - began), 2)
