"""Send a plan's requests, eight at a time, beside a bystander; notice deaths and hangs, and start the server again where it may."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.hostile import costs, watched
from tests.hostile.bases import ASK, MODEL
from tests.hostile.exchange import Outcome, Request, json_request, send
from tests.hostile.life import Life, Server
from tests.hostile.plan import Plan

IN_FLIGHT = 8
PAUSE = 0.5
"""Seconds between two questions of the bystander."""
DYING = 120
"""Seconds that a server may take to die, with its diagnosis."""
LISTEN_EVERY = 5
"""Seconds between two looks whether the loop still answers."""


@dataclass
class Line:
    """A request and what came of it."""

    request: Request
    outcome: Outcome
    life: int
    """Of which start of the server."""


@dataclass
class Result:
    """All that a run saw."""

    lines: list[Line] = field(default_factory=list)
    deaths: list[dict[str, Any]] = field(default_factory=list)
    hangs: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    answers: int = 0
    changed: list[dict[str, Any]] = field(default_factory=list)
    slowest_answer: float = 0.0
    memory: list[dict[str, Any]] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of CPU that each process took from the first request to the last, where no process ended."""
    pools: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    """Seconds of CPU that one large schema takes, by schema and use."""
    not_sent: int = 0
    seconds: float = 0.0


class Bystander(threading.Thread):
    """Someone who asks one greedy question all the time; each answer has to be the first one, byte for byte."""

    def __init__(self, life: Life, limit: float, result: Result) -> None:
        super().__init__(daemon=True)
        self.life, self.limit, self.result = life, limit, result
        body = {"model": MODEL, "messages": [{"role": "user", "content": ASK}], "max_tokens": 24, "temperature": 0}
        self.request = json_request("bystander", "/v1/chat/completions", body)
        self.expected = self.ask()

    def ask(self) -> str:
        """What matters of an answer; of a failure, its status and text."""
        outcome = send(self.request, self.life.address, self.limit)
        self.result.slowest_answer = max(self.result.slowest_answer, outcome.seconds)
        try:
            choice = json.loads(outcome.text)["choices"][0]
            return f"{outcome.status} {choice['finish_reason']} {choice['message']['content']}"
        except (ValueError, LookupError):
            return f"{outcome.status} {outcome.trouble} {outcome.text[:300]}"

    def run(self) -> None:
        """Ask until the life is over; what fails because the server died is the death's fault."""
        while not self.life.over.wait(PAUSE):
            answer = self.ask()
            if self.life.over.is_set() or (answer != self.expected and self.life.dies()):
                return
            self.result.answers += 1
            if answer != self.expected:
                self.result.changed.append({"answer": answer, "life": self.life.number, "at": time.time()})


