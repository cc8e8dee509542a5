"""The isolation of failing requests on a card: the overlapped loop, CUDA graphs and their streams are real there.

In bfloat16 a request that is prefilled again may round otherwise, so what is compared is who is answered and with how many tokens.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_isolation import ALONE, LENGTHS, group
from tests.engine.test_oracle import Case
from tests.gpu.test_gpu import run_case
from tests.harness.engine_fork import Group
from tests.harness.inputs.drafting import MTP, with_assistant
from tests.harness.instruments.faults import SAID

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
TARGET = checkpoints.SHIPPED / "tiny-26b-a4b"
ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mtp": with_assistant(TARGET),
    "synchronous": {"disable_overlap_schedule": True},
    "graphs": {"disable_prefill_cuda_graph": False, **MTP, "speculative_draft_model_path": f"{TARGET}-assistant"},
}


class Failing(Case):
    """One group for each kind of failure, and one without."""

    def __init__(self) -> None:
        super().__init__(TARGET, [], [])

    def groups(self) -> list[Group]:
        return [*(group(fault) for fault in ALONE), group("prefill", "decode", "result"), group("two_together", "two_together"), group()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[dict[str, Any]]]]:
    """Each group's answers, by arm; four engines at a time."""
    folder: Path = tmp_path_factory.mktemp("isolation")

    def one(arm: str) -> Any:
        case = Failing()
        flat = iter(run_case(case, folder, arm, {"TEST_INSTRUMENTS": "tests.harness.instruments.faults:everywhere"}, **ARMS[arm]))
        return [[next(flat) for _ in one.prompts] for one in case.groups()]

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(ARMS, pool.map(one, ARMS), strict=True))


@pytest.mark.parametrize("arm", list(ARMS))
def test_only_the_poisoned_request_fails(arm: str, answers: dict[str, Any]) -> None:
    *alone, together, after = answers[arm]
    for outputs in [*alone, together, after]:
        good = [*outputs[:2], *outputs[-2:]]
        assert [len(one["token_ids"]) for one in good] == list(LENGTHS)
    assert all(SAID in one["text"] for outputs in alone for one in outputs[2:-2])
    assert [len(one["token_ids"]) for one in together[2:-2]] == [24, 24]
