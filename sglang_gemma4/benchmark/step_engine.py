"""The parent's side of an arm's ``step_times`` process, and what parallel arms share: the GPU, and a copy of random weights."""

import contextlib
import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import records, step_curve
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import Plan, Task, task_of
from sglang_gemma4.benchmark.server import Died, tail
from sglang_gemma4.patching.switches import SHARED_WEIGHTS

PATIENCE = 60.0
"""Seconds that a dismissed engine has to end by itself before it is killed."""


class TimeIsUp(Exception):  # noqa: N818 - the run's limit, not a mistake
    """The run's time limit has passed."""


SHARED_FROM = 16 << 20
"""Bytes of the smallest tensor that arms share: the experts, the projections and the embeddings of a real size."""


@contextlib.contextmanager
def environment(plan: Plan) -> Iterator[dict[str, str]]:
    """The environment of the processes of arms that run in parallel; a shared copy of the weights exists inside this context."""
    if not plan.share_weights:
        yield plan.environment
        return
    with tempfile.TemporaryDirectory() as folder:
        yield {**plan.environment, SHARED_WEIGHTS: f"{SHARED_FROM}:{folder}"}


@contextlib.contextmanager
def held(lock: Path | None, ends: float | None, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file of the GPU; without one, do not wait.

    Raises:
        TimeIsUp: another process held it until the run's time limit.
    """
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        for attempt in itertools.count():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if ends is not None and time.monotonic() > ends:
                    raise TimeIsUp from None
                if not attempt:
                    progress(f"waiting for the GPU: another process holds {lock}")
                time.sleep(0.2)
        yield


class StepEngine:
    """``sglang_gemma4.benchmark.step_times`` in its own process group; it does its next task when it reads a line."""

    def __init__(
        self, plan: Plan, arm: Arm, environment: dict[str, str], round_: int, tasks: list[Task], card: dict[str, Any] | None
    ) -> None:
        self.plan, self.arm, self.tasks = plan, arm, tasks
        self.log = plan.log(arm, "-engine")
        order = {
            "raw": str(plan.raw),
            "arm": arm.name,
            "round": round_,
            "model": plan.model,
            "arguments": [*plan.arguments, *arm.arguments],
            "cpu": plan.cpu,
            "input_tokens": plan.step_tokens[0],
            "output_tokens": plan.step_tokens[1],
            "prefill_once": plan.prefill_once,
            "tasks": tasks,
            "card": card,
        }
        scratch = plan.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        path = scratch / f"order-{plan.arms.index(arm)}.json"
        path.write_text(json.dumps(order))
        self._before = self._told = len(records.read(plan.raw))
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang_gemma4.benchmark.step_times", str(path)],
                env={**os.environ, **environment, **arm.environment},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_up(self, ends: float | None, progress: Callable[[str], None]) -> None:
        """Wait until the engine can take its first task.

        Raises:
            Died: it ended, or hung for ``plan.start_limit`` seconds.
            TimeIsUp: ``ends`` (of ``time.monotonic()``) has passed.
        """
        self._wait(lambda record: record["kind"] == "start", self.plan.start_limit, ends, progress)

    def do(self, task: Task, ends: float | None, progress: Callable[[str], None]) -> None:
        """Run one task until its record is on disk; raises as :meth:`wait_until_up`, with ``plan.pass_limit``."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: the wait below reports it
            self.process.stdin.write(b"go on\n")
            self.process.stdin.flush()
        self._wait(lambda record: task_of(record) == task, self.plan.pass_limit, ends, progress)

    def dismiss(self) -> None:
        """Let the engine end; call this once no engine that may share its weights has anything left to do."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def finish(self, progress: Callable[[str], None]) -> None:
        """Wait up to :data:`PATIENCE` for a dismissed engine to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process.wait(PATIENCE) == 0:
                return
        progress("the engine did not end after its last task and is killed")

    def stop(self) -> None:
        """Kill the whole process group, including the engine's own processes: the next arm needs an empty GPU."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.dismiss()

    def _wait(self, found: Callable[[records.Record], bool], limit: float, ends: float | None, progress: Callable[[str], None]) -> None:
        began = time.monotonic()
        while True:
            status = self.process.poll()  # before the records are read, so that none is missed
            lines = records.read(self.plan.raw)
            mine = [line for line in lines[self._before :] if line.get("arm") == self.arm.name]
            for line in lines[self._told :]:
                if line.get("arm") == self.arm.name:
                    progress(_said(line))
            self._told = len(lines)
            if any(found(line) for line in mine):
                return
            if status is not None:
                raise Died(status, tail(self.log))
            now = time.monotonic()
            if ends is not None and now > ends:
                raise TimeIsUp
            if now - began > limit:
                raise Died(None, tail(self.log))
            time.sleep(0.2)


def _said(line: records.Record) -> str:
    if line["kind"] == "start":
        return f"engine up after {line['seconds']:.0f} s"
    if line["kind"] == "profile":
        return f"profile of {line['stage']} at batch {line['batch']}: {line['steps']} steps, {len(line['kernels'])} kernels"
    if line["kind"] == "curve":
        return step_curve.said(line)
    which = f"{line['repetition'] + 1}" if line["counted"] else "warm-up"
    return f"batch {line['batch']} {which}: {line['step_ms']:.2f} ms a step, {line['output_throughput']:.0f} output tokens/s"
