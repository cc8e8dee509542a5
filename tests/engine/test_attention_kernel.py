"""Our attention kernel in SGLang's triton backend, interpreted, in float32: the tokens and steps of SGLang's own kernels."""

import re
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import with_assistant
from tests.harness.left_to_sglang import left

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(20 + 40 * n))] for n in range(2)]
"""The second is longer than the sliding window of 32 tokens."""
MODEL = resolve("tiny-26b-a4b")


def serve(nursery: Nursery, on: str, **options: Any) -> list[Output]:
    env = {"SGLANG_GEMMA4_ATTENTION": on, "TEST_INSTRUMENTS": "kernel_counters:attention"}
    group = Group(PROMPTS, {"max_new_tokens": 10}, logprobs=True)
    return nursery.run(MODEL, [group], env=env, time_limit=400, attention_backend="triton", **options)[0]


@pytest.mark.parametrize("mtp", [False, True], ids=["plain", "mtp"])
def test_same_tokens_as_sglang_s_kernels(mtp: bool, interpreting: Nursery) -> None:
    """Plain in pages of 16 tokens, under MTP of 1."""
    options: dict[str, Any] = with_assistant(MODEL) if mtp else {"page_size": 16}
    ours, stock = serve(interpreting, "1", **options), serve(interpreting, "0", **options)
    assert ("VERIFIED" in ours[0].log) is mtp
    assert "DECODED a layer, parts balanced" in ours[0].log
    assert "PREFILLED" in ours[0].log
    assert not [word for word in ("VERIFIED", "DECODED", "PREFILLED") if word in stock[0].log]
    assert not [words for words in ("SGLang's extend kernel", "SGLang's decode kernel") if words in ours[0].log]
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        if mtp:
            steps = answer.meta_info["spec_verify_ct"]
            assert steps == reference.meta_info["spec_verify_ct"] < len(answer.token_ids), "drafts were accepted"


@pytest.mark.parametrize("cache", ["auto", "int8_per_token_head"])
def test_long_prefills_by_flash_attention(cache: str, interpreting: Nursery) -> None:
    """In chunks and after a radix hit, with a stand-in for the attention (``flash_standin``): keys, windows and rows are the right ones.

    Of an int8 cache all keys are put in order.
    """
    options: dict[str, Any] = {"attention_backend": "triton", "chunked_prefill_size": 32, "kv_cache_dtype": cache}
    again = [*PROMPTS[1], *range(400, 430)]
    groups = [Group(PROMPTS, {"max_new_tokens": 4}, logprobs=True), Group([again], {"max_new_tokens": 4}, logprobs=True)]
    found = {}
    for on in "10":
        env = {"SGLANG_GEMMA4_FLASH_PREFILL": on, "SGLANG_GEMMA4_ATTENTION": "1", "TEST_INSTRUMENTS": "flash_standin:install"}
        found[on] = interpreting.run(MODEL, groups, env=env, time_limit=400, **options)
    flashed = re.findall(r"FLASH (\d+) (\d+)", found["1"][0][0].log)
    assert {int(rows) < int(keys) for rows, keys in flashed} == {True, False}, "with a prefix and without"
    assert found["1"][1][0].meta_info["cached_tokens"] >= len(PROMPTS[1]) - 1
    assert not re.findall(r"FLASH \d", found["0"][0][0].log)
    assert "flash_prefill" not in left(found["1"][0][0].log)
    for ours, reference in zip([*found["1"][0], *found["1"][1]], [*found["0"][0], *found["0"][1]], strict=True):
        assert ours.token_ids == reference.token_ids
        assert ours.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


def test_without_a_card_long_prefills_stay_with_our_kernel(interpreting: Nursery) -> None:
    env = {"SGLANG_GEMMA4_ATTENTION": "1", "SGLANG_GEMMA4_FLASH_PREFILL": "1", "TEST_INSTRUMENTS": "kernel_counters:attention"}
    answers = interpreting.run(MODEL, [Group(PROMPTS, {"max_new_tokens": 2})], env=env, time_limit=400, attention_backend="triton")[0]
    assert left(answers[0].log)["flash_prefill"].count("there is no CUDA GPU") == 1
    assert "PREFILLED" in answers[0].log
