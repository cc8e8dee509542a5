"""What engine tests read from their nursery's pipe."""

import os
import time
from collections.abc import Iterator

import pytest

from tests.harness.json_lines import JsonLines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_two_lines_that_come_together_are_two_answers(pipe: tuple[int, int]) -> None:
    """An engine that is refused at once answers before its process id was read."""
    read, write = pipe
    lines = JsonLines(read)
    os.write(write, b'{"pid": 7}\n{"error": "refused"}\n')
    assert lines.next(time.monotonic() + 5) == {"pid": 7}
    assert lines.next(time.monotonic() + 5) == {"error": "refused"}


def test_a_line_that_comes_in_parts(pipe: tuple[int, int]) -> None:
    read, write = pipe
    lines = JsonLines(read)
    os.write(write, b'{"groups": [1')
    with pytest.raises(TimeoutError):
        lines.next(time.monotonic() + 0.05)
    os.write(write, b', 2]}\n{"pid"')
    assert lines.next(time.monotonic() + 5) == {"groups": [1, 2]}


def test_the_end() -> None:
    read, write = os.pipe()
    os.write(write, b'{"pid": 7')
    os.close(write)
    with pytest.raises(EOFError):
        JsonLines(read).next(time.monotonic() + 5)
    os.close(read)
