"""A prefill and a decode server of SGLang, two processes on a CPU: ``TEST_INSTRUMENTS=pd_pair:pair``.

All of it is SGLang's Mooncake backend (bootstrap server, registration, pairing of buffers, transfer threads) except the library that
moves the bytes: here the kernel does, from process to process. ``TEST_DECODE_ENV`` is JSON: variables for the decode server alone;
``TEST_DECODE_ARGUMENTS`` its engine's arguments where they are not the prefill server's. ``nixl`` has real NIXL agents over host memory.
"""

import ctypes
import importlib
import json
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness.instruments import host_cache
from tests.harness.ports import free_port


class _Iovec(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class TransferEngine:
    """``mooncake.engine.TransferEngine`` by ``process_vm_writev``; a session's port is the process id."""

    def initialize(self, *_args: Any) -> int:
        """No transport to set up."""
        return 0

    def get_rpc_port(self) -> int:
        """What the peer names us by."""
        return os.getpid()

    def batch_register_memory(self, *_args: Any) -> int:
        """All memory of a process can be written."""
        return 0

    batch_unregister_memory = register_memory = unregister_memory = send_probe = batch_register_memory

    def batch_transfer_sync_write(self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> int:
        """Write each span of this process into the peer's memory."""
        libc, pid = ctypes.CDLL(None), int(session.rsplit(":", 1)[1])
        for source, target, length in zip(sources, targets, lengths, strict=True):
            here, there = _Iovec(source, length), _Iovec(target, length)
            if libc.process_vm_writev(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != length:
                return -1
        return 0


class Pair:
    """Both servers behind the interface of ``Engine`` that the nursery uses; answers are the decode server's."""

    engine_class: Any
    backend = "mooncake"
    _set_startup_time: Any  # the engine's own, which patches/start_times.py hooks

    def __init__(self, **arguments: Any) -> None:
        self.port, self.room = free_port(), 100
        arguments |= {"disaggregation_transfer_backend": self.backend, "disaggregation_bootstrap_port": self.port}
        # Both load at once, and what one takes is missing from the free memory the other counts; --max-total-tokens bounds the pools.
        arguments["mem_fraction_static"] = 0.5
        # A decode server's host pool is to have twice its pool's tokens, and not what is free on the machine.
        arguments["hicache_ratio"] = 2.0
        asked, ask = os.pipe()
        answers, answer = os.pipe()
        if os.fork() == 0:
            os.environ.update(json.loads(os.environ.get("TEST_DECODE_ENV", "{}")))
            arguments |= json.loads(os.environ.get("TEST_DECODE_ARGUMENTS", "{}"))
            decode = self.engine_class(disaggregation_mode="decode", **arguments)
            with open(asked) as requests, open(answer, "w") as output:
                for line in requests:
                    try:
                        said = decode.generate(**json.loads(line))
                    except Exception as error:
                        said = {"error": str(error)}
                    print(json.dumps(said), file=output, flush=True)
            os._exit(0)
        os.close(answer)
        self.ask, self.answers = open(ask, "w"), open(answers)  # noqa: SIM115 - they live as long as the pair
        self.prefill = self.engine_class(disaggregation_mode="prefill", **arguments)

    def generate(self, **request: Any) -> Any:
        """The same batch to both servers."""
        request = self.to_decode(**request)
        self.prefill.generate(**request)
        return self.answer()

    def answer(self) -> Any:
        """What the decode server says next."""
        return json.loads(self.answers.readline() or '{"error": "the decode server ended"}')

    def to_decode(self, **request: Any) -> dict[str, Any]:
        """A batch to the decode server alone; the same for the prefill server."""
        count = len(request["input_ids"])
        request |= {"bootstrap_host": ["127.0.0.1"] * count, "bootstrap_port": [self.port] * count}
        request["bootstrap_room"] = list(range(self.room, self.room + count))
        self.room += count
        print(json.dumps(request), file=self.ask, flush=True)
        return request

    def shutdown(self) -> None:
        """End the prefill server; the decode server ends with the case's process group."""
        self.prefill.shutdown()


def pair() -> None:
    """Have the case build a ``Pair``; the decode server's host pool needs what HiCache's does."""
    host_cache.torch_copies()
    module: Any = types.ModuleType("mooncake.engine")
    module.TransferEngine = TransferEngine
    sys.modules |= {"mooncake": types.ModuleType("mooncake"), "mooncake.engine": module}
    importlib.import_module(
        "sglang.srt.disaggregation.mooncake.conn"
    ).MooncakeKVSender.supports_host_tensor_indices = False  # pinned memory
    _be_patient()
    where: Any = importlib.import_module("sglang.srt.entrypoints.engine")
    Pair._set_startup_time = staticmethod(where.Engine._set_startup_time)
    Pair.engine_class, where.Engine = where.Engine, Pair


def _be_patient() -> None:
    """Have the decode server ask two minutes for a prefill server that comes up beside other tests; SGLang gives up after 15 s, and then
    says "Aborted by AbortReq" and not why."""
    queue: Any = importlib.import_module("sglang.srt.disaggregation.decode").DecodePreallocQueue
    queue._max_ensure_retries = property(lambda self: 120, lambda self, value: None)  # not its __init__, whose source a patch compares


def nixl() -> None:
    """The same over NIXL."""
    pair()
    sys.path.append(str(Path(__file__).parents[3] / "crash_repro"))
    importlib.import_module("rank_agents").install("nixl")
    Pair.backend = "nixl"


def ask_decode_twice(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """A client: the decode server is asked two times, and its answers are texts."""
    said = []
    for _ in range(2):
        engine.to_decode(input_ids=group["prompts"], sampling_params={"max_new_tokens": 4})
        said.append({"token_ids": [], "text": json.dumps(engine.answer()), "logprobs": [], "meta_info": {}})
    return said
