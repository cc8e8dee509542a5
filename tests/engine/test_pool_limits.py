"""The end of the KV pools: what fits is answered whole, what does not is refused before it is queued, and nobody waits for ever."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.memory.request_limit import Pools
from tests.engine.test_memory_pools import MTP
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts
from tests.harness.programs import random_loads

MODEL = "tiny-26b-a4b"
POOL = 512
ASKED = 70
"""Tokens of answer of those that come near the end; SECONDS: what is not answered by then never is."""
SECONDS = 60.0


@cache
def passage() -> list[int]:
    """Every prompt of this file begins like this one."""
    return text_prompts(MODEL, [POOL])[0]


PAGES, CHUNKS = (1, 16, 64, 128), (128, -1)


def limits(page: int, mtp: bool, chunk: int) -> tuple[Pools, int, int]:
    """What bounds a request, the longest prompt that is served, and a shorter one beside which more tokens of answer fit."""
    pools = Pools(POOL, page, 8 if mtp else 0, POOL if chunk < 0 else None)
    longest = min(pools.most_prompt, POOL - 7)  # SGLang leaves five tokens for the answer, whatever is asked for
    return pools, longest, min(longest, pools.most - 60)


@cache
def answers_of_a_large_pool(nursery: Nursery) -> dict[int, list[int]]:
    """By the prompt's length. Tokens of such a pool are those of transformers in float32 (``test_cpu_engine.py``)."""
    each = [limits(page, mtp, chunk)[1:] for page in PAGES for mtp in (False, True) for chunk in CHUNKS]
    lengths = sorted({128, 278, 400, *(length for pair in each for length in pair)})
    group = Group([passage()[:length] for length in lengths], {"max_new_tokens": ASKED})
    (answers,) = nursery.run(CHECKPOINTS / MODEL, [group], max_total_tokens=32 * POOL, chunked_prefill_size=512, max_running_requests=32)
    return {length: answer.token_ids for length, answer in zip(lengths, answers, strict=True)}


def ask(nursery: Nursery, lengths: list[int], tokens: list[int], turns: bool, env: dict[str, str], **engine: Any) -> list[Output]:
    prompts = [passage()[:length] for length in lengths]
    sampling = [{"max_new_tokens": most} for most in tokens]
    group = Group(prompts, sampling, client="pool_client:ask", extra={"turns": turns, "seconds": SECONDS})
    draft = {**MTP, "speculative_draft_model_path": f"{CHECKPOINTS / MODEL}-assistant"} if engine.pop("mtp", False) else {}
    return nursery.run(CHECKPOINTS / MODEL, [group], env, 180.0, **draft, **engine)[0]


@pytest.mark.parametrize(("page", "mtp", "chunk", "overlapped"), [(1, True, 128, False), (64, False, -1, False), (128, True, 128, True)])
def test_the_largest_request_is_served_whole_and_one_more_is_refused(
    nursery: Nursery, page: int, mtp: bool, chunk: int, overlapped: bool
) -> None:
    """With one token of answer, and with as many as fit beside a shorter prompt; who is refused does not reach the scheduler."""
    limit, prompt, shorter = limits(page, mtp, chunk)
    lengths = [prompt, shorter, prompt + 1, POOL - 6, 20]
    engine = {"max_total_tokens": POOL, "page_size": page, "chunked_prefill_size": chunk, "swa_full_tokens_ratio": 1.0, "mtp": mtp}
    env = {"TEST_INSTRUMENTS": "loop_modes:overlapping"} if overlapped else {}
    largest, long, refused, never, short = ask(
        nursery, lengths, [ASKED] * 4 + [5], True, env, disable_overlap_schedule=not overlapped, **engine
    )
    for found, length in ((largest, lengths[0]), (long, lengths[1])):
        assert found.token_ids == answers_of_a_large_pool(nursery)[length][: limit.most - length]
        assert found.meta_info["finish_reason"]["type"] == "length"
    for found, length in ((refused, prompt + 1), (never, POOL - 6)):
        assert f"prompt has {length} tokens" in found.text
        assert f"at most {prompt} tokens" in found.text
        assert "--max-total-tokens (it is 512)" in found.text
    assert len(short.token_ids) == 5
    assert largest.log.count("Prefill batch") >= 3
    assert "RELAYED" in largest.log or not (overlapped and mtp)


