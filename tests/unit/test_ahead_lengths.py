"""How many KV slots a request has ahead, by SGLang's own calculation with ours around it, over many steps."""

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache.allocation_sizing import page_aligned_decode_alloc_lens

from sglang_gemma4.memory import slots_ahead

RESERVE = 8


def request(prompt: int, answer: int) -> Any:
    kv = SimpleNamespace(kv_committed_len=prompt, kv_allocated_len=prompt)
    return SimpleNamespace(kv=kv, origin_input_ids=[1] * prompt, sampling_params=SimpleNamespace(max_new_tokens=answer))


def step(reqs: list[Any], accepted: list[int]) -> bool:
    """Whether it allocated."""
    short = any(req.kv.kv_allocated_len < req.kv.kv_committed_len + RESERVE for req in reqs)
    if short:
        _, then, _ = slots_ahead.lengths(page_aligned_decode_alloc_lens, reqs, reserve=RESERVE, page_size=1)
        for req, length in zip(reqs, then, strict=True):
            req.kv.kv_allocated_len = length
    for req, tokens in zip(reqs, accepted, strict=True):
        req.kv.kv_committed_len += tokens
    return short


def test_a_slow_request_holds_no_more_than_a_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_ahead, "_taken", slots_ahead.AHEAD)
    reqs = [request(100, 4096), request(50, 4096)]
    allocations = 0
    for _ in range(200):
        allocations += step(reqs, [4, 1])
        assert all(req.kv.kv_allocated_len - req.kv.kv_committed_len <= RESERVE + slots_ahead.AHEAD for req in reqs)
    assert allocations < 30


@pytest.mark.parametrize("answer", [3, 40, 200])
def test_no_request_holds_more_than_stock_gives_it_at_most(answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose last token but one is committed still runs; its row of slots need not hold more."""
    monkeypatch.setattr(slots_ahead, "_taken", slots_ahead.AHEAD)
    req = request(30, answer)
    while req.kv.kv_committed_len <= 30 + answer - 2:
        step([req], [1])
        assert req.kv.kv_allocated_len <= 30 + answer - 2 + RESERVE
