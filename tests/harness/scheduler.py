"""A pytest plugin: the order of tests, and which of xdist's processes runs which file.

Test files share processes that are expensive to start, so a file stays in one process and long files begin first.
"""

import functools
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

UNITS_ALONE = "gw2"
"""xdist's name of the process that runs unit tests only."""

LONGEST = ("test_bench.py", "test_prefill_beside.py", "test_hetero_tp.py", "test_memory_pools.py", "test_oracle.py")
"""Files that take minutes and interpret no kernels. Begun last, one of them would keep one process busy while the others are idle."""

TOGETHER = (
    ("/test_one_window.py", "/test_unified_memory.py"),
    ("/test_quantised.py", "/test_quantised_beside.py", "/test_published_layouts.py", "/test_gptq_layout.py", "/test_quantize.py"),
)
"""Files that keep engines' answers or quantised checkpoints for one another."""


@functools.cache
def unit_of_work(path: str) -> str:
    """What xdist gives to one process: a file, the files of an entry of :data:`TOGETHER`, or all files that use the shared server."""
    for unit in TOGETHER:
        if path.endswith(unit):
            return unit[0]
    return "server" if re.search(r"\bserver: Server\b", (ROOT / path).read_text()) and "/engine/" in path else path


def turn(path: str) -> int:
    """The turn of a file: 0 for the shared server, whose files are the longest unit of work; 1 for engines that interpret kernels and for
    :data:`LONGEST`; 2 for other engines; 3 for unit tests.
    """
    if "/unit/" in path:
        return 3
    if unit_of_work(path) == "server":
        return 0
    return 1 if path.endswith(LONGEST) or "interpreting: Nursery" in (ROOT / path).read_text() else 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by their file's turn; within a turn they keep pytest's order."""
    items.sort(key=lambda item: turn(item.nodeid.partition("::")[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``: a scheduler that never parts a unit of work. Under pytest 9.2, xdist's ``--dist loadgroup`` parts the tests of a file.

    Its third process runs unit tests only. With engines in it too, a run took 20 GB and no less time: two cores have enough to do.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of_work(nodeid.partition("::")[0])

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
    """With ``--durations``: the seconds of whole files too, since a file's tests share what takes long."""
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
