"""Ctrl-C during an evaluation: a request may take hours, and its waiting thread cannot be interrupted."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE_SECONDS = 3.0
STATUS = 130
"""Exit status of a process that SIGINT ended, by the shells' convention."""
KEPT = "the answers so far are kept, the same command goes on with them"


@contextmanager
def ending(abort: Callable[[], object]) -> Iterator[None]:
    """In the block, the first SIGINT calls ``abort``; a second one, or GRACE_SECONDS before the block's end, ends the process.

    The process ends without joining its threads, which wait for requests; the answers so far are in their file. Main thread only.

    Args:
        abort: makes the block end as soon as no request is in flight.

    Raises:
        KeyboardInterrupt: at the block's end, after a SIGINT.
    """
    forced = threading.Timer(GRACE_SECONDS, os._exit, (STATUS,))
    forced.daemon = True
    signals = 0

    def interrupted(*_: object) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(STATUS)
        forced.start()  # before abort, which may wait for a lock that the interrupted thread holds
        # Not print: the signal may have come within one.
        os.write(2, f"\ninterrupted: {KEPT}; ending within {GRACE_SECONDS:g} s, at once on another Ctrl-C\n".encode())
        abort()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        forced.cancel()
        if signals:
            raise KeyboardInterrupt
