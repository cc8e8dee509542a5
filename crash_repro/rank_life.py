"""The life of a rank's process: pools, SGLang's settings and manager, and requests that it sends or receives."""

import ctypes
import dataclasses
import importlib
import os
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import rank_agents  # type: ignore[import-not-found]
import rank_memory  # type: ignore[import-not-found]

HOST = "127.0.0.1"
QUICK = {"SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS": '{"num_threads": "1"}', "UCX_TLS": "tcp,sm,self"}
"""SGLang has eight threads of UCX in a prefill rank, and UCX looks for cards: eight ranks' connections take half a minute of a core."""
VICTIM = 2
PR_SET_PDEATHSIG = 1
"""``prctl``'s number."""
FAILED, WAITING, SUCCESS = 0, 2, 4
"""``KVPoll``."""


def live(cell: Any, role: str, server: int, rank: int, port: int, pipe: Any) -> None:
    """The life of a rank: a manager, then commands. It ends with the process that has started it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # its siblings hold the pipe's other end open
    try:
        os.environ.update({"SGLANG_HOST_IP": HOST, **QUICK, **cell.env})
        if cell.mutant:
            _mutate(cell.mutant)
        one = _Live(cell, role, server, rank, port)
        pipe.send("up")
        while True:
            command, *words = pipe.recv()
            pipe.send(getattr(one, command)(*words))
    except EOFError:
        pass
    except BaseException:
        pipe.send(traceback.format_exc())
    os.kill(os.getpid(), signal.SIGKILL)  # threads of managers have no end


class _Live:
    """What a rank does, in its own process."""

    def __init__(self, cell: Any, role: str, server: int, rank: int, port: int) -> None:
        self.cell, self.role, self.server, self.rank, self.port = cell, role, server, rank, port
        self.size = cell.prefill if role == "prefill" else cell.decode[server]
        self.page_size = cell.page_size if role == "prefill" else cell.decode_page_size or cell.page_size
        model = rank_memory.MODELS[self._other or cell.model]
        mine = [request for request in cell.requests if role == "prefill" or request.server == server]
        self.pages = rank_memory.Pages(
            model,
            self.page_size,
            mine,
            seed=1 + (role == "decode"),
            behind_prefix=role == "decode",
            whole_window=role == "prefill" and not cell.exact,
        )
        self.pool = rank_memory.pool(model, self.page_size, self.pages, self.size, cell.kv_format)
        if role == "prefill":
            rank_memory.write(self.pool, self.pages, mine, self.size, rank)
        else:
            for name in ("full", "sliding"):
                for buffer in rank_memory.buffers(self.pool, name):
                    buffer.fill_(rank_memory.UNTOUCHED)
        self.arrived: list[rank_memory.Request] = []
        self.failed: list[rank_memory.Request] = []
        self.sending: float | None = None
        arguments = _publish(self)
        rank_agents.install(cell.backend)
        if "SGLANG_DISAGG_STAGING_BUFFER" in cell.env:
            rank_agents.staging_in_host_memory()
        self.manager = _manager(self, arguments)

    @property
    def _other(self) -> str:
        """The model of a decode server that serves another than the prefill server: the first one's, where that is the fault."""
        return (
            str(self.cell.fault.removeprefix("serves "))
            if self.role == "decode" and self.server == 0 and "serves" in self.cell.fault
            else ""
        )

    def serve(self, batch: Sequence[Mapping[str, Any]], check: bool) -> dict[str, Any]:
        """Send all of these requests at once, or receive those of this decode server; ``check``: compare what has arrived until now."""
        requests = [rank_memory.Request(**request) for request in batch]
        requests = [request for request in requests if self.role == "prefill" or request.server == self.server]
        before, started = dict(rank_agents.sent), time.monotonic()
        failed = self._send(requests) if self.role == "prefill" else self._receive(requests)
        if self.role == "prefill":
            moved = {name: count - before[name] for name, count in rank_agents.sent.items()}
            now = time.monotonic()
            return {"failed": failed, "wrong": None, "seconds": now - started, "sending": now - (self.sending or now), **moved}
        for request in requests:
            (self.failed if request.room in failed else self.arrived).append(request)
        if not check:
            return {"failed": failed, "wrong": None}
        wrong = rank_memory.difference(self.pool, self.pages, self.arrived, self.failed, self.size, self.rank)
        return {"failed": failed, "wrong": wrong}

    def _send(self, requests: Sequence[rank_memory.Request]) -> dict[int, str]:
        senders = {request.room: _kind(self.cell, "SENDER")(self.manager, self._address, request.room) for request in requests}
        waiting = {request.room: request for request in requests}
        deadline, self.sending = time.monotonic() + self.cell.seconds, None
        while waiting and time.monotonic() < deadline:
            for room, request in list(waiting.items()):
                state = senders[room].poll()
                if state in (WAITING, FAILED):
                    waiting.pop(room)
                    if state == WAITING:
                        self.sending = self.sending or time.monotonic()
                        self._send_one(senders[room], request)
            time.sleep(0.001)
        return self._end(senders, deadline)

    def _send_one(self, sender: Any, request: rank_memory.Request) -> None:
        prefix = sender.pop_decode_prefix_len()
        assert prefix == request.prefix, f"prefix {prefix} for {request.prefix}"
        _positions, pages = self.pages.of[request.room]["full"]
        pages = pages[prefix // self.page_size :]
        sender.init(len(pages), aux_index=request.room % 16)
        step = max(1, request.chunk // self.page_size)
        window = self.pages.of[request.room]["sliding"][1]
        for start in range(0, max(1, len(pages)), step):
            last = start + step >= len(pages)
            sender.send(pages[start : start + step], [window] if last else None)
            if self._dies("prefill", request.room):
                os.kill(os.getpid(), signal.SIGKILL)

    def _receive(self, requests: Sequence[rank_memory.Request]) -> dict[int, str]:
        deadline = time.monotonic() + self.cell.seconds
        while not self.manager.try_ensure_parallel_info(self._address):
            assert time.monotonic() < deadline, "no prefill server"
            time.sleep(0.05)
        receivers = {}
        for request in requests:
            receiver = receivers[request.room] = _kind(self.cell, "RECEIVER")(self.manager, self._address, request.room)
            receiver.init(0)
            pages = self.pages.of[request.room]
            receiver.send_metadata(pages["full"][1], request.room % 16, [pages["sliding"][1]], decode_prefix_len=request.prefix)
            if self._dies("decode", request.room):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.cell.fault == "aborted" and request.room == VICTIM:
                receiver.abort()
        return self._end(receivers, deadline)

    def _end(self, parties: Mapping[int, Any], deadline: float) -> dict[int, str]:
        """Poll until each has ended; why those that failed did."""
        failed: dict[int, str] = {}
        waiting, late = dict(parties), False
        while waiting and not late:
            late = time.monotonic() >= deadline  # a last look where this process stood still
            for room, party in list(waiting.items()):
                state = party.poll()
                if state == SUCCESS:
                    waiting.pop(room).clear()
                elif state == FAILED:
                    waiting.pop(room)
                    try:
                        party.failure_exception()
                    except Exception as error:
                        failed[room] = str(error)
            time.sleep(0.001)
        return {**failed, **dict.fromkeys(waiting, f"no end within {self.cell.seconds:.0f} s")}

    def _dies(self, role: str, room: int) -> bool:
        """Whether it is the last rank of its server, and is to die with this request."""
        return self.role == role and self.cell.fault == f"{role} rank dies" and room == VICTIM and self.rank == self.size - 1

    @property
    def _address(self) -> str:
        return f"{HOST}:{self.port}"


def _kind(cell: Any, kind: str) -> Any:
    from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class

    return get_kv_class(TransferBackend(cell.backend), getattr(KVClassType, kind))


def _publish(live: _Live) -> Any:
    """This process's settings, as the scheduler's process entry does."""
    from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
    from sglang.srt.server_args import ServerArgs

    from sglang_gemma4.cpu.environment import default_engine_arguments
    from sglang_gemma4.diagnostics import rank_limits
    from sglang_gemma4.serving.launch import resolve

    rank_limits.problems = lambda *_: iter(())  # the tiny model gives a name alone: the KV has the heads of a released size
    arguments = ServerArgs(
        **default_engine_arguments(
            {
                "model_path": str(resolve("tiny-26b-a4b")),
                "tp_size": live.size,
                "page_size": live.page_size,
                "disaggregation_mode": live.role,
                "disaggregation_transfer_backend": live.cell.backend,
                "disaggregation_bootstrap_port": live.port,
                "host": HOST,
                "skip_tokenizer_init": True,
            }
        )
    )
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=live.rank, gpu_id=0))
    get_parallel().override_permanently(pp_group=None)  # one pipeline stage: nobody asks it anything
    return arguments


