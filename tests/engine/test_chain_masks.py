"""Verify steps of a chain without a mask, by SGLang's own extend kernel, interpreted, in float32: its tokens and steps with one.

Which kernel a graph launches, and what it then reads, ``tests/interpreted/test_step_metadata.py`` and ``tests/gpu`` test.
"""

from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.engine.test_attention_kernel import PROMPTS
from tests.harness.engine_fork import INTERPRETED, Group, Nursery, Output, without
from tests.harness.inputs.drafting import MTP


def serve(nursery: Nursery, model: str, *left_out: str) -> list[Output]:
    env = {"SGLANG_GEMMA4_ATTENTION": "1", **without(*INTERPRETED, *left_out)}
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{resolve(model)}-assistant", "attention_backend": "triton"}
    group = Group(PROMPTS, {"max_new_tokens": 5}, logprobs=True)
    return nursery.run(resolve(model), [group], env={**env, "TEST_INSTRUMENTS": "tree_masks:say"}, time_limit=400, **options)[0]


@pytest.mark.parametrize("model", ["tiny-26b-a4b"])
def test_same_tokens_without_a_mask(model: str, interpreting: Nursery) -> None:
    ours, stock = serve(interpreting, model), serve(interpreting, model, "step_metadata")
    assert ("VERIFIED without a mask" in ours[0].log, "VERIFIED with a mask" in ours[0].log) == (True, False)
    assert ("VERIFIED without a mask" in stock[0].log, "VERIFIED with a mask" in stock[0].log) == (False, True)
    assert all("SGLang's extend kernel verifies: a test" in answers[0].log for answers in (ours, stock))
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-5)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"] < len(answer.token_ids)
