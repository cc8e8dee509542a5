"""Run a function in a forked child: patching SGLang cannot be undone, so tests that patch it do so there."""

import gc
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest

InChild = Callable[[Callable[[], Any]], Any]
"""The fixture ``in_child`` of ``tests/conftest.py``."""


def run_in_child(function: Callable[[], Any]) -> Any:
    """The JSON-able result of ``function`` in a forked child; the child's traceback fails the test."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        gc.disable()  # the child ends soon: a collection would visit, and copy, all that the parent has imported
        try:
            answer = {"result": function()}
        except BaseException:  # also SystemExit: the parent decides about whatever ends the child
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
