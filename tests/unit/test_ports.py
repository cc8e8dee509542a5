"""Ports for what tests start: processes that ask at once get different ones, and none that something listens on."""

import contextlib
import multiprocessing
import socket

from tests.harness import ports


def _some(_: int) -> list[int]:
    return [ports.free_port() for _ in range(40)]


def test_processes_that_ask_at_once_get_different_ones() -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        given = [port for some in pool.map(_some, range(4), chunksize=1) for port in some]
    assert len(set(given)) == len(given) == 160
    assert all(ports.FIRST <= port < ports.FIRST + ports.COUNT for port in given)


def test_one_that_something_listens_on_is_left_out() -> None:
    before = ports.free_port()
    following = ports.FIRST + (before + 1 - ports.FIRST) % ports.COUNT
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # something else does, or another test was given it meanwhile
            other.bind(("", following))
        assert ports.free_port() != following
