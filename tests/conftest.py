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


@pytest.fixture
def in_child() -> Callable[[Callable[[], Any]], Any]:
    """Patching SGLang cannot be undone: tests that patch do it in a forked child."""
    return _in_child
