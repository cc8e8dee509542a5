"""The largest request of a pool, against what SGLang's scheduler asks of one, number by number."""

import itertools
from types import SimpleNamespace

import pytest

from sglang_gemma4.memory.request_limit import Pools, refusal


def pages(tokens: int, page: int) -> int:
    return -(-tokens // page) * page


def admits(pool: int, page: int, reserve: int, sliding: int | None, prompt: int, answer: int) -> bool:
    """What a request meets on an empty server: ``PrefillAdder.add_one_req``, the sliding pool where it goes whole, its last step."""
    admitted = prompt + answer + page < pool
    whole = sliding is None or pages(prompt, page) <= sliding
    steps = pages(prompt + answer - 2 + reserve, page) <= pool if reserve else pages(prompt + answer - 1, page) <= pool
    return admitted and whole and steps


@pytest.mark.parametrize("reserve", [0, 8, 12])
@pytest.mark.parametrize("whole", [False, True])
def test_what_fits_is_what_every_check_admits(reserve: int, whole: bool) -> None:
    for page, count in itertools.product((1, 4, 16, 64), (3, 5)):
        pool = page * count * (16 if page < 16 else 1)
        sliding = pool - page if whole else None
        limit = Pools(pool, page, reserve, sliding)
        for prompt in range(1, pool + 3):
            served = [answer for answer in range(1, pool) if admits(pool, page, reserve, sliding, prompt, answer)]
            assert limit.answer(prompt, 10 * pool) == (max(served) if served else None)
            assert limit.answer(prompt, 1) == (1 if served else None)


def test_a_decode_server_spares_tokens_beside_a_prompt_and_answers_within_its_sliding_pool() -> None:
    limit = Pools(1024, 16, 8, spared=512, answers=100)
    assert limit.most_prompt == 512
    assert limit.answer(512, 1000) == 100
    assert limit.answer(513, 1) is None
    assert Pools(512, 16, spared=512).answer(1, 1) is None
    assert Pools(1024, 16, spared=512, answers=0).answer(1, 1) is None


def test_a_refusal_names_tokens_limit_and_every_remedy() -> None:
    given = SimpleNamespace(max_total_tokens=512, chunked_prefill_size=-1, page_size=64, disaggregation_mode="null")
    said = refusal(500, 384, given)
    assert said.startswith("The prompt has 500 tokens, and the KV pools of this server hold a prompt of at most 384 tokens and its answer.")
    for part in ("--max-total-tokens (it is 512)", "--chunked-prefill-size", "--page-size (it is 64)"):
        assert part in said
    given = SimpleNamespace(max_total_tokens=None, chunked_prefill_size=64, page_size=1, disaggregation_mode="null")
    assert refusal(500, 384, given).endswith("Shorten the prompt, or start the server with a larger --mem-fraction-static.")
