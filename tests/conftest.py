"""Fixtures for all tests."""

import functools
import gc
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import reach

ROOT = Path(__file__).parents[1]
# Unbuffered, print writes a line and its end apart, and the lines of two ranks meet in one log. What tests read is flushed line by line.
os.environ.pop("PYTHONUNBUFFERED", None)


def _in_child(function: Callable[[], Any]) -> Any:
    """Run ``function`` in a forked child and return its JSON-able result; the child's traceback fails the test."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        gc.disable()  # it ends soon: a collection would look through, and copy, all that the parent has imported
        try:
            answer = {"result": function()}
        except BaseException:  # also SystemExit: whatever ends the child is the parent's to judge
            answer = {"error": traceback.format_exc()}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    answer = json.loads(text)
    if "error" in answer:
        pytest.fail(f"in the child process:\n{answer['error']}")
    return answer["result"]


UNITS_ALONE = "gw2"
"""xdist's name of the process that has no engines."""
LONGEST = ("test_bench.py", "test_prefill_beside.py", "test_hetero_tp.py", "test_memory_pools.py", "test_oracle.py")
"""Files of minutes whose engines interpret nothing: one that begins last keeps one process busy while the others have nothing left."""

TOGETHER = (
    ("/test_one_window.py", "/test_unified_memory.py"),
    ("/test_quantised.py", "/test_quantised_beside.py", "/test_published_layouts.py", "/test_gptq_layout.py", "/test_quantize.py"),
)
"""Files that keep engines' answers and quantised checkpoints for one another."""


@functools.cache
def _unit_of_work(path: str) -> str:
    """A file of tests; for those that ask for the one server, which takes a minute or two to start, the server.

    Files whose engines are compared with the same answers, or load the same checkpoints, are one unit.
    """
    for unit in TOGETHER:
        if path.endswith(unit):
            return unit[0]
    return "server" if re.search(r"\bserver: Server\b", (ROOT / path).read_text()) and "/engine/" in path else path


if reach.FOLDER:
    reach.record_hooks()


def pytest_runtest_call() -> None:
    """For tests/harness/reach.py: once Triton is there, its launches are recorded."""
    if reach.FOLDER and "triton" in sys.modules:
        reach.record_kernels()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file has imported stays: the collector is not to look SGLang through again and again, a sixth of the unit tests' time."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--all`` runs the tests of tests/extended.txt too."""
    parser.addoption("--all", action="store_true", help="also the tests of tests/extended.txt")


EXTENDED = tuple(line for line in (ROOT / "tests" / "extended.txt").read_text().splitlines() if line and not line.startswith("#"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave extended tests out unless all are asked for or one is named; then what takes longest begins first.

    Engines that interpret kernels come first of all; unit tests fill what is left of two processes.
    """
    named = any("::" in argument for argument in config.args)
    if not config.getoption("--all") and not named:
        extended = [item for item in items if item.nodeid.startswith(EXTENDED)]
        config.hook.pytest_deselected(items=extended)
        items[:] = [item for item in items if item not in set(extended)]

    def turn(item: pytest.Item) -> int:
        path = item.nodeid.partition("::")[0]
        if "/unit/" in path:
            return 3
        return 1 if path.endswith(LONGEST) or "interpreting: Nursery" in (ROOT / path).read_text() else 2

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``. xdist's own ``--dist loadgroup`` sees no groups under pytest 9.2, and then parts even the tests of a file.

    A third process has unit tests alone: engines wait for each other's processes a sixth of the time, and each process with engine tests
    has some 4 GB of nurseries. With engines it took 20 GB in all and no less time: two cores have enough to do.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit_of_work(nodeid.partition("::")[0])

        def _assign_work_unit(self, node: Any) -> None:
            if node.gateway.id == UNITS_ALONE:
                first = next((path for path in self.workqueue if "/unit/" in path), None)
                if first is None:
                    node.shutdown()
                    return
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With ``--durations``: the seconds of whole files too, since a file's cases share what takes long."""
    if not config.getoption("durations"):
        return
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if path := getattr(report, "fspath", None):
                seconds[path] = seconds.get(path, 0.0) + getattr(report, "duration", 0.0)
    longest = sorted(seconds, key=lambda path: -seconds[path])[: config.getoption("durations")]
    terminalreporter.section(f"{sum(seconds.values()):.0f} process-seconds in {len(seconds)} files")
    for path in longest:
        terminalreporter.write_line(f"{seconds[path]:7.1f} s {path}")


@pytest.fixture
def in_child() -> Callable[[Callable[[], Any]], Any]:
    """Patching SGLang cannot be undone: tests that patch do it in a forked child."""
    return _in_child
