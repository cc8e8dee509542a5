"""TCP ports for what tests start: no two processes get the same one.

SGLang draws a port that nothing listens on, and listens there seconds later. Among a thousand engines, started two or three at a time, two
drew the same now and then, and one of them ended.
"""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST, COUNT = 10_000, 12_000
"""Below the ports that SGLang draws from (22000 on) and those that the kernel gives to clients (32768 on)."""


def free_port() -> int:
    """The next port in turn that nothing listens on; all processes of a user take turns.

    Raises:
        OSError: none of them is free.
    """
    with (Path(tempfile.gettempdir()) / f"sglang-gemma4-ports-{os.getuid()}").open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        before = int(last.read() or FIRST - 1) - FIRST
        for step in range(1, COUNT + 1):
            port = FIRST + (before + step) % COUNT
            with socket.socket() as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
            last.truncate(0)
            last.write(str(port))
            return port
    raise OSError(f"none of the ports {FIRST} to {FIRST + COUNT - 1} is free")