def _manager(live: _Live, arguments: Any) -> Any:
    """SGLang's manager of this rank, given what ``_init_kv_manager`` of its queue gives it."""
    import torch
    from sglang.srt.disaggregation.base.conn import KVArgs
    from sglang.srt.disaggregation.utils import DisaggregationMode, MetadataBuffers, get_kv_transfer_buf_infos, setup_state_kv_args

    given: Any = KVArgs()
    given.engine_rank, given.system_dp_rank, given.pp_rank, given.gpu_id, given.ib_device = live.rank, 0, 0, 0, None
    given.kv_data_ptrs, given.kv_data_lens, given.kv_item_lens = get_kv_transfer_buf_infos(live.pool)
    given.kv_layer_ids, given.num_draft_entries, given.prefill_start_layer, given.prefill_end_layer = [], 0, 0, None
    given.kv_cache_dtype_str = live.cell.kv_format or "bfloat16"
    if live.role == "decode" and live.cell.decode_dtype:
        given.kv_cache_dtype_str = live.cell.decode_dtype
    given.page_size = live.page_size
    given.kv_head_num = live.pool.head_num
    given.total_kv_head_num = rank_memory.MODELS[live._other or live.cell.model].full.heads
    live.metadata = MetadataBuffers(16, 64, torch.float32, 0)  # type: ignore[attr-defined]
    given.aux_data_ptrs, given.aux_data_lens, given.aux_item_lens = live.metadata.get_buf_infos()  # type: ignore[attr-defined]
    setup_state_kv_args(given, live.pool)
    return _kind(live.cell, "MANAGER")(given, DisaggregationMode(live.role), arguments, False)


