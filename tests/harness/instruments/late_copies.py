"""Copies between host and device that end as late as a GPU's may: ``TEST_INSTRUMENTS`` names ``install`` or
``unawaited``, and ``host_cache:torch_copies`` before it.

A layer that is loaded from the host is NaN on the device until it is waited for; ``WAITED <layer> <layers>`` in the
log names the wait and how many layers came. Copies to the host read the device as late. Either ends by itself when
SGLang, which asks once a step, asks for the third time. Nothing waits inside a graph
(``recorded_graphs.rerunning_graphs``).
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ASKED = 3
_begun: list[list[Callable[[], None]]] = []
"""The copies of the transfer that is being submitted, if one is."""


class Gone:
    """The event of a copy to the host."""

    def __init__(self, copies: list[Callable[[], None]]) -> None:
        self.copies, self.asked = copies, 0

    def query(self) -> bool:
        self.asked += 1
        if self.asked >= ASKED:
            self.synchronize()
        return not self.copies

    def synchronize(self) -> None:
        while self.copies:
            self.copies.pop(0)()


class Come:
    """The events of a copy to the device, by layer: ``late`` holds the copies of layers that were not waited for."""

    def __init__(self) -> None:
        self.late: dict[int, list[Callable[[], None]]] = {}
        self.asked = 0

    def query(self) -> bool:
        self.asked += 1
        if self.asked >= ASKED:
            self.synchronize()
        return not self.late

    def synchronize(self) -> None:
        self.wait(max(self.late, default=0))

    def wait(self, layer: int) -> None:
        """Wait for all layers up to this one: a stream's copies end in order."""
        came = sorted(number for number in self.late if number <= layer)
        for number in came:
            for copy in self.late.pop(number):
                copy()
        if came:
            print("WAITED", layer, len(came), flush=True)


def install() -> None:
    """Have HiCache's copies end late."""
    mha: Any = importlib.import_module("sglang.srt.mem_cache.pool_host.mha")
    engine: Any = importlib.import_module("sglang.srt.mem_cache.l2_transfer").L2TransferEngine
    events: Any = importlib.import_module("sglang.srt.managers.cache_controller").LayerLoadingEvent
    copy, to_host, to_device = mha.transfer_kv_direct, engine.submit_device_to_host, engine.submit_host_to_device

    def transfer(src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:
        _begun[-1].append(lambda: copy(src_layers, dst_layers, src_indices, dst_indices, page_size))

    def submit_to_host(self: Any, transfers: Any) -> Any:
        with _gathered() as copies:
            completion = to_host(self, transfers)
        return completion._replace(finish_event=Gone(copies), timing_enabled=False)

    def submit_to_device(self: Any, transfers: Any, *, on_layer_done: Any, **more: Any) -> Any:
        come = _come(on_layer_done.__self__)
        come.asked = 0
        with _gathered() as copies:

            def done(layer: int) -> None:
                if copies:  # a layer without keys of its own has nothing to wait for
                    come.late[layer] = copies[:]
                copies.clear()

            completion = to_device(self, transfers, on_layer_done=done, **more)
        for each in transfers:
            pool = each.device_pool
            for layers in (pool.k_buffer, pool.v_buffer):
                for rows in layers:
                    rows[each.device_indices] = float("nan")
        return completion._replace(finish_event=come, timing_enabled=False)

    scheduler: Any = importlib.import_module("sglang.srt.managers.scheduler").Scheduler
    flush = scheduler.flush_cache

    def flush_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.tree_cache.writing_check(write_back=True)  # while a server is idle its copies end without being asked for
        return flush(self, *args, **kwargs)

    scheduler.flush_cache = flush_cache
    mha.transfer_kv_direct = transfer
    engine.submit_device_to_host, engine.submit_host_to_device = submit_to_host, submit_to_device
    events.wait = lambda self, layer: None if _in_a_graph() else _come(self).wait(layer)
    events.finish_event = property(_come)


def unawaited() -> None:
    """As ``install``, but a mixed batch waits for the copies of the running requests, which have none."""
    install()
    loads: Any = importlib.import_module("sglang_gemma4.models.schedule.host_loads")
    original = loads.waited_for
    loads.waited_for = lambda pool, _load: original(pool, -1)


def unawaited_by_graphs() -> None:
    """As ``install``, but nothing is waited for before a graph of a whole mixed batch."""
    install()
    loads: Any = importlib.import_module("sglang_gemma4.models.schedule.host_loads")
    loads.wait_for_all = lambda _pool: None


@contextmanager
def _gathered() -> Iterator[list[Callable[[], None]]]:
    _begun.append([])
    try:
        yield _begun[-1]
    finally:
        _begun.pop()


def _come(event: Any) -> Come:
    """What one of SGLang's ``LayerLoadingEvent`` stands for."""
    return vars(event).setdefault("come", Come())  # type: ignore[no-any-return]


def _in_a_graph() -> bool:
    graphs: Any = sys.modules.get("tests.harness.instruments.recorded_graphs")
    return graphs is not None and bool(graphs.rerunning_graphs)
