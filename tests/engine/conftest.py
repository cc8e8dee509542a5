"""The fixtures of the engine tests: two nurseries and one server for the session."""

from collections.abc import Iterator

import pytest

from crash_repro.engines import KERNELS_OFF
from tests.harness.engine_fork import Nursery, open_nursery
from tests.harness.live_server import Server, open_server
from tests.hostile import watched


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """The process that has imported SGLang and forks engines."""
    yield from open_nursery(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="session")
def interpreting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A nursery whose Triton kernels run on the CPU: Triton decides that when a kernel is defined."""
    yield from open_nursery(tmp_path_factory.mktemp("interpreting"), TRITON_INTERPRET="1", **KERNELS_OFF)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that all tests over HTTP share; starting it takes a minute or two."""
    folder = tmp_path_factory.mktemp("server")
    with open_server(folder, environment=watched.environment(folder)) as running:
        yield running
