"""The random walk of ``flag_walk``: ten seeds to a test, so that engines of the same environment follow each other."""

import pytest

from tests.harness.engine_fork import Nursery
from tests.harness.programs.flag_walk import problems

EACH = 10


@pytest.mark.parametrize("block", range(20))
def test_right_tokens_or_one_line(block: int, nursery: Nursery) -> None:
    found = list(problems(nursery, range(EACH * block, EACH * (block + 1))))
    assert not found, "\n\n".join(found)
