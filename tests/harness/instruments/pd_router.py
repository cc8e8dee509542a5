"""SGLang's own router (the wheel ``sglang-router``) before a prefill and a decode server."""

import concurrent.futures
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests.harness.ports import free_port

HOST = "127.0.0.1"
ANSWERS_WITHIN = 600.0
"""Seconds for a request."""
ATTEMPTS = 3
"""Times that a router is started."""


def wait(url: str, deadline: float, *processes: "subprocess.Popen[bytes]") -> None:
    """Until ``url`` answers.

    Raises:
        RuntimeError: it does not by ``deadline`` (of ``time.monotonic``), or one of ``processes`` has ended.
    """
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError as error:
            ended = [process.args for process in processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{url} does not answer: {f'{ended[0]!r} has ended' if ended else error}") from error
            time.sleep(0.5)


def ask(url: str, **request: Any) -> Any:
    """What ``url``'s /generate says.

    Raises:
        RuntimeError: its status is an error's.
    """
    asked = urllib.request.Request(f"{url}/generate", json.dumps(request).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=ANSWERS_WITHIN) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url} says {error.code}: {error.read().decode()}") from error


def ask_each(url: str, input_ids: Sequence[Sequence[int]], sampling_params: Any, **request: Any) -> list[Any]:
    """What it says to all of these prompts at once, each a request of its own: the router takes one set of parameters for a request.

    Args:
        sampling_params: of all, or one mapping for each.
    """
    each = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(input_ids)
    with concurrent.futures.ThreadPoolExecutor(len(input_ids)) as clients:
        asked = [
            clients.submit(ask, url, input_ids=list(ids), sampling_params=given, **request)
            for ids, given in zip(input_ids, each, strict=True)
        ]
        return [one.result() for one in asked]


def start(port: int, prefill: str, bootstrap: int, decode: str, deadline: float, log: Any = None) -> "subprocess.Popen[bytes]":
    """A router that answers; ``prefill`` and ``decode``: addresses of servers that do, ``bootstrap`` the first one's port for it."""
    command = [sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation", "--host", HOST, "--port", str(port)]
    command += ["--prefill", prefill, str(bootstrap), "--decode", decode, "--disable-retries"]
    for attempt in range(ATTEMPTS):
        # Without one of its own a second router ends; and another program may take the port before this one does.
        metrics = ("--prometheus-host", HOST, "--prometheus-port", str(free_port()))
        router = subprocess.Popen([*command, *metrics], stdout=log, stderr=subprocess.STDOUT if log else None)
        try:
            wait(f"http://{HOST}:{port}/readiness", deadline, router)
            return router
        except RuntimeError:
            if router.poll() is None or attempt == ATTEMPTS - 1:
                router.kill()
                raise
    raise AssertionError("unreachable")
