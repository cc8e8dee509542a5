"""A prefill and a decode server of different --tp-size, whole engines: the greedy answers are one server's, MTP in decode included."""

import json
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery
from tests.harness.inputs.drafting import MTP

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(30 + 45 * n))] for n in range(3)]
THREADS = {1: "0", 2: "0|1"}
"""Cores of each rank."""


@pytest.mark.parametrize(
    ("prefill", "decode", "over", "page_size", "kv_cache_dtype"),
    [
        (2, 1, "pd_routed:nixl", 16, "auto"),
        (1, 2, "pd_routed:nixl", 1, "auto"),
        (2, 1, "pd_pair:nixl", 16, "auto"),
        (1, 2, "pd_pair:nixl", 1, "auto"),
        (2, 1, "pd_pair:pair", 1, "auto"),
        (1, 2, "pd_pair:pair", 16, "auto"),
        (1, 2, "pd_pair:nixl", 16, "int8_per_token_head"),
        (2, 1, "pd_pair:pair", 1, "fp8_per_token_head"),
    ],
)
def test_the_same_answers_as_one_server(
    prefill: int, decode: int, over: str, page_size: int, kv_cache_dtype: str, nursery: Nursery
) -> None:
    """``pd_routed``: servers over HTTP behind SGLang's router; ``pair`` is Mooncake's manager."""
    compare(nursery, "tiny-26b-a4b", prefill, decode, over, page_size, kv_cache_dtype)


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1)])
def test_a_12b_s_one_head_of_full_layers_is_sent_to_each_rank(prefill: int, decode: int, nursery: Nursery) -> None:
    compare(nursery, "tiny-12b", prefill, decode, "pd_pair:nixl", 1, "auto")


def compare(nursery: Nursery, name: str, prefill: int, decode: int, over: str, page_size: int, kv_cache_dtype: str) -> None:
    model = resolve(name)
    engine: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{model}-assistant", "page_size": page_size}
    engine["kv_cache_dtype"] = kv_cache_dtype
    groups = [Group(PROMPTS, {"max_new_tokens": 24}, logprobs=True)]
    alone = nursery.run(model, groups, **engine)[0]
    environment = {
        "SGLANG_CPU_OMP_THREADS_BIND": THREADS[prefill],
        "TEST_DECODE_ENV": json.dumps({"SGLANG_CPU_OMP_THREADS_BIND": THREADS[decode]}),
        "TEST_INSTRUMENTS": f"gloo_ranks:install {over}",
        "TEST_DECODE_ARGUMENTS": json.dumps({"tp_size": decode}),
    }
    found = nursery.run(model, groups, env=environment, time_limit=600.0, tp_size=prefill, **engine)[0]
    for answer, reference in zip(found, alone, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-3)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"] < len(answer.token_ids), "drafts were accepted"
    assert f"transfer plan, prefill rank 0 of {prefill} to decode rank 0 of {decode}: full layers: 1 of" in found[0].log


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"page_size": 16}, "prefill server has page_size=1, but decode server has page_size=16"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "but decode server has kv_cache_dtype=int8_per_token_head"),
    ],
)
def test_a_server_that_does_not_fit_is_named_to_the_client(given: dict[str, Any], said: str, nursery: Nursery) -> None:
    environment = {"TEST_INSTRUMENTS": "pd_pair:pair", "TEST_DECODE_ARGUMENTS": json.dumps(given)}
    groups = [Group(PROMPTS[:1], client="tests.harness.instruments.pd_pair:ask_decode_twice")]
    found = nursery.run(resolve("tiny-26b-a4b"), groups, env=environment, page_size=1)[0]
    for answer in found:
        assert said in answer.text, "both requests are told, so the server lives"
