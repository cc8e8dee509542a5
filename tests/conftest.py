"""Options, selection and fixtures of all tests. tests/harness/README.md describes what stands behind them."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import child, is_off, reach, scheduler

ROOT = Path(__file__).parents[1]
EXTENDED = tuple(line for line in (ROOT / "tests" / "extended.txt").read_text().splitlines() if line and not line.startswith("#"))
"""Tests that run with ``--all`` only, or when they are named."""

# Unbuffered, print writes a line and its end apart, and the lines of two ranks meet in one log. What tests read is flushed line by line.
os.environ.pop("PYTHONUNBUFFERED", None)
# Servers take the cores that are free at their start, and the tests beside them take those later: answers would take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if reach.FOLDER:
    reach.record_hooks()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--all`` runs the tests of tests/extended.txt too."""
    parser.addoption("--all", action="store_true", help="also the tests of tests/extended.txt")


def pytest_configure(config: pytest.Config) -> None:
    """The scheduler is a plugin of its own, so that it can be left out."""
    if not is_off("scheduler"):
        config.pluginmanager.register(scheduler, "gemma4-scheduler")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave extended tests out unless all are asked for or one is named."""
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    extended = [item for item in items if item.nodeid.startswith(EXTENDED)]
    config.hook.pytest_deselected(items=extended)
    items[:] = [item for item in items if item not in set(extended)]


def pytest_runtest_call() -> None:
    """For tests/harness/reach.py: once Triton is imported, its launches are recorded."""
    if reach.FOLDER and "triton" in sys.modules:
        reach.record_kernels()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file, exempt what it imported from garbage collection: visiting SGLang again took a sixth of the unit tests' time."""
    if (nextitem is None or nextitem.path != item.path) and not is_off("freeze"):
        gc.collect()
        gc.freeze()


@pytest.fixture
def in_child() -> Callable[[Callable[[], Any]], Any]:
    """Patching SGLang cannot be undone: tests that patch do it in a forked child."""
    return child.run_in_child
