"""Fixtures for all tests."""

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest


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


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For ``--dist loadgroup``: a file stays in one process, and so do the files that share a fixture which takes a minute to start."""
    groups = {item.path: item.path.name for item in items}
    for item in items:
        for fixture in ("interpreting", "server"):
            if fixture in getattr(item, "fixturenames", ()):
                groups[item.path] = fixture
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.path]))


@pytest.fixture
def in_child() -> Callable[[Callable[[], Any]], Any]:
    """Patching SGLang cannot be undone: tests that patch do it in a forked child."""
    return _in_child