@pytest.mark.parametrize("overlapped", [False, True], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("chunk", CHUNKS, ids=["chunked", "whole"])
@pytest.mark.parametrize("mtp", [False, True], ids=["plain", "mtp"])
@pytest.mark.parametrize("page", PAGES)
def test_so_it_is_with_every_page_size(nursery: Nursery, page: int, mtp: bool, chunk: int, overlapped: bool) -> None:
    test_the_largest_request_is_served_whole_and_one_more_is_refused(nursery, page, mtp, chunk, overlapped)


def test_without_the_patch_the_same_prompts_are_answered_with_nothing_or_never(nursery: Nursery) -> None:
    """What the tests above rely on: that they fail without it."""
    engine = {"max_total_tokens": POOL, "page_size": 64, "chunked_prefill_size": 128, "swa_full_tokens_ratio": 1.0}
    group = Group(
        [passage()[:length] for length in (440, 500)],
        [{"max_new_tokens": 5}] * 2,
        client="pool_client:ask",
        extra={"turns": 1, "seconds": 5.0},
    )
    env = {"SGLANG_GEMMA4_WITHOUT": "pool_limits"}
    ((nothing, never),) = nursery.run(CHECKPOINTS / MODEL, [group], env, 90.0, **engine)
    assert (nothing.token_ids, nothing.text) == ([], "")
    assert never.text == "no answer"


@pytest.mark.parametrize("page", [1, 16])
def test_a_prefix_that_was_found_leaves_room_for_the_rest(nursery: Nursery, page: int) -> None:
    """Its window is locked in a sliding pool of two windows, beside which the rest of a prompt was never admitted: chunks are cut to it."""
    ratio, chunk = (0.096, 150) if page == 1 else (0.12, 160)
    engine = {"max_total_tokens": 2048, "page_size": page, "chunked_prefill_size": chunk, "swa_full_tokens_ratio": ratio}
    first, longer, again, short = ask(nursery, [128, 278, 400, 20], [4, ASKED, ASKED, 5], True, {}, **engine)
    assert len(first.token_ids) == 4
    assert longer.token_ids == answers_of_a_large_pool(nursery)[278]
    assert again.token_ids == answers_of_a_large_pool(nursery)[400]
    assert longer.meta_info["cached_tokens"]
    assert len(short.token_ids) == 5


@pytest.mark.parametrize("mtp", [False, True], ids=["plain", "mtp"])
def test_a_sliding_pool_without_room_for_an_answer_ends_answers_and_not_the_server(nursery: Nursery, mtp: bool) -> None:
    """``pool_checks`` refuses such a pool; without it every request ends, with the tokens that fit or a refusal."""
    env = {"SGLANG_GEMMA4_WITHOUT": "pool_checks"}
    engine = {"max_total_tokens": 4096, "swa_full_tokens_ratio": 0.02, "chunked_prefill_size": 64, "mtp": mtp}
    for found in ask(nursery, [50, 90, 300, 20], [40, 40, ASKED, 5], False, env, **engine):
        assert found.text != "no answer"
        assert "Out of memory" not in found.text
        assert found.token_ids or "Shorten the prompt" in found.text


def test_a_decode_server_of_a_pair_refuses_what_it_could_never_preallocate(nursery: Nursery) -> None:
    """It keeps 512 tokens free beside a prompt: one that leaves fewer waited for ever, and all behind it."""
    most = 512
    prompts = [passage()[:most], [*passage(), 300], passage()[:20]]
    group = Group(prompts, [{"max_new_tokens": 8}] * 3, client="pool_client:ask_pair", extra={"most": most})
    ((largest, refused, short),) = nursery.run(
        CHECKPOINTS / "tiny-e2b", [group], {"TEST_INSTRUMENTS": "pd_pair:pair"}, 150.0, page_size=16, max_total_tokens=2 * most
    )
    assert len(largest.token_ids) == len(short.token_ids) == 8
    assert "at most 512 tokens" in refused.text
    assert "--num-reserved-decode-tokens (it is 512)" in refused.text


def test_twenty_at_once_near_the_end_of_the_pool(nursery: Nursery, tmp_path: Path) -> None:
    """Pages of 64, MTP, the overlapped loop, prompts beside running requests."""
    assert random_loads.compare(1, random_loads.near_the_end(1), nursery, tmp_path)


@pytest.mark.parametrize("number", [0, *range(2, 12)])
def test_so_they_are_on_other_engines(nursery: Nursery, tmp_path: Path, number: int) -> None:
    assert random_loads.compare(number, random_loads.near_the_end(number), nursery, tmp_path)