def _one_count(share: Any) -> Any:
    """The full layers' number of heads for both kinds, as stock has it (26B-A4B: 2 for 8)."""
    return lambda heads, *ranks: share(2 if heads == 8 else heads, *ranks)


def _share_with(change: Any) -> Any:
    def mutant(share: Any) -> Any:
        def changed(*arguments: Any) -> Any:
            part = share(*arguments)
            return part and dataclasses.replace(part, **change(part))

        return changed

    return mutant


def _one_slot_on(name: str) -> Any:
    """Each page of a group to where the next one belongs; the other group is right."""
    return lambda post: (
        lambda manager, prepared, source, target: post(
            manager, prepared, [*source[1:], source[0]] if prepared.layout.name == name else source, target
        )
    )


PLAN, NIXL = "sglang_gemma4.disaggregation.plan", "sglang_gemma4.disaggregation.nixl"
MUTANTS = {
    "one head count": (PLAN, "share", _one_count),
    "one head for full layers": (PLAN, "share", lambda share: lambda heads, *ranks: share(1 if heads == 2 else heads, *ranks)),
    "source offset 0": (PLAN, "share", _share_with(lambda part: {"source": 0})),
    "target offset 0": (PLAN, "share", _share_with(lambda part: {"target": 0})),
    "a replica is missing": (PLAN, "share", _share_with(lambda part: {"replicas": part.replicas + (part.replicas > 1)})),
    "the oldest pages": (PLAN, "newest", lambda _newest: lambda source, target, _what: source[: len(target)]),
    "slots of full layers": (NIXL, "_post", _one_slot_on("full")),
    "slots of sliding layers": (NIXL, "_post", _one_slot_on("sliding")),
}
"""Wrong plans, which a cell must find: what of which module is replaced by what, made of the original."""


def _mutate(name: str) -> None:
    if name == "scales are dropped":
        from sglang_gemma4.attention.quantised_pool import PerTokenHeadPool

        del PerTokenHeadPool.get_contiguous_buf_infos
        return
    module, what, made = MUTANTS[name]
    where = importlib.import_module(module)
    setattr(where, what, made(getattr(where, what)))
