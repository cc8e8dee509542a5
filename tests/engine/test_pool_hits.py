"""Counters of both KV pools in a real engine: what a session finds, and what it prefills again because its window alone was evicted."""

import random
from typing import Any

import pytest

from sglang_gemma4.diagnostics.pool_hits import COUNTERS, PREFIX
from sglang_gemma4.tiny import checkpoints
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import with_assistant

MODEL = checkpoints.SHIPPED / "tiny-26b-a4b"
WINDOW = 63
PROMPT = 200
NEW = 8
POOLS: dict[str, Any] = {"max_total_tokens": 3000, "swa_full_tokens_ratio": 0.14, "chunked_prefill_size": 64, "enable_metrics": True}
"""420 sliding tokens: a chunk and its window, and the windows of few idle sessions; the full pool keeps all prompts."""
NAMES = ("prompt", "hit", "full_hit", "window_missed")


def prompt(seed: int) -> list[int]:
    """Prompts that share nothing: a shared first token would be a hit of one token."""
    rng = random.Random(seed)
    return [100 + seed, *(rng.randrange(5, 900) for _ in range(PROMPT - 1))]


def counted(before: Output | None, after: Output) -> dict[str, float]:
    """What one request added."""
    old = before.meta_info["counters"] if before else {}
    names = {name: f"{PREFIX}{name}_tokens_total" for name in (*NAMES, "swa_evicted")}
    return {short: after.meta_info["counters"][name] - old.get(name, 0.0) for short, name in names.items()}


@pytest.mark.parametrize("speculative", [{}, with_assistant(MODEL)], ids=["plain", "mtp"])
def test_a_session_whose_window_alone_was_evicted(nursery: Nursery, speculative: dict[str, Any]) -> None:
    others = [prompt(seed) for seed in range(1, 8)]
    order = [prompt(0), prompt(0), *others, prompt(0), prompt(0)]
    group = Group(order, {"max_new_tokens": NEW}, client="metrics_client:send")
    (answers,) = nursery.run(MODEL, [group], **POOLS, **speculative)
    assert set(answers[0].meta_info["counters"]) >= set(COUNTERS)
    found = [counted(before, after) for before, after in zip([None, *answers], answers, strict=False)]
    # The last token is always computed, and under MTP keys are pairs of tokens.
    cached = PROMPT - 1 - bool(speculative)
    cold, warm, *rest, lost, again = found
    assert [cold[name] for name in NAMES] == [PROMPT, 0, 0, 0]
    assert [warm[name] for name in NAMES] == [PROMPT, cached, cached, 0]
    assert all([one[name] for name in NAMES] == [PROMPT, 0, 0, 0] for one in rest)
    assert [lost[name] for name in NAMES] == [PROMPT, 0, cached, cached], "full KV is all there, and not one token of it is of use"
    assert [again[name] for name in NAMES] == [PROMPT, cached, cached, 0]
    assert [one["hit"] for one in found] == [answer.meta_info["cached_tokens"] for answer in answers]
    assert sum(one["swa_evicted"] for one in found) >= WINDOW
    assert answers[-1].token_ids == answers[-2].token_ids == answers[0].token_ids


def test_a_request_counts_once_however_often_it_was_matched(nursery: Nursery) -> None:
    """While requests wait they are matched again and again, and a retracted one is admitted a second time."""
    group = Group([prompt(seed) for seed in range(20)], {"max_new_tokens": 30}, client="metrics_client:send", extra={"together": True})
    (answers,) = nursery.run(MODEL, [group], {"SGLANG_TEST_RETRACT": "1"}, **POOLS)
    assert "KV cache pool is full. Retract requests" in answers[0].log
    assert [counted(None, answers[-1])[name] for name in NAMES] == [20 * PROMPT, 0, 0, 0]


def test_a_shared_prompt_is_prefilled_twice_and_found_by_the_third_session(nursery: Nursery) -> None:
    """Of a first prompt the tree keeps the last window, which is not where the next one goes on; the second leaves one there."""
    shared = prompt(50)[: 2 * WINDOW]
    group = Group([shared + prompt(seed)[:70] for seed in range(51, 55)], {"max_new_tokens": NEW}, client="metrics_client:send")
    (answers,) = nursery.run(MODEL, [group], **{**POOLS, "max_total_tokens": 8192, "chunked_prefill_size": 512})
    found = [counted(before, after) for before, after in zip([None, *answers], answers, strict=False)]
    assert [one["hit"] for one in found] == [0, 0, len(shared), len(shared)]
    assert [one["window_missed"] for one in found] == [0, len(shared), 0, 0]
