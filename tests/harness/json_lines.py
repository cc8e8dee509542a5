"""JSON lines from a pipe, each waited for until a deadline."""

import json
import os
import select
import time
from typing import Any


class JsonLines:
    """Reads objects, one a line, from the file descriptor of a pipe.

    It reads the descriptor itself. A buffered file would take two lines that came together out of the pipe at once, and the wait for
    the second would then ask an empty pipe until its deadline.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._received = bytearray()

    def next(self, deadline: float) -> dict[str, Any]:
        """The next object.

        Args:
            deadline: seconds of ``time.monotonic``; an object that came before it is returned whatever the time.

        Raises:
            TimeoutError: no whole line came until then.
            EOFError: the other end was closed.
        """
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(self._pipe, 1 << 16)
            if not part:
                raise EOFError
            self._received += part
        line, _, rest = self._received.partition(b"\n")
        self._received = rest
        answer: dict[str, Any] = json.loads(line)
        return answer
