"""The fixture of the engine tests: one nursery for the session."""

from collections.abc import Iterator

import pytest

from tests.engine.engine_fork import Nursery, open_nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """The process that has imported SGLang and forks engines."""
    yield from open_nursery(tmp_path_factory.mktemp("engines"))
