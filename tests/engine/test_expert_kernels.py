"""Our experts' kernels in SGLang, interpreted, in float32: the tokens of SGLang's own path, plain and under MTP."""

from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.engine.test_two_ranks import RANKS
from tests.harness.engine_fork import INTERPRETED, Group, Nursery, Output, without
from tests.harness.inputs.drafting import with_assistant
from tests.harness.left_to_sglang import left

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(6 + 20 * n))] for n in range(3)]
"""6, 26 and 46 tokens: a prefill that the grouped kernels take; decode and verify steps that the others take."""
LAYERS = 6


def serve(nursery: Nursery, few: str, grouped: str, mtp: bool, choice: str = "1", **options: Any) -> list[Output]:
    model = resolve("tiny-26b-a4b")
    if mtp:
        options |= with_assistant(model)
    asked = {"few_token_experts": few, "grouped_experts": grouped, "router_choice": choice}
    off = [name for name, on in asked.items() if on == "0"] + ["qkv_rope", "kv_write", "draft_argmax"]
    group = Group(PROMPTS, {"max_new_tokens": 12}, logprobs=True)
    env = {**without(*off), "TEST_INSTRUMENTS": "expert_counter:install"}
    if "ep_size" in options:
        env |= {**RANKS, "TEST_INSTRUMENTS": f"{env['TEST_INSTRUMENTS']} {RANKS['TEST_INSTRUMENTS']}"}
    return nursery.run(model, [group], env=env, time_limit=400, **options)[0]


@pytest.mark.parametrize("mtp", [False, True], ids=["plain", "mtp"])
def test_same_tokens_as_sglang_s_experts(interpreting: Nursery, mtp: bool) -> None:
    ours, stock = serve(interpreting, "1", "1", mtp), serve(interpreting, "0", "0", mtp)
    assert "EXPERTS by" not in stock[0].log
    assert ours[0].log.count("EXPERTS by few_token_experts") == LAYERS
    assert ours[0].log.count("over the routing's blocks") == LAYERS
    assert ours[0].log.count("EXPERTS by grouped_experts") == LAYERS
    assert ours[0].log.count("A ROUTER chose") == LAYERS
    assert "SGLang's kernels compute the experts" not in ours[0].log
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        if mtp:
            assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"] < len(answer.token_ids), (
                "drafts were accepted"
            )


def test_a_rank_s_share_of_the_experts(interpreting: Nursery) -> None:
    """Two ranks with half of the experts each: ids of the other half come as -1, and the router's blocks are of all experts."""
    two, stock = serve(interpreting, "1", "1", True, tp_size=2, ep_size=2), serve(interpreting, "0", "0", True)
    assert two[0].log.count("EXPERTS by few_token_experts") == two[0].log.count("EXPERTS by grouped_experts") == 2 * LAYERS
    assert "over the routing's blocks" not in two[0].log
    assert "SGLang's kernels compute the experts" not in two[0].log
    for answer, reference in zip(two, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]


def test_same_tokens_where_the_router_s_product_does_not_choose(interpreting: Nursery) -> None:
    ours, apart = serve(interpreting, "1", "1", True), serve(interpreting, "1", "1", True, choice="0")
    assert "A ROUTER chose" not in apart[0].log
    assert apart[0].log.count("over the routing's blocks") == LAYERS
    for answer, reference in zip(ours, apart, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]


def test_without_our_experts_the_router_says_why_it_only_multiplies(interpreting: Nursery) -> None:
    stock = serve(interpreting, "0", "0", False)
    assert left(stock[0].log)["router_choice"].count("few_token_experts is off or declined") == 1


def test_a_chunk_s_experts(interpreting: Nursery) -> None:
    """One of all prompts or of the longest; what is shorter is SGLang's."""
    model, group = resolve("tiny-26b-a4b"), Group(PROMPTS, {"max_new_tokens": 4}, logprobs=True)
    answers: list[list[Output]] = []
    for ours in ("0", "1"):
        instruments = "expert_counter:install expert_counter:prefill_from_forty_tokens"
        env = {**without(*INTERPRETED, "few_token_experts", *["prefill_experts"][int(ours) :]), "TEST_INSTRUMENTS": instruments}
        answers += interpreting.run(model, [group], env=env, time_limit=400)
    stock, found = answers
    assert "EXPERTS by" not in stock[0].log
    assert found[0].log.count("EXPERTS by prefill_experts") == LAYERS
    assert "SGLang's kernels compute the experts" not in found[0].log
    for answer, reference in zip(found, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
