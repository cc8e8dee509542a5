"""Inside the server: how long one step of the HTTP server's event loop takes, in CPU time of its thread.

CPU time instead of wall time, since a busy machine may stop the thread at any moment. SGLang calls :func:`install` in all its processes as
a plugin (``watched.py`` makes it known); only the process that serves HTTP does more than return. ``HOSTILE_HEARTBEAT`` names the file
that gets one JSON line for each step longer than ``WORTH_A_LINE``: what ran, for which request, and where it stood when it was seen.
"""

import asyncio
import contextvars
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

FILE = "HOSTILE_HEARTBEAT"
HEADER = b"x-hostile-number"
WORTH_A_LINE = 0.02
"""Seconds of CPU."""
LOOK_EVERY = 0.02
"""Seconds between two looks of the thread that names what runs, and between two ticks of the loop."""
FRAMES = 7

NUMBER: contextvars.ContextVar[str] = contextvars.ContextVar("hostile_number", default="")
Application = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]


def install() -> None:
    """Watch the loop of uvicorn's server from its start, if this process is asked for it."""
    if FILE not in os.environ:
        return
    import uvicorn

    startup = uvicorn.Server.startup

    async def watched(server: Any, *args: Any, **kwargs: Any) -> None:
        server.config.loaded_app = _numbered(server.config.loaded_app)
        Heartbeat(asyncio.get_running_loop(), Path(os.environ[FILE])).start()
        await startup(server, *args, **kwargs)

    uvicorn.Server.startup = watched  # type: ignore[method-assign, assignment]


def _numbered(application: Application) -> Application:
    """The application, with the number that the suite's client gave a request known to all that the request starts."""

    async def called(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            NUMBER.set(next((value.decode("latin1") for name, value in scope["headers"] if name == HEADER), ""))
        await application(scope, receive, send)

    return called


class Heartbeat:
    """The longest steps of one event loop. ``start`` is called in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: Path) -> None:
        self.loop, self.thread = loop, threading.get_ident()
        self.out = file.open("a", buffering=1)
        self.began = 0.0  # CPU time of the loop's thread as its present step began; 0 between steps
        self.collected = 0.0  # seconds of CPU that the collector took in the loop's thread, ever
        self.in_steps = 0.0  # seconds of CPU that tasks took since the last tick
        self.stack: list[str] = []

    def start(self) -> None:
        """Measure all tasks that are made from here on, all callbacks together between two ticks, and the collector."""
        self.loop.set_task_factory(self._task)
        self._collections()
        self._tick(time.thread_time(), time.monotonic())
        threading.Thread(target=self._look, name="hostile-heartbeat", daemon=True).start()

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        return asyncio.Task(_Measured(coroutine, self), loop=loop, **options)

    def step(self, coroutine: Any, call: Callable[..., Any], *args: Any) -> Any:
        """One step of a task; what it took is written when it was long."""
        self.began, collected = time.thread_time(), self.collected
        try:
            return call(*args)
        finally:
            took = time.thread_time() - self.began
            self.began = 0.0
            self.in_steps += took
            if took - (self.collected - collected) > WORTH_A_LINE:
                self._write("step", took - (self.collected - collected), getattr(coroutine, "__qualname__", repr(coroutine)))

    def _tick(self, cpu: float, wall: float) -> None:
        """Between ticks the loop ran tasks' steps, which are measured one by one, and callbacks, which are measured here together."""
        now, clock = time.thread_time(), time.monotonic()
        if (outside := now - cpu - self.in_steps) > WORTH_A_LINE:
            self._write("callbacks", outside, "")
        if clock - wall > 5 * LOOK_EVERY:
            self._write("wall", clock - wall, "")  # for information: other processes count in it
        self.in_steps = 0.0
        self.loop.call_later(LOOK_EVERY, self._tick, now, clock)

    def _collections(self) -> None:
        """Time the garbage collector's work apart: no request is to blame for the size of the heap."""
        began = 0.0

        def seen(phase: str, information: dict[str, int]) -> None:
            nonlocal began
            if threading.get_ident() != self.thread:
                return
            if phase == "start":
                began = time.thread_time()
                return
            took = time.thread_time() - began
            self.collected += took
            if took > WORTH_A_LINE:
                self._write("collector", took, f"generation {information['generation']}")

        gc.callbacks.append(seen)

    def _look(self) -> None:
        """Keep the stack of a step that already takes long; the thread's own CPU clock says how long."""
        clock = time.pthread_getcpuclockid(self.thread)
        while True:
            time.sleep(LOOK_EVERY)
            began = self.began
            if began and time.clock_gettime(clock) - began > WORTH_A_LINE:
                self.stack = _where(sys._current_frames().get(self.thread))

    def _write(self, what: str, seconds: float, name: str) -> None:
        where, self.stack = (self.stack, []) if what == "step" else ([], self.stack)
        entry = {"what": what, "ms": round(1000 * seconds, 1), "name": name, "number": NUMBER.get(), "where": where, "at": time.time()}
        self.out.write(json.dumps(entry) + "\n")


class _Measured(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are measured."""

    def __init__(self, coroutine: Any, heartbeat: Heartbeat) -> None:
        self.coroutine, self.heartbeat = coroutine, heartbeat

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coroutine, name)  # anyio asks whether it has begun

    def send(self, value: Any) -> Any:
        return self.heartbeat.step(self.coroutine, self.coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self.heartbeat.step(self.coroutine, self.coroutine.throw, *error)

    def close(self) -> None:
        self.coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.coroutine.__await__()  # type: ignore[no-any-return]


def _where(frame: Any) -> list[str]:
    """The innermost frames, each as ``folder/file.py:line function``, the outermost of them first."""
    found: list[str] = []
    while frame is not None and len(found) < FRAMES:
        code = frame.f_code
        found.append(f"{'/'.join(code.co_filename.split('/')[-2:])}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return found[::-1]
