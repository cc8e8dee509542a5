"""The kernels that a server may switch on, all at once in bfloat16 and CUDA graphs: answers follow transformers as stock's kernels do.

No token can be asked for exactly: other kernels round elsewhere, and an answer leaves the oracle's where two tokens are nearly as likely.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_oracle import Case
from tests.gpu.test_gpu import FOLLOWED_SLACK, agreement, case_of, run_case
from tests.harness.engine_fork import without
from tests.harness.inputs.drafting import MTP

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAMILIES = ("tiny-26b-a4b", "tiny-e2b")
KERNELS = ("ATTENTION", "NORMS", "QKV", "EXPERTS", "FEW_ROW_LINEAR", "DEPENDENT_LAUNCH", "DENSE_OVERLAP")
ARMS: dict[str, tuple[str, ...]] = {"stock": (), "ours": KERNELS}
STEPS_SLACK = 0.03
"""Of all verify steps: where an answer goes another way, so do its drafts."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {family: case_of(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.fixture(scope="module")
def answers(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[list[dict[str, Any]], str]]:
    """By family and arm: the answers under MTP and the engine's log; all engines at once."""
    base = tmp_path_factory.mktemp("engines")

    def one(key: tuple[str, str]) -> tuple[list[dict[str, Any]], str]:
        family, arm = key
        env = {f"SGLANG_GEMMA4_{name}": str(int(name in ARMS[arm])) for name in KERNELS}
        env |= {} if ARMS[arm] else without("draft_argmax")
        name = f"{family}-{arm}"
        found = run_case(cases[family], base, name, env, **MTP, speculative_draft_model_path=f"{checkpoints.SHIPPED / family}-assistant")
        return found, (base / f"{name}.log").read_text()

    keys = [(family, arm) for family in FAMILIES for arm in ARMS]
    with ThreadPoolExecutor(len(keys)) as pool:
        return dict(zip(keys, pool.map(one, keys), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_follow_transformers_as_long(family: str, cases: dict[str, Case], answers: dict[tuple[str, str], Any]) -> None:
    stock, ours = (agreement(answers[family, one][0], cases[family].oracle) for one in ("stock", "ours"))
    print(f"{family}: follows for {ours[0]:.3f} of the tokens (stock kernels {stock[0]:.3f}), error {ours[1]:.4f} ({stock[1]:.4f})")
    assert ours[0] >= stock[0] - FOLLOWED_SLACK / 2
    assert ours[1] <= stock[1] * 1.2


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_accepted_as_often(family: str, answers: dict[tuple[str, str], Any]) -> None:
    stock, ours = (sum(one["meta_info"]["spec_verify_ct"] for one in answers[family, each][0]) for each in ("stock", "ours"))
    print(f"{family}: {ours} verify steps, stock kernels {stock}")
    assert ours <= stock * (1 + STEPS_SLACK)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_declined(family: str, answers: dict[tuple[str, str], Any]) -> None:
    """But images, whose mask the prefill kernel leaves to stock's."""
    log = answers[family, "ours"][1]
    declined = [line for line in log.splitlines() if "SGLang's" in line and ("kernel decodes" in line or "kernel verifies" in line)]
    assert declined == []
