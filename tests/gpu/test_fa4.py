"""MTP on FlashAttention-4: answers and accepted drafts are those of triton.

What stock's views get wrong is shown by ``crash_repro/fa4_view.py``; here, on an H200, both views took the same 666 verify steps.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sglang_gemma4.attention import flash_prefill
from tests.engine.test_oracle import Case
from tests.gpu.test_gpu import FOLLOWED_SLACK, agreement, case_of, run_case
from tests.harness.inputs.drafting import MTP

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAMILY = "tiny-26b-a4b"
BACKENDS = ("triton", "fa4")
Answers = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(FAMILY, tmp_path_factory.mktemp(FAMILY))


@pytest.fixture(scope="module")
def answers(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    if problem := flash_prefill.reason_against():
        pytest.skip(problem)
    folder = tmp_path_factory.mktemp("engines")

    def one(backend: str) -> list[dict[str, Any]]:
        draft = {**MTP, "speculative_draft_model_path": f"{case.model}-assistant"}
        return run_case(case, folder, backend, {}, **draft, attention_backend=backend)

    with ThreadPoolExecutor(len(BACKENDS)) as pool:
        return dict(zip(BACKENDS, pool.map(one, BACKENDS), strict=True))


def test_answers_follow_transformers_as_on_triton(case: Case, answers: Answers) -> None:
    triton, fa4 = (agreement(answers[backend], case.oracle) for backend in BACKENDS)
    print(f"fa4 follows for {fa4[0]:.3f} of the tokens (triton {triton[0]:.3f}), error {fa4[1]:.4f} ({triton[1]:.4f})")
    assert fa4[0] >= triton[0] - FOLLOWED_SLACK / 2
    assert fa4[1] <= triton[1] * 1.2


def test_drafts_are_accepted_as_on_triton(answers: Answers) -> None:
    triton, fa4 = (sum(one["meta_info"]["spec_verify_ct"] for one in answers[backend]) for backend in BACKENDS)
    print(f"verify steps: {fa4} on fa4, {triton} on triton")
    assert fa4 <= 1.05 * triton
