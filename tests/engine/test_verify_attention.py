"""The verify kernel in SGLang's triton backend, interpreted, in float32: the tokens and steps of SGLang's own kernel."""

from collections.abc import Iterator
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.engine.engine_fork import Group, Nursery, Output, open_nursery
from tests.engine.test_oracle import MTP

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(20 + 40 * n))] for n in range(3)]


@pytest.fixture(scope="module")
def interpreting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A nursery whose Triton kernels run on the CPU: Triton decides that when a kernel is defined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield from open_nursery(tmp_path_factory.mktemp("interpreting"))


def serve(nursery: Nursery, on: str) -> list[Output]:
    model = resolve("tiny-26b-a4b")
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{model}-assistant", "attention_backend": "triton"}
    env = {"SGLANG_GEMMA4_VERIFY_ATTENTION": on, "TEST_SABOTAGE": "verify_counter:install"}
    group = Group(PROMPTS, {"max_new_tokens": 16}, logprobs=True)
    return nursery.run(model, [group], env=env, time_limit=400, **options)[0]


def test_same_tokens_as_sglang_s_kernel(interpreting: Nursery) -> None:
    ours, stock = serve(interpreting, "1"), serve(interpreting, "0")
    assert "VERIFIED" in ours[0].log
    assert "VERIFIED" not in stock[0].log
    assert "extend kernel verifies" not in ours[0].log
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"] < len(answer.token_ids), "drafts were accepted"
