"""One start of a server: its processes, memory, CPU and load, and how one learns that it is going down."""

import contextlib
import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Protocol

import psutil

from tests.hostile.exchange import Request, send


class Server(Protocol):
    """What a run needs of a server: its address, its process, and its log beside which its long steps stand."""

    url: str
    process: Any
    log: Path


class Life:
    """One start of the server: its address, and whether its processes are those that it started with."""

    def __init__(self, server: Server, number: int) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self.server, self.number, self.address = server, number, (host, int(port))
        self.root = psutil.Process(server.process.pid)
        children = self.root.children(recursive=True)
        ours = [self.root, *(child for child in children if _name(child).startswith("sglang::"))]  # a helper may end by right
        self.processes = {process.pid: process for process in ours}
        self.over, self.died, self.began = threading.Event(), False, time.time()
        self.before = self.seconds()

    def gone(self) -> list[int]:
        """Processes that ended."""
        return [pid for pid, process in self.processes.items() if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE]

    def listens(self, seconds: float) -> bool:
        """Whether the loop answers within so many seconds; /health would have the model generate a token each time."""
        return send(Request("models", "/v1/models", method="GET"), self.address, seconds).status == 200

    def memory(self) -> dict[str, Any]:
        """Resident MB by process."""
        return {
            f"{'server' if process == self.root else _name(process)} {pid}": process.memory_info().rss >> 20
            for pid, process in self.processes.items()
            if process.is_running()
        }

    def seconds(self) -> dict[str, float]:
        """Seconds of CPU by kind of process, of helpers and of those that ended too."""
        found: dict[str, float] = {}
        for process in [self.root, *self.root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                name = "server" if process == self.root else _name(process)
                found[name] = found.get(name, 0.0) + sum(process.cpu_times()[:4])
        return found

    def loads(self) -> list[dict[str, Any]]:
        """What each scheduler says of its load."""
        with urllib.request.urlopen(f"{self.server.url}/v1/loads", timeout=120) as answer:
            return list(json.load(answer)["loads"])

    def dies(self) -> bool:
        """Whether it is going down: its processes end some seconds after the first failure."""
        for _ in range(20):
            if self.over.is_set() or self.gone():
                return True
            time.sleep(0.25)
        return False

    def running(self) -> dict[str, int]:
        """Requests that run or wait."""
        loads = self.loads()
        return {name: sum(load[name] for load in loads) for name in ("num_running_reqs", "num_waiting_reqs")}

    def held(self) -> dict[str, float]:
        """What the pools hold."""
        loads = self.loads()
        return {name: max(float(load.get(name, 0)) for load in loads) for name in ("token_usage", "num_used_tokens")}

    def last_words(self) -> str:
        """The traceback that ended a process of the server, else the last one of its log, else its end."""
        text, traceback = self.server.log.read_text(errors="replace"), "Traceback (most recent call last)"
        ended = text.rfind("hit an exception")  # as SGLang says of its processes
        found = text.find(traceback, ended) if ended >= 0 else text.rfind(traceback)
        return text[found:][:6000] if found >= 0 else text[-1500:]


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    return words[0] if words and words[0].startswith("sglang::") else "helper"
