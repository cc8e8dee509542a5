"""The draft's token without logits, and the sharded head, in real engines: the tokens and verify steps of logits in memory."""

import random
import re
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from sglang_gemma4.tiny import chat_format, dialogues
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.inputs.drafting import MTP
from tests.harness.left_to_sglang import left

KERNELS = ("qkv_rope", "kv_write", "grouped_experts")
RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "TEST_INSTRUMENTS": "head_counter:install_on_ranks"}


def serve(nursery: Nursery, family: str, argmax: str, env: dict[str, str] | None = None, **engine: Any) -> list[Output]:
    """Greedy answers of different lengths, so that batches shrink, with the log-probability of each token."""
    rng = random.Random(5)
    prompts = [chat_format.render(dialogues.chat(rng, "held_out"), prompt_only=True) for _ in range(5)]
    sampling = [{"max_new_tokens": 6 + 6 * number} for number in range(len(prompts))]
    model = resolve(family)
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{model}-assistant", "max_running_requests": 4, **engine}
    switches = {**without(*KERNELS, *["draft_argmax"][int(argmax) :]), "TEST_INSTRUMENTS": "head_counter:install"}
    group = Group(prompts, sampling, logprobs=True)
    return nursery.run(model, [group], env={**switches, **(env or {})}, time_limit=400, **options)[0]


def same(ours: list[Output], stock: list[Output]) -> None:
    """Tokens, verify steps and log-probabilities; some drafts were accepted."""
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
    assert sum(answer.meta_info["spec_verify_ct"] for answer in ours) < sum(len(answer.token_ids) for answer in ours)


@pytest.mark.parametrize(("family", "kernel"), [("tiny-26b-a4b", "head_argmax"), ("tiny-e2b", "centroid_argmax")])
def test_the_same_drafts_are_accepted(family: str, kernel: str, interpreting: Nursery) -> None:
    ours, stock = serve(interpreting, family, "1"), serve(interpreting, family, "0")
    assert f"TOLD by {kernel} over (" in ours[0].log
    assert "draft_argmax" not in left(ours[0].log)
    assert "TOLD by" not in stock[0].log
    same(ours, stock)


def test_without_triton_the_draft_keeps_its_logits(nursery: Nursery) -> None:
    said = [serve(nursery, family, "1") for family in ("tiny-26b-a4b", "tiny-e2b")]
    for answers in said:
        assert left(answers[0].log)["draft_argmax"].count("Triton does not run on cpu") == 1
        assert "TOLD by" not in answers[0].log
        assert all(answer.token_ids for answer in answers)


def test_a_vocabulary_on_two_ranks(interpreting: Nursery) -> None:
    one = serve(interpreting, "tiny-26b-a4b", "0")
    two = serve(interpreting, "tiny-26b-a4b", "1", {"SGLANG_GEMMA4_SHARDED_HEAD": "1", **RANKS}, tp_size=2)
    assert set(re.findall(r"TOLD by head_argmax over (\(.*\)) from (\d+)", two[0].log)) == {("(512, 64)", "0"), ("(512, 64)", "512")}
    assert set(re.findall(r"GATHERED logits of (\d+)", two[0].log)) == {"512"}
    assert set(left(two[0].log)) == {"yoco"}, "no layer of the target shares KV"
    same(two, one)
