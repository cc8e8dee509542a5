"""Ranks of a prefill server and of decode servers, a process each, with SGLang's own managers, senders and receivers between them."""

import ctypes
import dataclasses
import gc
import itertools
import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import rank_life  # type: ignore[import-not-found]
import rank_memory  # type: ignore[import-not-found]

PATIENCE = 150.0
"""Seconds beyond a cell's own in which every byte is compared, on a machine that may be busy."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is tried: a model, sizes of the prefill server and of each decode server, and requests.

    ``exact``: the prefill server names the sliding pages that the decode server asks for, else its whole window.
    ``one_by_one``: requests one after the other, and bytes are compared behind the last alone: for times.
    ``kv_format``: a cache of the package's with scales, of this name.
    ``decode_page_size`` and ``decode_dtype`` differ from the prefill server's where that is what is tried; ``env`` is every rank's.
    """

    model: str
    prefill: int
    decode: Sequence[int]
    page_size: int
    requests: Sequence[rank_memory.Request]
    backend: str = "nixl"
    exact: bool = True
    decode_page_size: int | None = None
    decode_dtype: str | None = None
    kv_format: str = ""
    one_by_one: bool = False
    seconds: float = 30.0
    fault: str = ""
    mutant: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Rank:
    """A rank's process and the pipe to it."""

    def __init__(self, cell: Cell, role: str, server: int, rank: int, port: int) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe()
        self.name = f"{role} rank {rank}"
        self.process = context.Process(target=rank_life.live, args=(cell, role, server, rank, port, there), daemon=True)
        self.process.start()
        there.close()

    def tell(self, *words: Any) -> None:
        """Send a command."""
        self.pipe.send(words)

    def answer(self, seconds: float) -> Any:
        """What it says next; or a text that it has died, or said nothing in time."""
        if not self.pipe.poll(seconds):
            return f"{self.name} said nothing for {seconds:.0f} s"
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            return f"{self.name} died"

    def end(self) -> None:
        """Kill it; it was started here."""
        self.process.kill()
        self.process.join(10)


def run(cell: Cell) -> dict[str, Any]:
    """Try a cell: for each decode rank's request how it ended, what differs, and bytes and seconds of the prefill ranks.

    Returns:
        ``wrong``: None, or the first thing that is; ``requests``: by room the reasons of failures, empty for none; ``bytes``, ``pieces``
        and ``seconds`` of the prefill ranks' KV; ``slowest``: of each batch the seconds that the slowest prefill rank sent.
    """
    from sglang.srt.utils.network import get_free_port

    gc.freeze()  # a rank that collects would copy all that SGLang's import has made
    port = get_free_port()
    context = multiprocessing.get_context("fork")
    bootstrap = context.Process(target=_bootstrap, args=(port,), daemon=True)
    bootstrap.start()
    prefill = [Rank(cell, "prefill", 0, rank, port) for rank in range(cell.prefill)]
    decode = [Rank(cell, "decode", server, rank, port) for server, size in enumerate(cell.decode) for rank in range(size)]
    everyone = [*prefill, *decode]
    try:
        up = [rank.answer(4 * PATIENCE) for rank in everyone]
        if bad := [answer for answer in up if answer != "up"]:
            return {"wrong": f"a rank did not start: {bad[0]}", "requests": {}}
        batches = _batches(cell)
        said = []
        for number, requests in enumerate(batches):
            check = not cell.one_by_one or number == len(batches) - 1
            for rank in everyone:
                rank.tell("serve", [dataclasses.asdict(request) for request in requests], check)
            said.append([(rank, rank.answer(cell.seconds + PATIENCE)) for rank in everyone])
        return _judge(cell, said)
    finally:
        for rank in everyone:
            rank.end()
        bootstrap.kill()
        bootstrap.join(10)


def _batches(cell: Cell) -> list[list[rank_memory.Request]]:
    """All requests at once, or each alone; where a prefill rank is to die the one that it dies with comes after the others."""
    if cell.one_by_one:
        return [[request] for request in cell.requests]
    last = [request for request in cell.requests if cell.fault == "prefill rank dies" and request.room == rank_life.VICTIM]
    return [batch for batch in ([request for request in cell.requests if request not in last], last) if batch]


def _judge(cell: Cell, said: Sequence[Sequence[tuple[Rank, Any]]]) -> dict[str, Any]:
    """What the ranks have said of each batch, as ``run`` returns it."""
    reasons: dict[int, list[str]] = {request.room: [] for request in cell.requests}
    died: list[str] = []
    wrong, totals = None, {"bytes": 0, "pieces": 0, "seconds": 0.0}
    for rank, answer in itertools.chain(*said):
        if isinstance(answer, str):
            if answer.endswith("died") and "dies" in cell.fault:
                died.append(rank.name)
            else:
                wrong = wrong or answer
            continue
        for room, reason in answer["failed"].items():
            reasons[room].append(f"{rank.name}: {reason}")
        wrong = wrong or answer["wrong"]
        for name in totals:
            totals[name] += answer.get(name, 0)
    failures = [reason for each in reasons.values() for reason in each]
    slowest = [max((answer.get("sending", 0.0) for _rank, answer in batch if isinstance(answer, dict)), default=0.0) for batch in said]
    wrong = wrong or (failures[0] if failures and not cell.fault else None)
    return {"wrong": wrong, "requests": reasons, "died": died, "slowest": slowest, **totals}


def _bootstrap(port: int) -> None:
    from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

    ctypes.CDLL(None).prctl(rank_life.PR_SET_PDEATHSIG, signal.SIGKILL)
    server = CommonKVBootstrapServer(rank_life.HOST, port)
    server.thread.join()
