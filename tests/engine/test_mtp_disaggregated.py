"""MTP behind a prefill server: the first draft starts from the hidden state that the prefill server sends along.

Stock's prefill server dies: ``crash_repro/pd_draft.py``.
"""

from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery
from tests.harness.inputs.drafting import MTP

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(30 + 25 * n))] for n in range(4)]


@pytest.mark.parametrize("family", ["tiny-e2b", "tiny-26b-a4b"])
def test_a_decode_server_drafts_as_one_server_does(family: str, nursery: Nursery) -> None:
    model = resolve(family)
    engine: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{model}-assistant", "page_size": 1}
    groups = [Group(PROMPTS[start : start + 2], {"max_new_tokens": 40}, logprobs=True) for start in (0, 2)]
    alone = [answer for group in nursery.run(model, groups, **engine) for answer in group]
    found = nursery.run(model, groups, env={"TEST_INSTRUMENTS": "pd_pair:pair"}, **engine)
    for answer, reference in zip([answer for group in found for answer in group], alone, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"] < len(answer.token_ids), "drafts were accepted"
