"""Run real SGLang engines on the CPU, each in a process forked from one that has imported SGLang.

Importing SGLang costs half a minute. A *nursery* process (``nursery.py``) does it once per test session and forks a process per engine.
Patches are placed once for each environment. Cases and answers travel as JSON lines over pipes. Each case has a log file of its own. An
engine serves its case's groups of requests one after the other.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglang_gemma4.patching.switches import BESIDE
from tests.harness import is_off
from tests.harness.json_lines import JsonLines

HERE = Path(__file__).parent
LOG_TAIL = 80
"""Lines of the engine's log in a failure message."""

SECONDS_TO_END = 120.0
"""Seconds in which the nursery must report that a killed engine has ended."""

CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_INVARIANT_CHECK": "2",
    "SGLANG_GEMMA4_STRICT": "1",
}
"""SGLang's own checks of its pools and numbers, all fatal, and ours of the patches."""


@dataclass
class Output:
    """One answer. ``logprobs`` holds the log-probability of each output token where the group asked for it."""

    token_ids: list[int]
    text: str
    logprobs: list[float]
    meta_info: dict[str, Any]
    log: str = field(repr=False)


@dataclass
class Group:
    """Requests sent together as one batch to the engine.

    Attributes:
        prompts: each a list of token ids or a text.
        sampling: sampling parameters of all, or one mapping for each prompt. Greedy unless it says otherwise.
        images: one path (or list of paths) for each prompt, or None.
        logprobs: return the log-probability of each output token.
        flush: empty the radix cache first.
        client: "module:function", a module of tests/harness/engine_clients: it sends the group in its own way and returns the answers.
        extra: what that function reads beside the rest.
    """

    prompts: Sequence[list[int] | str]
    sampling: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict)
    images: Sequence[str | list[str]] | None = None
    logprobs: bool = False
    flush: bool = False
    client: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


NO_DUMPS = {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}
"""With these an engine whose scheduler died ends without dumps, for which SGLang would first wait five seconds."""

INTERPRETED = ("qkv_rope", "kv_write", "fresh_kv", "draft_argmax", "grouped_experts")
"""Patches that the nursery with Triton's interpreter leaves out in addition to switches
(``crash_repro.engines.KERNELS_OFF``)."""


def without(*patches: str) -> dict[str, str]:
    """The environment that leaves single patches out, and no others."""
    return {"SGLANG_GEMMA4_WITHOUT": ",".join(patches)}


class EngineFailed(AssertionError):  # noqa: N818 - it reads as a sentence in a test
    """The engine process ended, hung or answered with an error; the message carries the end of its log."""


class Nursery:
    """The process that has imported SGLang, with ``variables`` in its environment, and forks engines."""

    def __init__(self, log_folder: Path, **variables: str) -> None:
        self.log_folder = log_folder
        self.cases = 0
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **NO_DUMPS, **variables}
        self._start()

    def _start(self) -> None:
        """A new process. It answers the first case when it has imported SGLang."""
        self.log_path = self.log_folder / f"nursery{self.cases}.log"
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "nursery.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self._answers = JsonLines(self.process.stdout.fileno())

    def run(
        self,
        model: str | Path,
        groups: Sequence[Group],
        env: Mapping[str, str] | None = None,
        time_limit: float = 400.0,
        own_patches: Any = False,  # a bool; but then mypy would refuse ``**options`` of other types
        **engine_kwargs: Any,
    ) -> list[list[Output]]:
        """Start an engine, send the groups one after the other, stop it; outputs by group and prompt.

        Args:
            own_patches: the engine's process places the patches itself. By default an engine is forked with them in
                place.

        Raises:
            EngineFailed: on any error or after ``time_limit`` seconds, with the end of the log.
        """
        own = {**({} if is_off("checks") else CHECKS), **(env or {})}
        if "TEST_INSTRUMENTS" in own:  # it may wrap what this patch hooks, whose source would then not be the known one
            own.setdefault(BESIDE, "0")
        case = {
            "model": str(model),
            "groups": [asdict(group) for group in groups],
            "env": own,
            "own_patches": own_patches,
            "engine": {key: str(value) if isinstance(value, Path) else value for key, value in engine_kwargs.items()},
        }
        answer, log = self._fork(case, time_limit)
        text = log.read_text(errors="replace")
        return [[Output(**output, log=text) for output in group] for group in answer["groups"]]

    def run_script(self, script: Path, env: Mapping[str, str], time_limit: float, own_patches: bool, *arguments: str) -> tuple[int, str]:
        """Run a script of ``crash_repro`` with ``arguments`` in its own process; returns its exit status and output.

        Args:
            own_patches: the script, or each of its engines, places the patches, as without a nursery; else they are
                in place as it begins.

        Raises:
            EngineFailed: an exception left it, or ``time_limit`` seconds went by, with the end of its output.
        """
        answer, log = self._fork({"script": str(script), "arguments": arguments, "env": dict(env), "own_patches": own_patches}, time_limit)
        return answer["status"], log.read_text(errors="replace")

    def _fork(self, case: dict[str, Any], time_limit: float) -> tuple[dict[str, Any], Path]:
        if self.cases and is_off("nursery"):
            self._restart()
        self.cases += 1
        log = self.log_folder / f"case{self.cases}.log"
        case["log"] = str(log)
        case["env"]["PYTEST_CURRENT_TEST"] = os.environ.get("PYTEST_CURRENT_TEST", "")  # for tests/harness/reach.py
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(case).encode() + b"\n")
        self.process.stdin.flush()
        try:
            pid = self._answer(400, self.log_path)["pid"]  # the first one waits for the imports
        except EngineFailed:
            self._restart()
            raise
        try:
            answer = self._answer(time_limit, log)
            _kill_group(pid)
        except EngineFailed:
            _kill_group(pid)
            try:
                self._answer(SECONDS_TO_END, log)  # that it ended
            except EngineFailed:
                self._restart()
            raise
        if "error" in answer:
            raise EngineFailed(f"{answer['error']}\n{_tail(log)}")
        return answer, log

    def _answer(self, seconds: float, log: Path) -> dict[str, Any]:
        try:
            return self._answers.next(time.monotonic() + seconds)
        except TimeoutError:
            raise EngineFailed(f"time limit reached\n{_tail(log)}") from None
        except EOFError:
            raise EngineFailed(f"the nursery ended\n{_tail(self.log_path)}") from None

    def _restart(self) -> None:
        """Start a new process after a case whose end the nursery did not report: the next case would get that case's
        answer."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the nursery and whatever it still has."""
        _kill_group(self.process.pid)
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a case that it never read
                pipe.close()


def run_engine(
    nursery: Nursery,
    *,
    model: str | Path,
    prompts: Sequence[list[int] | str],
    sampling: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    images: Sequence[str | list[str]] | None = None,
    logprobs: bool = False,
    **engine_kwargs: Any,
) -> list[Output]:
    """One engine, one group of prompts."""
    group = Group(prompts, sampling or {}, images, logprobs)
    return nursery.run(model, [group], env, **engine_kwargs)[0]


def open_nursery(log_folder: Path, **variables: str) -> Iterator[Nursery]:
    """For a pytest fixture: a nursery that is closed at the end."""
    nursery = Nursery(log_folder, **variables)
    try:
        yield nursery
    finally:
        nursery.close()


def _kill_group(pid: int) -> None:
    """End the process group that we started under ``pid``."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else ["(no log)"]
    return f"--- end of {log} ---\n" + "\n".join(lines[-LOG_TAIL:])
