"""A process that prepares something for a start without the card, and answers with one line of JSON."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
"""Linux, ``prctl(2)``."""


def end_with(parent: int) -> None:
    """In a process just forked: the kernel ends it when ``parent``, by its id, has ended, in whatever way. On Linux; elsewhere nothing."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


class Child:
    """``python -m MODULE ARGUMENTS``, begun at once.

    A context on the card would be memory that SGLang sizes its pools without, so the process sees no card.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, module: str, *arguments: str, **environ: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        environment = {**os.environ, **environ, "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)

    def answer(self, seconds: float) -> dict[str, Any] | str:
        """Its answer, or why there is none after so many seconds; then it goes on, and nobody listens."""
        try:
            text = self.process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s of waiting"
        try:
            found = json.loads(text.strip().rpartition("\n")[2])  # modules may print while they are imported
        except ValueError:
            found = None
        return found if isinstance(found, dict) else f"the process ended with status {self.process.returncode} and no answer"
