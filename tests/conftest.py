"""Fixtures for all tests."""

import functools
import json
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def _in_child(function: Callable[[], Any]) -> Any:
    """Run ``function`` in a forked child and return its JSON-able result; the child's traceback fails the test."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
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


@functools.cache
def _unit_of_work(path: str) -> str:
    """A file of tests; for files that share a fixture which takes a minute to start, the fixture."""
    found = re.search(r"\b(interpreting|server): (?:Nursery|Server)\b", (ROOT / path).read_text())
    return found[1] if found else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, and the unit tests fill what is left of two processes."""
    order = {"interpreting": 0, "server": 1}
    items.sort(key=lambda item: order.get(_unit_of_work(item.nodeid.partition("::")[0]), 3 if "/unit/" in item.nodeid else 2))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n 2``. xdist's own ``--dist loadgroup`` sees no groups under pytest 9.2, and then parts even the tests of a file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFixture(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit_of_work(nodeid.partition("::")[0])

    config.option.loadscopereorder = False
    return ByFixture(config, log)


@pytest.fixture
def in_child() -> Callable[[Callable[[], Any]], Any]:
    """Patching SGLang cannot be undone: tests that patch do it in a forked child."""
    return _in_child