class Run:
    """A run of a plan.

    Args:
        plan: the requests.
        start: a new server; None where the one given is all there is.
        limit: seconds within which each request is answered.
        until: ``time.monotonic()`` after which nothing more is sent.
    """

    def __init__(self, plan: Plan, limit: float, start: Callable[[], Server] | None = None, until: float = float("inf")) -> None:
        self.plan, self.limit, self.start, self.until = plan, limit, start, until
        self.result, self.lock = Result(), threading.Lock()
        self.waiting: list[int] = []
        self.whole = True
        self.flying: dict[int, tuple[int, float, str]] = {}
        self.failed: list[BaseException] = []

    def go(self, server: Server, numbers: Iterable[int] | None = None) -> Result:
        """Send all, or some numbers, and say what came of them."""
        began = time.monotonic()
        self.whole = numbers is None
        self.waiting = list(range(self.plan.total)) if numbers is None else list(numbers)
        total = len(self.waiting)
        maker = threading.Thread(target=self._make, args=(list(self.waiting),), daemon=True)
        maker.start()
        life = Life(server, 0)
        while True:
            self._live(life, total)
            found = watched.steps(life.server.log.parent)
            self.result.steps += [{**step, "life": life.number} for step in found if step["at"] > life.began]
            if not life.died or self.start is None or not self.waiting or time.monotonic() > self.until:
                break
            life = Life(self.start(), life.number + 1)
        self.result.not_sent, self.result.seconds = len(self.waiting), time.monotonic() - began
        if self.failed:
            raise self.failed[0]
        return self.result

    def _make(self, numbers: list[int]) -> None:
        try:
            self.plan.generate(numbers)
        except BaseException as error:
            self.failed.append(error)

    def _live(self, life: Life, total: int) -> None:
        """From a start of the server to its end, or to the end of the requests."""
        bystander = Bystander(life, self.limit, self.result)
        bystander.start()
        guard = threading.Thread(target=self._guard, args=(life,), daemon=True)
        guard.start()
        workers = [threading.Thread(target=self._work, args=(life, total), daemon=True) for _ in range(IN_FLIGHT)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        life.over.set()
        bystander.join()
        if not life.died and not self.failed:
            self._close(life)
        self.flying.clear()

    def _work(self, life: Life, total: int) -> None:
        try:
            while not life.over.is_set() and not self.failed and time.monotonic() < self.until:
                number = self._next()
                if number is None:
                    return
                if number < 0:
                    time.sleep(0.05)
                    continue
                self._one(life, number, total)
        except BaseException as error:
            self.failed.append(error)

    def _next(self) -> int | None:
        """The lowest number that can be made; -1 where schemathesis is not that far, None at the end."""
        with self.lock:
            for position, number in enumerate(self.waiting):
                if self.plan.ready(number):
                    del self.waiting[position]
                    return number
            return -1 if self.waiting else None

    def _one(self, life: Life, number: int, total: int) -> None:
        request = self.plan.request(number)
        me = threading.get_ident()
        self.flying[me] = (number, time.monotonic(), request.shown())
        outcome = send(request, life.address, self.limit)
        line = Line(request, outcome, life.number)
        if outcome.trouble and outcome.trouble != "unanswered" and life.dies():
            life.over.wait(30)
            return  # it flew when the server died: named with the death
        del self.flying[me]
        with self.lock:
            self.result.lines.append(line)
            if len(self.result.lines) == total // 4:
                self.result.memory.append(life.memory())
            if outcome.trouble == "unanswered":
                self.result.hangs.append({"request": request.shown(), "life": life.number, "at": time.time()})

    def _guard(self, life: Life) -> None:
        """End a life whose processes ended, or whose loop no longer answers."""
        answered = time.monotonic()
        while not life.over.wait(0.5):
            silent = time.monotonic() - answered
            if gone := life.gone():
                self._died(life, {"ended": gone})
            elif silent > LISTEN_EVERY and life.listens(20):
                answered = time.monotonic()
            elif silent > self.limit and not life.gone():
                self._died(life, {"silent": round(silent)})

    def _died(self, life: Life, why: dict[str, Any]) -> None:
        in_flight = [shown for _, _, shown in self.flying.values()]
        entry = {**why, "life": life.number, "after": len(self.result.lines), "in_flight": in_flight, "log": life.last_words()}
        if "silent" in why:
            self.result.hangs.append(entry)
        else:  # a server that dies answers nobody for a minute: that is its death's fault
            unanswered = [hang["request"] for hang in _taken(self.result.hangs, life)]
            self.result.deaths.append({**entry, "unanswered": unanswered, "bystander": _taken(self.result.changed, life)})
        life.died = True
        life.over.set()
        if "silent" in why:
            life.root.kill()

    def _close(self, life: Life) -> None:
        """At the end: pools, once nothing runs and the cache was flushed, and memory."""
        for _ in range(240):
            if not any(life.running().values()):
                break
            time.sleep(0.25)
        flush = Request("flush", "/flush_cache?timeout=30", headers=())
        flushed = send(flush, life.address, 60).text.strip()
        time.sleep(1)
        self.result.pools = {**life.running(), **life.held(), "flushed": flushed}
        self.result.memory.append(life.memory())
        self.result.cpu = {name: round(seconds - life.before.get(name, 0), 1) for name, seconds in life.seconds().items()}
        if self.whole:
            self.result.costs = costs.of_schemas(life.address, lambda: sum(life.seconds().values()), min(self.limit, 60))


def _taken(entries: list[dict[str, Any]], life: Life) -> list[dict[str, Any]]:
    """What a life gave rise to in the seconds that it may take to die; it is taken out of ``entries``."""
    found = [entry for entry in entries if entry["life"] == life.number and entry.get("at", 0) > time.time() - DYING]
    entries[:] = [entry for entry in entries if entry not in found]
    return found
