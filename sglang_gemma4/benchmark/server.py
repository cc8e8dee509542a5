"""One server process of an arm: start, settings, stop. If it dies, its last log lines are kept."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4.diagnostics import status

TAIL = 25  # log lines kept of a process that died

# Server arguments that differ between any two processes.
LEFT_OUT = ("port", "random_seed", "nccl_port", "launch_command", "startup_time", "internal_states", "status", "version", "frontend")


class Died(Exception):  # noqa: N818 - an event, not a mistake
    """An arm's process ended, or hung (``exit_status`` None). Recorded as a result of the arm."""

    def __init__(self, exit_status: int | None, log_tail: list[str]) -> None:
        super().__init__(f"exit status {exit_status}" if exit_status is not None else "hung")
        self.exit_status, self.log_tail = exit_status, log_tail


class Server:
    """``sglang.launch_server`` (on the CPU through ``sglang-gemma4 serve``) in its own process group."""

    engine = "sglang"  # the API that it serves

    def __init__(self, model: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path, *, cpu: bool) -> None:
        program = ["sglang_gemma4.cli", "serve", model] if cpu else ["sglang.launch_server", "--model-path", model]
        self._start([sys.executable, "-m", *program, "--enable-metrics", *arguments], environment, log)

    def _start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start ``command``, a server program, on a free port."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log, self.url, self.started = log, f"http://127.0.0.1:{port}", time.monotonic()
        own = {**os.environ, **environment}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "--port", str(port)], env=own, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_until_ready(self, limit: float, progress: Callable[[str], None]) -> float:
        """Wait until the server answers ``/health``; returns the seconds since its start.

        Raises:
            Died: it ended before, or was not up after ``limit`` seconds.
        """
        told = 0.0
        while True:
            self.check()
            seconds = time.monotonic() - self.started
            if seconds > limit:
                raise Died(None, self.last_words())
            if seconds - told >= 15:
                told = seconds
                progress(f"waiting for the server, {seconds:.0f} s; its log says: {(tail(self.log) or ['nothing yet'])[-1][:110]}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return seconds
            except OSError:
                time.sleep(0.5)

    def check(self) -> None:
        """Raise :class:`Died` if the process has ended."""
        if (status := self.process.poll()) is not None:
            raise Died(status, self.last_words())

    def last_words(self) -> list[str]:
        """The log lines about the server's end, the most telling ones last."""
        return tail(self.log)

    def describe(self) -> dict[str, Any]:
        """Fields of a ``start`` record: the settings that the server ended up with, and the state of each patch."""
        info = self._info()
        return {"process": "server", "settings": settings_of(info), "graphs": graphs_of(info), "patches": patches_of(info)}

    def stop(self) -> None:
        """End the whole process group and wait for it: the next arm needs an empty GPU."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self.process.pid, sign)
                self.process.wait(20)
        ends = time.monotonic() + 20
        while alive(self.process.pid) and time.monotonic() < ends:  # even when killed, a large process takes time to free its memory
            time.sleep(0.1)

    def _info(self) -> dict[str, Any]:
        """The answer of ``/server_info``."""
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=30) as response:
            return dict(json.load(response))


def settings_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in ``/server_info`` or ``Engine.get_server_info()`` that are compared between arms: arguments, pool sizes, graph modes.

    Local paths are left out: they say nothing about an arm and do not belong in a committed run.
    """
    state = _state(info)
    memory = state.get("memory_usage", {})
    empty: tuple[Any, ...] = (None, False, [], {}, "")
    found = {name: value for name, value in info.items() if name not in LEFT_OUT and value not in empty}
    found = {name: value for name, value in found.items() if not (isinstance(value, str) and value.startswith(os.sep))}
    return found | {
        "max_running_requests": state.get("effective_max_running_requests_per_dp", info.get("max_running_requests")),
        "max_total_num_tokens": info.get("max_total_num_tokens", memory.get("token_capacity")),
        "swa_pool_tokens": memory.get("token_capacity_swa"),
        "weights_gb": memory.get("weight"),
        "kv_cache_gb": memory.get("kvcache"),
    }


def graphs_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Batch sizes captured for decode or verify steps, and seconds and GB of all captures under SGLang's names of phases."""
    state = _state(info)
    kept = (("startup_time", "cuda_graph"), ("memory_usage", "graph"))
    seconds, held = ((state.get(part) or {}).get(name) or {} for part, name in kept)
    return {"sizes": state.get("decode_cuda_graph_bs") or [], "seconds": seconds, "gb": held}


def patches_of(info: Mapping[str, Any]) -> dict[str, str]:
    """The state of each patch of the whole server in the same answer, as in ``doctor --url``; empty for stock."""
    ours = _state(info).get("sglang_gemma4", {})
    return {row["name"]: row["state"] for row in status.merged(ours.get("scheduler", ()), ours.get("frontend", ()))}


def _state(info: Mapping[str, Any]) -> dict[str, Any]:
    return dict((info.get("internal_states") or [{}])[0])


def alive(group: int) -> list[int]:
    """Ids of the processes of a process group that have not ended; one that only waits to be reaped has ended."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def tail(log: Path, lines: int = TAIL) -> list[str]:
    """The last non-empty lines of a log, each cut at 300 characters."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 65536))
        text = file.read().decode(errors="replace")
    return [line[:300] for line in text.splitlines() if line.strip()][-lines:]
