"""Tensor parallelism over two ranks (gloo): MTP's tokens and verify steps are those of one rank."""

from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery
from tests.harness.inputs.drafting import with_assistant

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(30 + 25 * n))] for n in range(4)]
RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "TEST_INSTRUMENTS": "gloo_ranks:install"}


@pytest.mark.parametrize("name", ["tiny-26b-a4b", "tiny-12b"])
def test_mtp_on_two_ranks(name: str, nursery: Nursery) -> None:
    """Of a 12B's full layers both ranks hold the one KV head."""
    model = resolve(name)
    engine: dict[str, Any] = with_assistant(model)
    group = Group(PROMPTS, {"max_new_tokens": 40}, logprobs=True)
    one = nursery.run(model, [group], env={"SGLANG_GEMMA4_FROZEN_CHAIN": "0"}, **engine)[0]
    two = nursery.run(model, [group], env={"SGLANG_GEMMA4_FROZEN_CHAIN": "1", **RANKS}, tp_size=2, **engine)[0]
    for answer, reference in zip(two, one, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"] < len(answer.token_ids), "drafts were accepted"
