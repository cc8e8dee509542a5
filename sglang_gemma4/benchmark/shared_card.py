"""What arms that run side by side share: the card, one pass at a time, and a single copy of random weights."""

import contextlib
import fcntl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sglang_gemma4.benchmark.plan import Plan
from sglang_gemma4.benchmark.step_engine import TimeIsUp
from sglang_gemma4.switches import SHARED_WEIGHTS

SHARED_FROM = 16 << 20
"""Bytes of the smallest tensor that arms share: the experts, the projections and the embeddings of a real size."""


@contextlib.contextmanager
def environment(plan: Plan) -> Iterator[dict[str, str]]:
    """The environment of the processes of arms that run side by side; a shared copy of the weights exists as long as this."""
    if not plan.share_weights:
        yield plan.environment
        return
    with tempfile.TemporaryDirectory() as folder:
        yield {**plan.environment, SHARED_WEIGHTS: f"{SHARED_FROM}:{folder}"}


@contextlib.contextmanager
def held(lock: Path | None, ends: float | None, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the card's lock, a file; without one there is nothing to wait for.

    Raises:
        TimeIsUp: another process held it until the run's time limit.
    """
    if lock is None:
        yield
        return
    told = False
    with lock.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if ends is not None and time.monotonic() > ends:
                    raise TimeIsUp from None
                if not told:
                    progress(f"waiting for the card: another process holds {lock}")
                told = True
                time.sleep(0.2)
        yield
