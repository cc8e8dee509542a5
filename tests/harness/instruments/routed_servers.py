"""Servers behind SGLang's router, one of which is killed or started again: ``TEST_INSTRUMENTS`` names ``two`` or ``pair_of_decodes``.

Each server is SGLang's ``launch_server`` in a process group of its own, forked from the nursery, so that killing the group is what losing a
machine is. ``two`` are two whole servers; ``pair_of_decodes`` are a prefill server and two decode servers, with real NIXL agents over host
memory between them. The router is the ``sglang-router`` wheel.
"""

import concurrent.futures
import contextlib
import ctypes
import http.client
import importlib
import json
import os
import signal
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.harness.instruments import pd_pair, pd_routed, pd_router
from tests.harness.ports import free_port

HOST = pd_router.HOST
JSON = {"Content-Type": "application/json"}
UP_WITHIN = 300.0
"""Seconds for all servers and the router."""
WATCHFUL = (
    *("--health-check-interval-secs", "1", "--health-failure-threshold", "2", "--health-success-threshold", "1"),
    *("--cb-failure-threshold", "3", "--cb-timeout-duration-secs", "5", "--cb-success-threshold", "1"),
)
"""Flags with which the router finds out within seconds; by default it looks every minute."""
OF_PAIRS = ("--disable-circuit-breaker", "--retry-max-retries", "10", "--retry-initial-backoff-ms", "200")
"""The router counts a lost decode server's failures against the prefill server too, and stops asking both: health checks suffice. Retries
have to last until those have found out."""


def forked(run: Callable[[], None]) -> int:
    """A process in a group of its own that ends with this one; its id, which is the group's."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        run()
        status = 0
    finally:
        os._exit(status)


def kill(group: int) -> None:
    """End what :func:`forked` began, and its children."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended
        os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)


def _route(flags: Sequence[str]) -> None:
    """What ``python -m sglang_router.launch_router`` does."""
    router: Any = importlib.import_module("sglang_router.launch_router")
    router.launch_router(router.parse_router_args(list(flags)))


TRIES = 5
"""Attempts of a decode server to reach a prefill server, a second apart; SGLang makes 15."""


class Server:
    """One process group; it is started again under the same address."""

    def __init__(self, arguments: Mapping[str, Any], mode: str | None = None, bootstrap: int | None = None) -> None:
        self.port, self.mode = free_port(), mode
        self.url = f"http://{HOST}:{self.port}"
        self.given = {**arguments, "host": HOST, "port": self.port, "mem_fraction_static": 0.5}
        if mode is not None:
            self.given |= {
                "disaggregation_mode": mode,
                "disaggregation_transfer_backend": "nixl",
                "disaggregation_bootstrap_port": bootstrap,
            }
        self.start()

    def start(self) -> None:
        """Fork it; it answers later."""
        self.pid = forked(lambda: pd_routed._launch({**self.given, "nccl_port": free_port()}))

    def kill(self) -> None:
        """As if its machine were gone."""
        kill(self.pid)

    def drain(self) -> None:
        """End it as an operator does; returns when its requests are answered and it has ended."""
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)

    def load(self) -> dict[str, Any]:
        """What its scheduler says of itself."""
        [found] = get(f"{self.url}/v1/loads")["loads"]
        return dict(found)

    def running(self) -> int:
        """Requests that it decodes or prefills."""
        return int(self.load()["num_running_reqs"])

    def idle(self) -> bool:
        """Whether it has no request in any queue and no token of one in its pools."""
        load = self.load()
        queues = [count for name, count in load.get("disaggregation", {}).items() if name.endswith("_queue_reqs")]
        return not any((load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"], *queues))

    def wait(self) -> None:
        """Wait until it answers."""
        pd_router.wait(f"{self.url}/health", time.monotonic() + UP_WITHIN)


class Routed:
    """The servers behind the interface of ``Engine`` that the nursery uses; requests go to the router alone."""

    _set_startup_time: Any  # the engine's own, which patches/start_times.py hooks
    modes: Sequence[str | None] = (None, None)

    def __init__(self, **arguments: Any) -> None:
        bootstrap, port = free_port(), free_port()
        self.url = f"http://{HOST}:{port}"
        self.servers = [Server(arguments, mode, bootstrap) for mode in self.modes]
        for server in self.servers:
            server.wait()
        flags = ["--host", HOST, "--port", str(port), "--policy", "cache_aware", *WATCHFUL]
        flags += ["--prometheus-host", HOST, "--prometheus-port", str(free_port())]
        if self.modes[0] is None:
            flags += ["--worker-urls", *(server.url for server in self.servers)]
        else:
            flags += [*OF_PAIRS, "--pd-disaggregation", "--prefill", self.servers[0].url, str(bootstrap)]
            flags += [word for server in self.servers[1:] for word in ("--decode", server.url)]
        self.router = forked(lambda: _route(flags))
        pd_router.wait(f"{self.url}/readiness", time.monotonic() + UP_WITHIN)

    def workers(self) -> dict[str, dict[str, Any]]:
        """What the router says of each server, by address."""
        return {worker["url"]: worker for worker in get(f"{self.url}/workers")["workers"]}

    def healthy(self, server: Server) -> bool:
        """Whether the router sends requests to it."""
        return bool(self.workers().get(server.url, {}).get("is_healthy"))

    def remove(self, server: Server) -> None:
        """Have the router send no more requests to it."""
        get(f"{self.url}/workers/{urllib.parse.quote(self.workers()[server.url]['id'], safe='')}", "DELETE")
        until(lambda: server.url not in self.workers())

    def add(self, server: Server) -> None:
        """Have the router send requests to it, again or for the first time."""
        get(f"{self.url}/workers", "POST", {"url": server.url})
        until(lambda: self.healthy(server))

    def shutdown(self) -> None:
        """End all."""
        kill(self.router)
        for server in self.servers:
            kill(server.pid)


def get(url: str, method: str = "GET", body: Any = None) -> Any:
    """The JSON that ``url`` answers."""
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(url, data, JSON, method=method), timeout=30) as found:
        return json.loads(found.read() or b"null")


def until(what: Callable[[], bool], seconds: float = 120.0) -> float:
    """Wait for it; the seconds that it took.

    Raises:
        TimeoutError: it did not come.
    """
    started = time.monotonic()
    while not what():
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"{what} within {seconds} s")
        time.sleep(0.05)
    return time.monotonic() - started


