"""``--load-format dummy`` on real engines: with the package tokens vary, on stock one token repeats."""

import pytest

from sglang_gemma4.tiny import checkpoints
from tests.harness.engine_fork import Group, Nursery

PROMPTS = [[2, *range(100 + 7 * i, 140 + 9 * i)] for i in range(4)]


@pytest.mark.parametrize("family", ["tiny-26b-a4b", "tiny-e2b"])
def test_tokens_vary(family: str, nursery: Nursery) -> None:
    distinct = {}
    for arm, switch in (("package", "1"), ("stock", "0")):
        (outputs,) = nursery.run(
            checkpoints.SHIPPED / family,
            [Group(PROMPTS, {"max_new_tokens": 64})],
            env={"SGLANG_GEMMA4_DUMMY_WEIGHTS": switch},
            load_format="dummy",
        )
        distinct[arm] = [len(set(output.token_ids)) for output in outputs]
    print(family, distinct)
    assert min(distinct["package"]) >= 16, distinct
    assert max(distinct["stock"]) < 16, distinct
