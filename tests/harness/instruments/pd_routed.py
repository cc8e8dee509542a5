"""A prefill and a decode server over HTTP behind SGLang's own router: ``TEST_INSTRUMENTS="gloo_ranks:install pd_routed:nixl"``.

Both servers are SGLang's ``launch_server``, each in a process of its own, with real NIXL agents over host memory between them. The router
is the ``sglang-router`` wheel, started as its documentation says. ``TEST_DECODE_ENV`` and ``TEST_DECODE_ARGUMENTS`` as in ``pd_pair.py``.
"""

import importlib
import json
import os
import time
from typing import Any

from tests.harness.instruments import pd_pair, pd_router
from tests.harness.ports import free_port

HOST = pd_router.HOST
UP_WITHIN = 300.0
"""Seconds for both servers and the router."""


class Routed:
    """Three servers behind the interface of ``Engine`` that the nursery uses; requests go to the router alone."""

    def __init__(self, **arguments: Any) -> None:
        self.bootstrap, self.url = free_port(), f"http://{HOST}:{free_port()}"
        urls = {mode: self._serve(mode, free_port(), arguments) for mode in ("prefill", "decode")}
        deadline = time.monotonic() + UP_WITHIN
        for url in urls.values():
            pd_router.wait(f"{url}/health", deadline)
        self.router = pd_router.start(int(self.url.rpartition(":")[2]), urls["prefill"], self.bootstrap, urls["decode"], deadline)

    def _serve(self, mode: str, port: int, arguments: dict[str, Any]) -> str:
        """Fork a server; its address."""
        given = {**arguments, "host": HOST, "port": port, "disaggregation_mode": mode, "disaggregation_transfer_backend": "nixl"}
        # As of ``pd_pair``: neither server is to look at how much memory is free.
        given |= {"disaggregation_bootstrap_port": self.bootstrap, "mem_fraction_static": 0.5, "hicache_ratio": 2.0}
        if os.fork() == 0:
            status = 1
            try:
                if mode == "decode":
                    os.environ.update(json.loads(os.environ.get("TEST_DECODE_ENV", "{}")))
                    given |= json.loads(os.environ.get("TEST_DECODE_ARGUMENTS", "{}"))
                _launch(given)
                status = 0
            finally:
                os._exit(status)
        return f"http://{HOST}:{port}"

    def generate(self, **request: Any) -> Any:
        """A batch to the router, request by request."""
        return pd_router.ask_each(self.url, **request)

    def shutdown(self) -> None:
        """End the router; the servers end with the case's process group."""
        self.router.kill()
        self.router.wait()


def _launch(given: dict[str, Any]) -> None:
    """What ``python -m sglang.launch_server`` does."""
    engines: Any = importlib.import_module("sglang.srt.entrypoints.engine")
    http: Any = importlib.import_module("sglang.srt.entrypoints.http_server")
    engines.Engine = http.Engine = pd_pair.Pair.engine_class
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    load_plugins()
    run_server(ServerArgs(**given))


def nixl() -> None:
    """Have the case build the three servers."""
    pd_pair.nixl()
    engines: Any = importlib.import_module("sglang.srt.entrypoints.engine")
    Routed._set_startup_time = staticmethod(pd_pair.Pair._set_startup_time)  # type: ignore[attr-defined]  # a hook's target
    engines.Engine = Routed
