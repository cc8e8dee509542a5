"""The CPU reference engine: float32 tokens equal transformers' in every way of running."""

from functools import cache
from typing import Any

import pytest

from sglang_gemma4.tiny import families
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.oracles.reference import CHECKPOINTS, greedy_all, text_prompts

MOE, E2B, DENSE, UNIFIED = families.TINY
LENGTHS = [5, 24, 33, 64, 65, 90, 130, 40]
"""Shorter and longer than the windows (32 and 64)."""
TOKENS = 24


@cache
def prompts(name: str) -> list[list[int]]:
    """Eight prompts."""
    return text_prompts(name, LENGTHS)


@cache
def expected(name: str) -> list[list[int]]:
    """What transformers says to them."""
    return greedy_all(name, prompts(name), TOKENS)


def group(name: str, **sampling: Any) -> Group:
    """All eight prompts at once."""
    return Group(prompts(name), {"max_new_tokens": TOKENS, **sampling})


def tokens(outputs: list[Output]) -> list[list[int]]:
    """Output token ids of a group."""
    return [output.token_ids for output in outputs]


def mtp(name: str, topk: int = 1) -> dict[str, Any]:
    """Engine arguments of frozen-KV MTP with the model's own assistant."""
    return {
        "speculative_algorithm": "NEXTN",
        "speculative_draft_model_path": CHECKPOINTS / f"{name}-assistant",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": 4 if topk == 1 else 8,
    }


@pytest.mark.parametrize(("name", "page_size"), [(MOE, 1), (MOE, 16), (E2B, 1), (E2B, 16), (DENSE, 16)])
def test_plain(name: str, page_size: int, nursery: Nursery) -> None:
    """Eight at once, again from the radix cache, and one at a time."""
    alone = [Group([prompt], {"max_new_tokens": TOKENS}, flush=i == 0) for i, prompt in enumerate(prompts(name)[4:6])]
    groups = nursery.run(CHECKPOINTS / name, [group(name), group(name), *alone], page_size=page_size)
    assert tokens(groups[0]) == expected(name)
    assert tokens(groups[1]) == expected(name)
    assert [one[0].token_ids for one in groups[2:]] == expected(name)[4:6]
    hits = [output.meta_info["cached_tokens"] for output in groups[1]]
    assert all(hit >= (length - 1) // page_size * page_size for hit, length in zip(hits, LENGTHS, strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (MOE, {"chunked_prefill_size": 32, "page_size": 16, "enable_mixed_chunk": True}),
        (E2B, {"chunked_prefill_size": 20}),
        (DENSE, {"chunked_prefill_size": 20, "enable_mixed_chunk": True}),
    ],
    ids=[MOE, E2B, DENSE],
)
def test_chunked_prefill(name: str, options: dict[str, Any], nursery: Nursery) -> None:
    groups = nursery.run(CHECKPOINTS / name, [group(name)] * 2, **options)
    assert [tokens(one) for one in groups] == [expected(name)] * 2


@pytest.mark.parametrize(("name", "page_size"), [(MOE, 1), (E2B, 16)])
def test_retraction(name: str, page_size: int, nursery: Nursery) -> None:
    """A pool too small for all: requests are retracted, prefilled again, and cached prefixes evicted."""
    own = text_prompts(name, [5, 9, 14, 20, 24, 17, 11, 30])
    groups = nursery.run(
        CHECKPOINTS / name,
        [Group(own, {"max_new_tokens": 48})] * 2,
        env=without("swa_sizing"),  # a ratio leaves the sliding pool too few tokens
        page_size=page_size,
        max_total_tokens=288,
        schedule_conservativeness=0.01,
    )
    assert [tokens(one) for one in groups] == [greedy_all(name, own, 48)] * 2
    assert sum(output.meta_info["num_retractions"] for one in groups for output in one) > 0


@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("name", families.TINY)
def test_mtp(name: str, topk: int, nursery: Nursery) -> None:
    """Greedy MTP gives plain decoding's tokens while drafts are accepted in part."""
    page_size = 1 if topk == 1 else 16
    groups = nursery.run(CHECKPOINTS / name, [group(name)] * 2, page_size=page_size, **mtp(name, topk))
    assert [tokens(one) for one in groups] == [expected(name)] * 2
    histograms = [output.meta_info["spec_correct_drafts_histogram"] for one in groups for output in one]
    accepted = {number for histogram in histograms for number, times in enumerate(histogram) if times}
    assert {0, 1, 2, 3} <= accepted


@pytest.mark.parametrize("topk", [1, 4])
def test_mtp_under_pressure(topk: int, nursery: Nursery) -> None:
    groups = nursery.run(
        CHECKPOINTS / E2B,
        [group(E2B)] * 2,
        max_total_tokens=360,
        schedule_conservativeness=0.01,
        chunked_prefill_size=48,
        **mtp(E2B, topk),
    )
    assert [tokens(one) for one in groups] == [expected(E2B)] * 2


@pytest.mark.parametrize("topk", [1, 4])
def test_sampled_mtp_listens_to_its_parameters(topk: int, nursery: Nursery) -> None:
    """top_k = 1 and a vanishing temperature are greedy, a high one is not; greedy requests beside it stay greedy."""
    hot = {"max_new_tokens": TOKENS, "temperature": 2.0, "top_p": 0.98}
    beside = Group(prompts(DENSE), [{**hot, "temperature": 0}, *[hot] * (len(LENGTHS) - 1)])
    groups = nursery.run(
        CHECKPOINTS / DENSE,
        [group(DENSE, temperature=1.5, top_k=1), group(DENSE, temperature=1e-5), group(DENSE, **hot), beside],
        **mtp(DENSE, topk),
    )
    assert tokens(groups[0]) == expected(DENSE)
    assert tokens(groups[1]) == expected(DENSE)
    assert sum(one != other for one, other in zip(tokens(groups[2]), expected(DENSE), strict=True)) >= 6
    assert groups[3][0].token_ids == expected(DENSE)[0]
