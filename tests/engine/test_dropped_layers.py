"""Pools without the KV-shared layers where KV leaves them: to the host and back, to another server, from slot to slot."""

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints
from tests.harness.engine_fork import Group, Nursery, Output, without

MODEL = checkpoints.SHIPPED / "tiny-e2b"
OFF = without("shared_kv")
MTP: dict[str, Any] = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_draft_model_path": f"{MODEL}-assistant",
}
CHAIN = {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
SMALL: dict[str, Any] = {"max_total_tokens": 600, "max_running_requests": 2}
"""Tokens for two of the six prompts."""
HOST: dict[str, Any] = {
    "enable_hierarchical_cache": True,
    "enable_cache_report": True,
    "hicache_ratio": 8.0,
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
    "hicache_write_policy": "write_through",
}
HOST_ENV = {"TEST_INSTRUMENTS": "host_cache:torch_copies"}


def prompts() -> list[list[int]]:
    """Six prompts, each six windows long, that share only their first token."""
    rng = random.Random(1)
    return [[2, *(rng.randrange(5, 900) for _ in range(200))] for _ in range(6)]


@cache
def plain(nursery: Nursery) -> tuple[Output, ...]:
    """What a large enough pool of stock's answers: no host cache, no speculation, one server."""
    group = Group(prompts(), {"max_new_tokens": 40}, logprobs=True)
    return tuple(nursery.run(MODEL, [group], env=OFF)[0])


@pytest.mark.parametrize("speculative", [{}, {**MTP, **CHAIN}], ids=["plain", "mtp"])
def test_kv_comes_back_from_the_host(nursery: Nursery, speculative: dict[str, Any]) -> None:
    order = [0, 1, 2, 3, 4, 5, 0, 1, 2]
    groups = [Group([prompts()[i]], {"max_new_tokens": 40}, logprobs=True) for i in order]
    answers = [group[0] for group in nursery.run(MODEL, groups, env=HOST_ENV, **HOST, **SMALL, **speculative)]
    for answer in answers[6:]:
        assert answer.meta_info["cached_tokens_details"]["host"] >= 199, "the pool was too small to keep it"
    for i, answer in zip(order, answers, strict=True):
        assert answer.token_ids == plain(nursery)[i].token_ids
        assert answer.logprobs == pytest.approx(plain(nursery)[i].logprobs, abs=1e-4)


def test_accepted_branches_move_to_their_slots(nursery: Nursery) -> None:
    tree: dict[str, Any] = {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    group = Group(prompts(), {"max_new_tokens": 40}, logprobs=True)
    ours = nursery.run(MODEL, [group], page_size=1, **MTP, **tree)[0]
    stock = nursery.run(MODEL, [group], env=OFF, page_size=1, **MTP, **tree)[0]
    for our, theirs, undrafted in zip(ours, stock, plain(nursery), strict=True):
        assert our.token_ids == theirs.token_ids == undrafted.token_ids
        assert our.logprobs == pytest.approx(undrafted.logprobs, abs=1e-4)
        assert our.meta_info["spec_verify_ct"] == theirs.meta_info["spec_verify_ct"] < len(our.token_ids), "drafts were accepted"


def test_two_servers_hand_over_the_layers_that_own_kv(nursery: Nursery) -> None:
    groups = [Group(prompts()[start : start + 3], {"max_new_tokens": 40}, logprobs=True) for start in (0, 3)]
    found = nursery.run(MODEL, groups, env={"TEST_INSTRUMENTS": "pd_pair:pair"}, page_size=16)
    for answer, alone in zip([answer for group in found for answer in group], plain(nursery), strict=True):
        assert answer.token_ids == alone.token_ids
        assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_stored_pages_of_other_pools_are_not_read(nursery: Nursery, tmp_path: Path) -> None:
    """Stock's pages hold more layers under the same key; read into a smaller pool they give wrong KV without an error."""
    store = {**HOST_ENV, "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path)}
    engine = {**HOST, "hicache_storage_backend": "file", "hicache_storage_prefetch_policy": "wait_complete", "page_size": 16}
    long = [prompts()[0] + prompts()[1], prompts()[2] + prompts()[3]]  # shorter ones are not fetched
    groups = [Group([prompt], {"max_new_tokens": 20}) for prompt in long]

    def run(env: dict[str, str]) -> tuple[list[list[int]], bool]:
        found = [group[0] for group in nursery.run(MODEL, groups, env=env, max_total_tokens=1000, max_running_requests=2, **engine)]
        return [answer.token_ids for answer in found], all(answer.meta_info["cached_tokens"] for answer in found)

    tokens, fetched = run({**store, **OFF})
    assert not fetched
    assert run(store) == (tokens, False), "stock's pages are left alone"
    assert run(store) == (tokens, True), "our own are read"


def test_two_servers_with_different_layers_refuse_each_other(nursery: Nursery) -> None:
    env = {"TEST_INSTRUMENTS": "pd_pair:pair", "TEST_DECODE_ENV": json.dumps(OFF)}
    (answers,) = nursery.run(MODEL, [Group(prompts()[:1], client="tests.harness.instruments.pd_pair:ask_decode_twice")], env=env)
    for answer in answers:
        assert re.search(r"mismatch: .*without-kv-of-layers-5-9, but", answer.text), "the client is told, and the server lives"
