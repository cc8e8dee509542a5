"""Limits the time of stop patterns: one that backtracks too long ends its own request and does not delay others.

Python's matcher checks for signals while it runs, so an alarm interrupts it, in the scheduler's main thread.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

logger = logging.getLogger(__name__)

SECONDS_A_STEP = 0.05
"""CPU time limit of a request's patterns at one step, during which all running requests wait. CPU time excludes other processes' time."""
SECONDS_IN_ALL = 0.5
"""CPU time limit of a request's patterns over all its steps."""
SPENT = "_sglang_gemma4_pattern_seconds"


class OutOfTimeError(Exception):
    """A search was interrupted."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Interrupt the ``with`` body after ``seconds`` of this thread's CPU time. No effect outside the main thread, where no signals arrive.

    Raises:
        OutOfTimeError: the time is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    ends = time.thread_time() + seconds

    def interrupt(_number: int, _frame: Any) -> None:
        if (left := ends - time.thread_time()) <= 0:
            raise OutOfTimeError
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.001))

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_in_time(original: Callable[..., bool], req: Any, *args: Any, **kwargs: Any) -> bool:
    """Around ``Req._check_str_based_finish``: whether the request ends, because of a stop or because its patterns take too long."""
    patterns = req.sampling_params.stop_regex_strs
    if not patterns:
        return original(req, *args, **kwargs)
    started = time.thread_time()
    try:
        with limited(SECONDS_A_STEP):
            found = original(req, *args, **kwargs)
    except OutOfTimeError:
        return _end(req, patterns, f"more than {SECONDS_A_STEP * 1000:.0f} ms at one token")
    spent = getattr(req, SPENT, 0.0) + time.thread_time() - started
    setattr(req, SPENT, spent)
    if not found and spent > SECONDS_IN_ALL:
        return _end(req, patterns, f"more than {SECONDS_IN_ALL:g} s in all")
    return found


def _end(req: Any, patterns: list[str], how_long: str) -> bool:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    said = f"stop_regex: {', '.join(map(repr, patterns))[:60]} took {how_long} of this answer; send a pattern that backtracks less"
    logger.warning("sglang-gemma4: %s: %s", req.rid, said)
    req.finished_reason = FINISH_ABORT(said, HTTPStatus.BAD_REQUEST, "BadRequestError")
    return True