def asked(routed: Routed, group: Mapping[str, Any], between: Callable[[], None] = lambda: None, streams: int = 0) -> list[dict[str, Any]]:
    """All prompts at once; ``between`` is called while they run. What each was answered: its ``text`` is an error or empty.

    Args:
        streams: the first so many are streamed.
    """
    prompts = group["prompts"]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as clients:
        found = [clients.submit(_one, routed.url, prompt, group["sampling"], place < streams) for place, prompt in enumerate(prompts)]
        between()
        return [answer.result() for answer in found]


def _one(url: str, prompt: list[int], sampling: Mapping[str, Any], stream: bool, **more: Any) -> dict[str, Any]:
    request = {"input_ids": prompt, "sampling_params": {"temperature": 0, "ignore_eos": True, **sampling}, **more}
    answer: dict[str, Any] = {"token_ids": [], "text": "", "logprobs": [], "meta_info": {}}
    try:
        if not stream:
            said = pd_router.ask(url, **request)
            return answer | {"token_ids": said["output_ids"], "meta_info": said["meta_info"]}
        asking = urllib.request.Request(f"{url}/generate", json.dumps(request | {"stream": True}).encode(), JSON)
        with urllib.request.urlopen(asking, timeout=pd_router.ANSWERS_WITHIN) as lines:
            for line in lines:
                if line.startswith(b"data: {"):
                    said = json.loads(line[6:])
                    if "output_ids" not in said:
                        return answer | {"text": f"stream: {said}"}
                    answer |= {"token_ids": said["output_ids"], "meta_info": said["meta_info"]}
        return answer if answer["meta_info"].get("finish_reason") else answer | {"text": "the stream ended"}
    except (RuntimeError, OSError, http.client.HTTPException) as error:
        return answer | {"text": f"{type(error).__name__}: {error}"}


def kill_one_of_two(routed: Routed, group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The client: one server is killed while both have requests, ``extra["streams"]`` of them streamed, and is started again.

    Then the other is replaced, as an operator does, while requests run.
    """
    first, second = routed.servers

    def lose() -> None:
        until(lambda: first.running() > 0 and second.running() > 0)
        first.kill()

    def replace() -> None:
        until(lambda: second.running() > 0)
        routed.remove(second)
        second.drain()

    found = asked(routed, group, lose, streams=group["extra"]["streams"])
    found += asked(routed, group)
    first.start()
    first.wait()
    until(lambda: routed.healthy(first))
    found += asked(routed, group, replace)
    second.start()
    second.wait()
    routed.add(second)
    return found + asked(routed, group)


def kill_one_decode(routed: Routed, group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The client: a decode server is killed while both decode; then the prefill server, which comes back."""
    prefill, first, second = routed.servers

    def lose() -> None:
        until(lambda: first.running() > 0 and second.running() > 0)
        first.kill()

    def lose_prefill() -> None:
        until(lambda: not prefill.idle())
        prefill.kill()

    found = asked(routed, group, lose)
    print("ROUTED prefill's loads after the loss of a decode server", prefill.load(), flush=True)
    print(f"ROUTED the prefill server is idle {until(prefill.idle):.1f} s after that", flush=True)
    found += asked(routed, group)
    until(second.idle)
    started = time.monotonic()
    found += asked(routed, group, lose_prefill)
    print(f"ROUTED without a prefill server: answered within {time.monotonic() - started:.1f} s", flush=True)
    print(f"ROUTED the decode server is idle {until(second.idle):.1f} s after that", flush=True)
    found += asked(routed, group)
    started = time.monotonic()
    address = {"bootstrap_host": HOST, "bootstrap_port": prefill.given["disaggregation_bootstrap_port"], "bootstrap_room": 7}
    print("ROUTED past the router", _one(second.url, group["prompts"][0], group["sampling"], False, **address)["text"], flush=True)
    print(f"ROUTED it took {time.monotonic() - started:.1f} s; idle {until(second.idle):.1f} s after that", flush=True)
    prefill.start()
    prefill.wait()
    until(lambda: routed.healthy(prefill))
    return found + asked(routed, group)


def install(modes: Sequence[str | None]) -> None:
    """Have the case build the servers."""
    if not hasattr(pd_pair.Pair, "engine_class"):  # else it was called before
        pd_pair.nixl()
        queue: Any = importlib.import_module("sglang.srt.disaggregation.decode").DecodePreallocQueue
        queue._max_ensure_retries = property(lambda self: TRIES, lambda self, value: None)
    engines: Any = importlib.import_module("sglang.srt.entrypoints.engine")
    Routed._set_startup_time = staticmethod(pd_pair.Pair._set_startup_time)
    Routed.modes = modes
    engines.Engine = Routed


def two() -> None:
    """Two whole servers."""
    install((None, None))


def pair_of_decodes() -> None:
    """A prefill server and two decode servers."""
    install(("prefill", "decode", "decode"))
