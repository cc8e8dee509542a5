"""A process that prepares something for a start without the GPU, and answers with one line of JSON."""

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
    """In a forked process: Linux kills it once the process with id ``parent`` has ended. Elsewhere this does nothing."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent had already ended
        os._exit(1)


class Child:
    """``python -m MODULE ARGUMENTS``, started by the constructor.

    The process sees no GPU: SGLang does not count a CUDA context's memory when it sizes its pools.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, module: str, *arguments: str, **environ: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        environment = {**os.environ, **environ, "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)

    def answer(self, seconds: float) -> dict[str, Any] | str:
        """The child's answer, or why there is none within ``seconds``; the child then goes on, and its answer is lost."""
        try:
            text = self.process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s of waiting"
        try:
            found = json.loads(text.strip().rpartition("\n")[2])  # modules may print while they are imported
        except ValueError:
            found = None
        return found if isinstance(found, dict) else f"the process ended with status {self.process.returncode} and no answer"
