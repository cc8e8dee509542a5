"""Tries clients' grammars in separate processes, so that one that takes too long, takes too much memory or crashes ends nothing else.

A process is forked once from this one and only forks another for each trial (:mod:`grammar_trial_process`). It has no other threads. A
lock that another thread of the server held at the fork stays locked there: of the log's stream, or of a module being imported. So
everything is imported before the fork, and nothing is written to the server's streams.
"""

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

logger = logging.getLogger(__name__)

SECONDS = 0.5
"""CPU time limit of a trial, whose vocabulary is always the same. A 38 kB schema with all that agents' schemas have takes 0.08 s."""
MEMORY = 1 << 30
"""Bytes that a trial may allocate beyond the size of the server's process."""
AT_ONCE = 2
"""Most trials that run at the same time."""
_REAL_SECONDS = 30.0  # wall-clock limit of a trial; even on a busy machine only a trial that hangs reaches it
_FORKS = 3


class TrialError(ValueError):
    """A grammar cannot be served; the message is for the client."""


class Trials:
    """Runs trials for one process.

    Args:
        backend: SGLang's name of the grammar backend.
    """

    def __init__(self, backend: str = "xgrammar") -> None:
        self._backend = backend
        self.threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="grammar-trial")
        self._forking = threading.Lock()
        self._running = threading.Semaphore(AT_ONCE)
        self._control: socket.socket | None = None
        self._forks_left = _FORKS

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The result of :func:`grammar_trial_process.attempt` for ``job``; empty if no trial process can be started.

        Raises:
            TrialError: the grammar is wrong, allows no text, or takes more than a trial may.
        """
        with self._running:
            try:
                found = self._tried(job)
            except TimeoutError:  # the trial waited without using CPU time: the process it was forked from may be broken
                try:
                    found = self._tried(job)
                except TimeoutError:
                    raise TrialError(f"was not compiled within {_REAL_SECONDS:.0f} s on a busy machine; try again") from None
        if found is None:
            raise TrialError(f"needs more than {SECONDS} s of a processor or {MEMORY >> 20} MiB to compile and to follow; make it simpler")
        if "refused" in found:
            raise TrialError(str(found["refused"]))
        return found

    def _tried(self, job: Mapping[str, Any]) -> dict[str, Any] | None:
        """As :meth:`run`; None if the trial's process was ended.

        Raises:
            TimeoutError: the process was ended because it took too long without work.
        """
        control = self._ready()
        if control is None:
            return {}
        began = time.monotonic()
        found = _ask(control, {"backend": self._backend, **job})
        if found is None and time.monotonic() - began >= _REAL_SECONDS:
            with self._forking:
                if self._control is control:
                    self._control = None  # the forking process ends after the last trial that uses it
            raise TimeoutError
        return found

    def _ready(self) -> socket.socket | None:
        """The socket of the process that forks trials; None if it cannot be started."""
        with self._forking:
            if self._control is not None and not _lives(self._control):
                self._control = None
            while self._control is None and self._forks_left:
                self._forks_left -= 1
                control = _fork(self._backend)
                if _ask(control, {"backend": self._backend, "kind": "regex", "text": "a"}) is not None:
                    self._control, self._forks_left = control, _FORKS
                elif not self._forks_left:
                    logger.warning("clients' grammars are compiled untried: no process for trials could be started")
            return self._control


def _fork(backend: str) -> socket.socket:
    from sglang_gemma4.serving import grammar_trial_process  # with all that it needs: the fork must import nothing

    grammar_trial_process.prepare(backend)
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours
    try:
        logging.disable()
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - to the process's end
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        grammar_trial_process.serve(theirs, SECONDS, MEMORY, _REAL_SECONDS)
    finally:
        os._exit(1)


def _lives(control: socket.socket) -> bool:
    """Whether there is a process at the other end, which never sends anything."""
    try:
        return control.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _ask(control: socket.socket, job: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of a process that tries ``job``; None if it ended without one."""
    ours, theirs = socket.socketpair()
    with ours:
        try:
            with theirs:
                socket.send_fds(control, [b"x"], [theirs.fileno()])
            ours.settimeout(_REAL_SECONDS + 5)
            ours.sendall(json.dumps(dict(job)).encode())
            ours.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: ours.recv(1 << 16), b""))
        except OSError:  # also a time-out
            return None
    found: dict[str, Any] | None = json.loads(answer) if answer else None
    return found
